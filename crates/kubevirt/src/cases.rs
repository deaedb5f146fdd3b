//! The conformance rows of `testdata/cases`, which are also run against KubeVirt's own code.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::gates::FeatureGates;
use crate::vmi::{PermittedHostDevices, Workload};

/// A row: an object, the cluster's configuration and what is expected.
#[derive(Debug, Deserialize)]
pub(crate) struct Row<Expected> {
    pub(crate) id: String,
    pub(crate) vmi: Value,
    #[serde(default)]
    pub(crate) gates: Gates,
    pub(crate) permitted: Option<PermittedHostDevices>,
    pub(crate) expected: Expected,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Gates {
    enabled: Vec<String>,
    disabled: Vec<String>,
}

impl<Expected: DeserializeOwned> Row<Expected> {
    pub(crate) fn all(file: &str) -> BTreeMap<String, Self> {
        let rows: Vec<Self> = serde_json::from_str(file).unwrap();
        let count = rows.len();
        let rows: BTreeMap<_, _> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        assert_eq!(rows.len(), count, "two rows have one id");
        rows
    }

    pub(crate) fn find(file: &str, id: &str) -> Self {
        Self::all(file).remove(id).unwrap_or_else(|| panic!("no row {id}"))
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload::from_json(&self.vmi.to_string()).unwrap()
    }

    /// The object as the template of a `VirtualMachine`.
    pub(crate) fn as_vm(&self) -> Workload {
        let vm = serde_json::json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": self.vmi["metadata"],
            "spec": {"runStrategy": "Always", "template": {"metadata": {"creationTimestamp": null}, "spec": self.vmi["spec"]}},
        });
        Workload::from_json(&vm.to_string()).unwrap()
    }

    pub(crate) fn gates(&self) -> FeatureGates {
        FeatureGates::from_lists(&self.gates.enabled, &self.gates.disabled)
    }
}

/// One test per row, and one that no row of the file is left out.
macro_rules! rows {
    ($expected:ty, $file:expr, $check:path, { $($name:ident = $id:literal,)* }) => {
        $(#[test]
        fn $name() {
            $check(&$crate::cases::Row::<$expected>::find($file, $id));
        })*

        #[test]
        fn every_row_of_the_file_is_a_test() {
            let rows = $crate::cases::Row::<$expected>::all($file);
            let named = std::collections::BTreeSet::from([$($id),*]);
            assert_eq!(rows.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), named);
        }
    };
}

pub(crate) use rows;
