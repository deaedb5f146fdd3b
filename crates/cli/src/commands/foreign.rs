//! Recognizes documents that are not device metadata, to say what they are.

use drakkar_metadata::KIND;
use serde::Deserialize;

/// A document of another kind, or in another format, than device metadata.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    is_yaml: bool,
    api_version: String,
    kind: String,
}

impl Foreign {
    /// Looks at the first document of a file. Returns `None` if it may be device metadata.
    pub(crate) fn find(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        if text.trim_start().starts_with(['{', '[']) {
            let header = serde_json::Deserializer::from_slice(bytes).into_iter::<Header>().next()?.ok()?;
            let foreign = Self { is_yaml: false, api_version: header.api_version, kind: header.kind };
            return (!foreign.kind.is_empty() && foreign.kind != KIND).then_some(foreign);
        }
        // Enough of YAML for an object of Kubernetes.
        let field = |name: &str| {
            let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            values.map(|value| value.trim().trim_matches(['"', '\'']).to_owned()).next()
        };
        Some(Self { is_yaml: true, api_version: field("apiVersion").unwrap_or_default(), kind: field("kind")? })
    }

    /// Says what the document is.
    pub(crate) fn describe(&self) -> String {
        let Self { is_yaml, api_version, kind } = self;
        let version = if api_version.is_empty() { String::new() } else { format!(" ({api_version})") };
        if *is_yaml && kind == KIND {
            return format!("is a {kind}{version} in YAML; metadata files are JSON");
        }
        format!("is a {kind}{version}, not device metadata, which is JSON of kind {KIND}")
    }

    /// Returns what to do instead.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "Pod" => Some("the metadata of a pod is in its containers: run `drakkar list` there"),
            "VirtualMachine" | "VirtualMachineInstance" if cfg!(feature = "kubevirt") => {
                Some("`drakkar kubevirt validate FILE` validates it")
            }
            "ResourceClaim" | "ResourceClaimTemplate" | "DeviceClass" if cfg!(feature = "net") => {
                Some("`drakkar net validate FILE` validates its parameters for drakkar-net")
            }
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Header {
    api_version: String,
    kind: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_kubernetes_are_recognized() {
        for (text, expected) in [
            ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "is a Pod (v1), not"),
            ("# comment\n---\nkind: \"Pod\"\n", "is a Pod, not"),
            ("{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}", "is a Pod (v1), not"),
            ("kind: DeviceMetadata\n", "is a DeviceMetadata in YAML"),
        ] {
            let described = Foreign::find(text.as_bytes()).map(|foreign| foreign.describe()).unwrap_or_default();
            assert!(described.starts_with(expected), "{text}: {described}");
        }
    }

    #[test]
    fn what_may_be_metadata_is_left_to_the_decoder() {
        for text in ["", "{", "[]", "{\"kind\": \"DeviceMetadata\"}", "{\"a\": 1}", "some text", "  kind: Pod\n"] {
            assert_eq!(Foreign::find(text.as_bytes()), None, "{text}");
        }
    }
}
