//! An API server without the rest of a cluster: etcd and kube-apiserver on loopback addresses, for measurements.
//!
//! It needs neither root nor namespaces, and nothing but the caller's requests keeps it busy.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries;
use crate::certificates;
use crate::error::{IoContext, Result};
use crate::paths::ClusterPaths;

/// The commands that start an API server, and the kubeconfig of its administrator.
#[derive(Debug)]
pub struct ApiServerAlone {
    /// Starts etcd.
    pub etcd: Command,
    /// Starts kube-apiserver, which waits for etcd.
    pub api_server: Command,
    /// The kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
}

impl ApiServerAlone {
    /// Builds the programs if they are missing or outdated, and creates certificates and configuration in a directory, which
    /// also gets etcd's data and the logs. The ports are free ones.
    ///
    /// # Errors
    ///
    /// There is no Go toolchain, the build fails, or a file cannot be written.
    pub fn new(paths: &ClusterPaths, directory: &Path) -> Result<Self> {
        let [etcd, api_server] = binaries::build_api_server(paths)?;
        let [client_port, peer_port, secure_port] = free_ports()?;
        let server = format!("https://{}:{secure_port}", Ipv4Addr::LOCALHOST);
        certificates::create_for_api_server(directory, &server)?;
        let path = |name: &str| directory.join(name).display().to_string();
        let clients = format!("http://{}:{client_port}", Ipv4Addr::LOCALHOST);
        let etcd = logged(
            Command::new(etcd)
                .arg(format!("--data-dir={}", path("etcd")))
                .arg(format!("--listen-client-urls={clients}"))
                .arg(format!("--advertise-client-urls={clients}"))
                .arg(format!("--listen-peer-urls=http://{}:{peer_port}", Ipv4Addr::LOCALHOST))
                // The data does not have to survive a crash of the host.
                .arg("--unsafe-no-fsync"),
            &directory.join("etcd.log"),
        )?;
        let api_server = logged(
            Command::new(api_server)
                .arg(format!("--etcd-servers={clients}"))
                .arg(format!("--bind-address={}", Ipv4Addr::LOCALHOST))
                .arg(format!("--secure-port={secure_port}"))
                // Nobody looks the server up in the cluster, and a loopback address would be refused there.
                .arg(format!("--advertise-address={}", Ipv4Addr::LOCALHOST))
                .arg("--endpoint-reconciler-type=none")
                .arg("--service-cluster-ip-range=10.96.0.0/16")
                .arg(format!("--tls-cert-file={}", path("kube-apiserver.crt")))
                .arg(format!("--tls-private-key-file={}", path("kube-apiserver.key")))
                .arg(format!("--client-ca-file={}", path("ca.crt")))
                .arg("--service-account-issuer=https://kubernetes.default.svc")
                .arg(format!("--service-account-signing-key-file={}", path("service-accounts.key")))
                .arg(format!("--service-account-key-file={}", path("service-accounts.pub")))
                .arg("--authorization-mode=Node,RBAC")
                .arg("--enable-admission-plugins=NodeRestriction"),
            &directory.join("kube-apiserver.log"),
        )?;
        Ok(Self { etcd, api_server, kubeconfig: directory.join("admin.kubeconfig") })
    }
}

/// Lets a command write its output to a file.
fn logged(command: &mut Command, log: &Path) -> Result<Command> {
    let context = || format!("create {}", log.display());
    let output = File::create(log).with_context(context)?;
    let mut logged = Command::new(command.get_program());
    logged.args(command.get_args()).stdout(output.try_clone().with_context(context)?).stderr(output);
    Ok(logged)
}

/// Returns ports that are free now.
fn free_ports() -> Result<[u16; 3]> {
    let context = || "find a free port".to_owned();
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).with_context(context);
    // Bound at the same time, so that they differ.
    let listeners = [bind()?, bind()?, bind()?];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().with_context(context)?.port();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ() {
        let [first, second, third] = free_ports().unwrap();
        assert!(first != second && second != third && third != first);
    }
}
