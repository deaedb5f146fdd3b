//! The cluster's certificate authority, the certificates of its components, and their kubeconfigs.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::json;

use crate::error::{IoContext, Result};
use crate::paths::{ClusterPaths, SERVICE_ADDRESS};

/// The users that get a kubeconfig: its file name, and the user and group that the API server sees.
fn users(node: &str) -> [(&'static str, String, Option<&'static str>); 4] {
    [
        ("admin", "drakkar-e2e-admin".to_owned(), Some("system:masters")),
        ("kube-controller-manager", "system:kube-controller-manager".to_owned(), None),
        ("kube-scheduler", "system:kube-scheduler".to_owned(), None),
        ("kubelet", format!("system:node:{node}"), Some("system:nodes")),
    ]
}

/// Creates all certificates, keys and kubeconfigs in the state directory.
pub(crate) fn create(paths: &ClusterPaths, node: &str) -> Result<()> {
    let directory = paths.certificates();
    let (_, address) = paths.link();
    let authority = Authority::new()?;
    write(&directory.join("ca.crt"), &authority.pem)?;

    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let addresses = [Ipv4Addr::LOCALHOST, SERVICE_ADDRESS, address];
    let apiserver = authority.issue("kube-apiserver", None, &names, &addresses)?;
    let kubelet = authority.issue(node, None, &[node], &[address])?;
    let to_kubelet = authority.issue("kube-apiserver-kubelet-client", Some("system:masters"), &[], &[])?;
    for (name, leaf) in [("kube-apiserver", apiserver), ("kubelet", kubelet), ("kube-apiserver-to-kubelet", to_kubelet)]
    {
        write(&directory.join(format!("{name}.crt")), &leaf.certificate)?;
        write(&directory.join(format!("{name}.key")), &leaf.key)?;
    }

    let service_accounts = KeyPair::generate()?;
    write(&directory.join("service-accounts.key"), &service_accounts.serialize_pem())?;
    write(&directory.join("service-accounts.pub"), &service_accounts.public_key_pem())?;

    for (file, user, group) in users(node) {
        let leaf = authority.issue(&user, group, &[], &[])?;
        for (suffix, content) in [("crt", &leaf.certificate), ("key", &leaf.key)] {
            write(&directory.join(format!("{file}-client.{suffix}")), content)?;
        }
        write(&paths.kubeconfig(file), &kubeconfig(&directory, file, &format!("https://{address}")))?;
    }
    Ok(())
}

/// Creates the certificates and keys of an API server on a loopback address, and the kubeconfig of its administrator:
/// `ca.crt`, `kube-apiserver.crt` and `.key`, `service-accounts.key` and `.pub`, `admin.kubeconfig`.
pub(crate) fn create_for_api_server(directory: &Path, server: &str) -> Result<()> {
    let authority = Authority::new()?;
    let own = authority.issue("kube-apiserver", None, &["localhost"], &[Ipv4Addr::LOCALHOST])?;
    let service_accounts = KeyPair::generate()?;
    let admin = authority.issue("drakkar-admin", Some("system:masters"), &[], &[])?;
    for (name, content) in [
        ("ca.crt", &authority.pem),
        ("kube-apiserver.crt", &own.certificate),
        ("kube-apiserver.key", &own.key),
        ("service-accounts.key", &service_accounts.serialize_pem()),
        ("service-accounts.pub", &service_accounts.public_key_pem()),
        ("admin-client.crt", &admin.certificate),
        ("admin-client.key", &admin.key),
        ("admin.kubeconfig", &kubeconfig(directory, "admin", server)),
    ] {
        write(&directory.join(name), content)?;
    }
    Ok(())
}

/// A kubeconfig in JSON, which is valid YAML.
fn kubeconfig(certificates: &Path, user: &str, server: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {
            "server": server,
            "certificate-authority": certificates.join("ca.crt"),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate": certificates.join(format!("{user}-client.crt")),
            "client-key": certificates.join(format!("{user}-client.key")),
        }}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
        "current-context": "e2e",
    });
    format!("{config:#}\n")
}

/// A certificate and its key, in PEM.
struct Leaf {
    certificate: String,
    key: String,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "drakkar-e2e");
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Issues a certificate for clients and servers. Kubernetes takes the user from its common name, and the group from
    /// its organization.
    fn issue(&self, user: &str, group: Option<&str>, names: &[&str], addresses: &[Ipv4Addr]) -> Result<Leaf> {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(IpAddr::V4(*address))));
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Leaf { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Writes a file that only its owner can read, since most of them are keys.
fn write(path: &Path, content: &str) -> Result<()> {
    let context = || format!("write {}", path.display());
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).with_context(context)?;
    file.write_all(content.as_bytes()).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_names_the_node_and_the_users_own_files() {
        let text = kubeconfig(Path::new("/s/pki"), "kubelet", "https://198.18.0.2");
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://198.18.0.2");
        assert_eq!(config["users"][0]["user"]["client-key"], "/s/pki/kubelet-client.key");
    }

    #[test]
    fn certificates_are_issued_for_users_in_groups() {
        let leaf = Authority::new().unwrap().issue("system:node:n", Some("system:nodes"), &["n"], &[]).unwrap();
        assert!(leaf.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(leaf.key.starts_with("-----BEGIN PRIVATE KEY-----"));
    }
}
