//! Benchmarks of decoding, encoding, validating, merging, and reading from disk.
//!
//! The file is realistic: one device with eight attributes, about 1,080 bytes per version. Beside each benchmark of
//! decoding, `bare_serde_json` parses only the document that is used into the same struct.
//!
//! The promise: [`decode`](drakkar_metadata::decode()) takes at most twice as long as bare `serde_json`, although it
//! identifies a document before it uses it. Versions after the one that is used cost nothing, because they are not read;
//! skipping an unknown version before it takes less time than parsing it with bare `serde_json`.
//!
//! `cargo bench -p drakkar-metadata`

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use drakkar_metadata::path::ContainerFile;
use drakkar_metadata::{Metadata, Query, Reader, Version, Versions, encode, v1alpha1, v1beta1};
use tempfile::TempDir;

fn main() {
    divan::main();
}

const DRIVER: &str = "gpu.example.com";

/// The file that all benchmarks start from. `drakkar-bench` measures it as well.
const ONE_DEVICE: &[u8] = include_bytes!("one_device.json");

fn one_device() -> Metadata {
    drakkar_metadata::decode(ONE_DEVICE).unwrap().metadata
}

fn claim_with(claim: usize, request: &str, driver: &str) -> Metadata {
    let mut metadata = one_device();
    metadata.metadata.name = format!("claim-{claim}");
    metadata.metadata.uid = format!("5f3c1e0a-77a4-4f0e-8a55-{claim:012}");
    metadata.requests[0].name = request.into();
    metadata.requests[0].devices[0].driver = driver.into();
    metadata
}

fn versions(text: &str) -> Versions {
    text.parse().unwrap()
}

fn file_in(versions_text: &str) -> Vec<u8> {
    encode(&one_device(), &versions(versions_text))
}

#[divan::bench_group(sample_size = 100)]
mod decode {
    use super::*;

    mod v1alpha1_alone {
        use super::*;

        #[divan::bench]
        fn decode(bencher: Bencher<'_, '_>) {
            decoding(bencher, &file_in("v1alpha1"));
        }

        #[divan::bench]
        fn bare_serde_json(bencher: Bencher<'_, '_>) {
            bare::<v1alpha1::DeviceMetadata>(bencher, &file_in("v1alpha1"));
        }
    }

    mod v1beta1_then_v1alpha1 {
        use super::*;

        #[divan::bench]
        fn decode(bencher: Bencher<'_, '_>) {
            decoding(bencher, &file_in("v1beta1,v1alpha1"));
        }

        #[divan::bench]
        fn bare_serde_json(bencher: Bencher<'_, '_>) {
            bare::<v1beta1::DeviceMetadata>(bencher, &file_in("v1beta1"));
        }
    }

    mod unknown_then_v1alpha1 {
        use super::*;

        #[divan::bench]
        fn decode(bencher: Bencher<'_, '_>) {
            let newer = String::from_utf8(file_in("v1beta1")).unwrap().replace("k8s.io/v1beta1", "k8s.io/v2");
            decoding(bencher, &[newer.into_bytes(), file_in("v1alpha1")].concat());
        }

        #[divan::bench]
        fn bare_serde_json(bencher: Bencher<'_, '_>) {
            bare::<v1alpha1::DeviceMetadata>(bencher, &file_in("v1alpha1"));
        }
    }

    fn decoding(bencher: Bencher<'_, '_>, file: &[u8]) {
        bencher.counter(BytesCount::of_slice(file)).bench(|| drakkar_metadata::decode(black_box(file)).unwrap());
    }

    fn bare<T: serde::de::DeserializeOwned>(bencher: Bencher<'_, '_>, document: &[u8]) {
        let parse = || serde_json::from_slice::<T>(black_box(document)).unwrap();
        bencher.counter(BytesCount::of_slice(document)).bench(parse);
    }
}

#[divan::bench(name = "encode", args = ["v1alpha1", "v1beta1,v1alpha1"], sample_size = 100)]
fn encoding(bencher: Bencher<'_, '_>, names: &str) {
    let metadata = one_device();
    let versions = versions(names);
    bencher
        .counter(BytesCount::of_slice(&encode(&metadata, &versions)))
        .bench(|| encode(black_box(&metadata), black_box(&versions)));
}

#[divan::bench(sample_size = 100)]
fn validate(bencher: Bencher<'_, '_>) {
    let metadata = one_device();
    bencher.bench(|| drakkar_metadata::validate(black_box(&metadata)).unwrap());
}

/// Several drivers with one device each for one request.
#[divan::bench(args = [2, 8], sample_size = 100)]
fn merge(bencher: Bencher<'_, '_>, drivers: usize) {
    let files: Vec<Metadata> =
        (0..drivers).map(|driver| claim_with(0, "gpu", &format!("driver-{driver}.example.com"))).collect();
    bencher.counter(ItemsCount::new(drivers)).bench(|| drakkar_metadata::merge(black_box(&files)));
}

mod read {
    use super::*;

    #[divan::bench]
    fn one_file(bencher: Bencher<'_, '_>) {
        let container = Container::with_claims(1, 1, Layouts::Kubernetes);
        let reader = container.reader();
        let path = kubernetes_path(0, "request-0");
        bencher.bench(|| reader.read_file(black_box(&path)).unwrap());
    }

    #[divan::bench]
    fn by_query(bencher: Bencher<'_, '_>) {
        let container = Container::with_claims(1, 1, Layouts::Kubernetes);
        let reader = container.reader();
        let query = Query::claim("claim-0", "request-0").unwrap();
        bencher.bench(|| reader.read(black_box(&query)).unwrap());
    }

    /// 250 claims of 4 requests each: 1,000 files, or twice as many paths to them.
    #[divan::bench(args = [Layouts::Kubernetes, Layouts::Both], sample_count = 50)]
    fn discover_1000_files(bencher: Bencher<'_, '_>, layouts: Layouts) {
        const FILES: usize = 1000;
        let container = Container::with_claims(250, 4, layouts);
        let reader = container.reader();
        let found = reader.discover();
        assert_eq!((found.files.len(), found.problems.len()), (FILES, 0));
        assert!(found.files.iter().all(|file| file.content.is_ok()));
        bencher.counter(ItemsCount::new(FILES)).bench(|| reader.discover());
    }
}

/// A temporary root of a container with metadata files.
struct Container(TempDir);

#[derive(Debug, Clone, Copy)]
enum Layouts {
    /// The Kubernetes layout alone.
    Kubernetes,
    /// The same files in the KEP's layout as well.
    Both,
}

impl Container {
    fn with_claims(claims: usize, requests: usize, layouts: Layouts) -> Self {
        let container = Self(tempfile::tempdir().unwrap());
        let versions = Versions::from(Version::V1Alpha1);
        for claim in 0..claims {
            for request in (0..requests).map(|request| format!("request-{request}")) {
                let file = container.create_parent(&kubernetes_path(claim, &request));
                fs::write(&file, encode(&claim_with(claim, &request, DRIVER), &versions)).unwrap();
                if let Layouts::Both = layouts {
                    fs::hard_link(&file, container.create_parent(&kep_path(claim, &request))).unwrap();
                }
            }
        }
        container
    }

    fn reader(&self) -> Reader {
        Reader::with_root(self.0.path()).unwrap()
    }

    /// Creates the parent directory of a file, and returns the file's path outside the container.
    fn create_parent(&self, path: &Path) -> PathBuf {
        let outside = self.0.path().join(path.strip_prefix("/").unwrap());
        fs::create_dir_all(outside.parent().unwrap()).unwrap();
        outside
    }
}

fn kubernetes_path(claim: usize, request: &str) -> PathBuf {
    let claim = format!("claim-{claim}").parse().unwrap();
    let request = request.parse().unwrap();
    ContainerFile::Claim { claim, request, driver: DRIVER.parse().unwrap() }.path()
}

fn kep_path(claim: usize, request: &str) -> PathBuf {
    let claim = format!("claim-{claim}").parse().unwrap();
    let request = request.parse().unwrap();
    ContainerFile::Kep { claim, request, driver: DRIVER.parse().unwrap() }.path()
}
