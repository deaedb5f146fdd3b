//! Reviews per second of the webhook on one core, over TLS connections that stay open.
//!
//! The server has one thread, and its CPU time is what counts: reviews per second of CPU time are what one core can do,
//! however busy the machine is. Run it with `cargo bench -p drakkar-kubevirt --bench webhook`; arguments are the number
//! of connections and of reviews.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use drakkar_kubevirt::webhook::{Options, Policy, Webhook, review};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    // Cargo adds `--bench`; a test run of benches adds `--test`, for which one round is enough.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let connections = numbers.next().unwrap_or(8);
    let reviews = numbers.next().unwrap_or(if is_test { connections } else { 40_000 });
    let body = Bytes::from(body());

    let alone = alone(&body, reviews)?;
    let (wall, cpu) = over_tls(&body, connections, reviews)?;
    let rate = |time: Duration| reviews as f64 / time.as_secs_f64();
    println!("a review has {} bytes and 8 devices", body.len());
    println!("answered without a connection: {:>9.0} reviews/s ({:.1} us each)", rate(alone), micros(alone, reviews));
    println!(
        "over {connections} TLS connections:      {:>9.0} reviews/s of one core ({:.1} us of CPU time each), {:.0}/s by the clock",
        rate(cpu),
        micros(cpu, reviews),
        rate(wall)
    );
    Ok(())
}

fn micros(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

fn alone(body: &[u8], reviews: usize) -> Result<Duration, Failure> {
    let policy = Policy::default();
    let start = cpu_time();
    for _ in 0..reviews {
        std::hint::black_box(review(std::hint::black_box(body), &policy)?);
    }
    Ok(cpu_time() - start)
}

/// The time by the clock, and the CPU time of the server's thread.
fn over_tls(body: &Bytes, connections: usize, reviews: usize) -> Result<(Duration, Duration), Failure> {
    let directory = tempfile::tempdir()?;
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
    std::fs::write(&certificate, cert.pem())?;
    std::fs::write(&key, signing_key.serialize_pem())?;

    let stop = CancellationToken::new();
    let (started, address) = mpsc::channel();
    let server = std::thread::spawn({
        let stop = stop.clone();
        move || -> Result<Duration, Failure> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let options = Options::new(([127, 0, 0, 1], 0).into(), certificate, key);
                let webhook = Webhook::bind(options, Policy::default()).await?;
                started.send(webhook.address())?;
                webhook.serve(stop).await?;
                Ok(cpu_time())
            })
        }
    });
    let address = address.recv()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wall = runtime.block_on(load(address, cert.der(), body, connections, reviews / connections))?;
    stop.cancel();
    let cpu = server.join().map_err(|_panic| "the server panicked")??;
    Ok((wall, cpu))
}

async fn load(
    address: SocketAddr,
    certificate: &CertificateDer<'static>,
    body: &Bytes,
    connections: usize,
    reviews: usize,
) -> Result<Duration, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = TlsConnector::from(Arc::new(config));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        let (tls, body) = (tls.clone(), body.clone());
        clients.spawn(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = tls.connect(ServerName::try_from("localhost")?, stream).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            for _ in 0..reviews {
                let request = Request::post("/validate")
                    .header("host", "localhost")
                    .header("content-type", "application/json")
                    .body(Full::new(body.clone()))?;
                sender.ready().await?;
                let answer = sender.send_request(request).await?;
                let allowed = answer.into_body().collect().await?.to_bytes();
                if !allowed.windows(14).any(|text| text == b"\"allowed\":true") {
                    return Err(Failure::from(String::from_utf8_lossy(&allowed).into_owned()));
                }
            }
            drop(sender);
            connection.await??;
            Ok::<_, Failure>(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(start.elapsed())
}

/// The CPU time of the thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// A review as the API server sends one: a VMI with eight devices and what users and KubeVirt add.
fn body() -> String {
    let gpu =
        |index: usize| json!({"name": format!("gpu-{index}"), "claimName": "gpus", "requestName": format!("r{index}")});
    let disk = |index: usize| json!({"name": format!("disk-{index}"), "disk": {"bus": "virtio"}, "serial": "CVLY623300HK240D"});
    let volume = |index: usize| json!({"name": format!("disk-{index}"), "persistentVolumeClaim": {"claimName": format!("pvc-{index}")}});
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance"},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"},
            "requestKind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance"},
            "requestResource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"},
            "name": "train-0",
            "namespace": "lab",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kubevirt:kubevirt-controller",
                "uid": "e1a5b7c2-7f55-4e2f-9d8c-0123456789ab",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kubevirt", "system:authenticated"],
            },
            "object": {
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachineInstance",
                "metadata": {
                    "name": "train-0",
                    "namespace": "lab",
                    "creationTimestamp": null,
                    "annotations": {"kubevirt.io/latest-observed-api-version": "v1", "kubevirt.io/storage-observed-api-version": "v1"},
                    "labels": {"kubevirt.io/domain": "train-0", "app": "train"},
                    "finalizers": ["kubevirt.io/virtualMachineControllerFinalize", "foregroundDeleteVirtualMachine"],
                    "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "train-0", "uid": "7d1f", "controller": true}],
                },
                "spec": {
                    "architecture": "amd64",
                    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}],
                    "domain": {
                        "cpu": {"cores": 32, "sockets": 2, "threads": 1, "model": "host-model", "dedicatedCpuPlacement": true},
                        "memory": {"guest": "256Gi", "hugepages": {"pageSize": "1Gi"}},
                        "resources": {"requests": {"memory": "256Gi"}},
                        "machine": {"type": "q35"},
                        "features": {"acpi": {"enabled": true}, "smm": {"enabled": true}},
                        "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "bootloader": {"efi": {}}},
                        "devices": {
                            "gpus": (0..8).map(gpu).collect::<Vec<_>>(),
                            "disks": (0..4).map(disk).collect::<Vec<_>>(),
                            "interfaces": [{"name": "default", "masquerade": {}, "model": "virtio"}],
                            "rng": {},
                        },
                    },
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": (0..4).map(volume).collect::<Vec<_>>(),
                    "terminationGracePeriodSeconds": 180,
                    "evictionStrategy": "None",
                },
                "status": {"phase": "Pending"},
            },
            "oldObject": null,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
    .to_string()
}
