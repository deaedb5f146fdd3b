//! Decodes claims, and converts every version of the API to v1.

use drakkar_client::{Bytes, DraVersion, to_v1};

use super::FoundClaim;
use crate::claim::Summary;

/// Decodes a claim of any version.
pub(super) fn claim(body: Bytes, version: DraVersion) -> Result<FoundClaim, serde_json::Error> {
    if version.has_v1_form() {
        return Ok((Summary::decode(&body)?, body));
    }
    let mut object: serde_json::Value = serde_json::from_slice(&body)?;
    to_v1("ResourceClaim", &mut object);
    let body = Bytes::from(serde_json::to_vec(&object)?);
    Ok((Summary::decode(&body)?, body))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The fields of a plain request move into `exactly`.
    #[test]
    fn a_v1beta1_claim_is_converted_to_v1() {
        let of = |requests: serde_json::Value| {
            let metadata = json!({"name": "gpus", "namespace": "default", "uid": "u-1"});
            json!({"metadata": metadata, "spec": {"devices": {"requests": requests}}}).to_string().into_bytes()
        };
        let subrequests = json!([{"name": "small", "deviceClassName": "gpus"}]);
        let old = of(json!([
            {"name": "gpu", "deviceClassName": "gpus", "count": 2, "adminAccess": true},
            {"name": "any", "firstAvailable": subrequests},
        ]));
        let new = of(json!([
            {"name": "gpu", "exactly": {"deviceClassName": "gpus", "count": 2, "adminAccess": true}},
            {"name": "any", "firstAvailable": subrequests},
        ]));
        let value = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap();
        let (_, converted) = claim(old.into(), DraVersion::V1beta1).unwrap();
        assert_eq!(value(&converted), value(&claim(new.into(), DraVersion::V1).unwrap().1));
    }
}
