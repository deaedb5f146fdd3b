//! Arguments that select claims and requests.

use clap::Args;
use drakkar_metadata::Query;
use drakkar_metadata::name::DriverName;
use drakkar_metadata::read::Selection;

/// Selects a claim or a request.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The claim, by its own name or that of the pod's entry for it, and its request.
    #[arg(value_name = "CLAIM[/REQUEST]")]
    selection: Selection,
    /// Use only the metadata of this driver.
    #[arg(long, value_name = "NAME")]
    driver: Option<DriverName>,
}

impl Target {
    pub(crate) fn into_selection(self) -> Selection {
        match self.driver {
            None => self.selection,
            Some(driver) => self.selection.with_driver(driver),
        }
    }
}

/// Selects a request.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// The claim, by its own name or that of the pod's entry for it, and the request.
    #[arg(value_name = "CLAIM/REQUEST")]
    query: Query,
    /// Use only the metadata of this driver.
    #[arg(long, value_name = "NAME")]
    driver: Option<DriverName>,
}

impl Request {
    pub(crate) fn into_query(self) -> Query {
        match self.driver {
            None => self.query,
            Some(driver) => self.query.with_driver(driver),
        }
    }
}
