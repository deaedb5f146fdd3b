//! `drakkar kubevirt claims`: writes the claims for a virtual machine that names device classes.

use drakkar_kubevirt::claims::{ClaimOptions, ClaimsError, generate};
use drakkar_metadata::name::syntax::is_c_identifier;
use serde_json::Value;

use super::documents::Documents;
use crate::exit::{Code, Failure};
use crate::output::{plain, write_yaml};

pub(crate) fn run(documents: &Documents, one_claim: bool, persistent: bool, same: &[String]) -> Result<(), Failure> {
    let same = same.iter().map(|name| qualified(name)).collect();
    let options = ClaimOptions { one_claim, persistent, same };
    let mut output: Vec<Value> = Vec::new();
    let mut generated_any = false;
    for document in &documents.all {
        #[cfg(feature = "cel")]
        super::selectors::check(document).map_err(|error| documents.invalid(document, &error))?;
        match generate(document, &options) {
            Ok(generated) => {
                output.extend(generated.claims);
                output.push(generated.workload);
                generated_any = true;
            }
            // Other objects of the file are passed through, so that the output can take its place.
            Err(ClaimsError::Kind(_)) => output.push(document.clone()),
            // Not about the document.
            Err(error @ (ClaimsError::Attribute(_) | ClaimsError::MatchAcrossClaims(_))) => {
                return Err(Failure::new(Code::Usage, error.to_string()));
            }
            Err(error) => return Err(documents.invalid(document, &error)),
        }
    }
    if !generated_any {
        return Err(documents.without_workload());
    }
    plain(|writer| {
        for (index, document) in output.iter().enumerate() {
            if index > 0 {
                writer.write_all(b"---\n")?;
            }
            write_yaml(writer, document)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Completes the name of a standard attribute: `numaNode` is `resource.kubernetes.io/numaNode`.
fn qualified(name: &str) -> String {
    if is_c_identifier(name) { format!("resource.kubernetes.io/{name}") } else { name.to_owned() }
}
