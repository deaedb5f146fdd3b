//! Tasks for developers of this repository: `cargo xtask <task>`.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod campaign;
mod chart;
mod e2e;
mod image;
mod kubevirt;
mod programs;
mod proto;
mod soak;
mod vm;

use std::env;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask <task>

tasks:
  proto          generate the code in crates/kubelet-api/src from crates/kubelet-api/proto
  proto --check  check that the generated code is up to date
  e2e            bring up a real cluster, run all tests on it and take it down
  e2e up [--all-dra-gates] [--kubelet RELEASE]
                 bring up a single-node cluster built from source, optionally with all DRA feature gates or an older kubelet
  e2e down       take the cluster down
  e2e test [NAME…]
                 run the tests on the running cluster, or only those whose names contain NAME
  e2e older RELEASE
                 the same as e2e with a kubelet of an older release, and the tests that support it
  e2e start-times
                 bring the cluster up, start 200 pods in turn with metadata and without, and print how long they took
  e2e unfit      print why the cluster cannot run on this host; nothing if it can
  e2e versions   print the versions of the cluster's components
  e2e check      bring the cluster up, run a pod and take it down; fail if that leaves anything on the host
  vm [NAME…]     run the tests on a real kernel in a virtual machine, or only those whose names contain NAME
  vm unfit       print why the virtual machine cannot run on this host; nothing if it can
  image [NAME…] [--repository PREFIX] [--tag TAG] [--target TRIPLE] [--output DIR]
                 build static programs, and write OCI images and SBOMs of them: drakkar-net, drakkar-pci, drakkar, or those named
  image --binary PATH --name NAME --output FILE.tar [--busybox]
                 write an OCI image of a program, optionally with busybox, for `ctr images import`
  chart          write what is made from the Helm chart in deploy/helm: manifests, and its copy of the alert rules; needs Go
  chart --check  lint the chart, render it with several values, and check that wrong ones are refused and the files are up to date
  test PACKAGE TARGET [--features FEATURES] [-- ARGUMENTS…]
                 run one test program of the workspace, without the rebuild of `cargo test -p`; fail if no test is selected
  campaign [NAME] [--seconds N]
                 run the randomized tests of drivers and of the command, or one of them, for N seconds each (default 600)
  soak [--minutes N] [--cluster]
                 start and end pods for N minutes (default 60) on the embedded node, or on the real cluster, while what serves
                 them is killed and replaced; fail if memory, descriptors, files or objects grow
  book           write the docs as a book with search to target/book; fail if a link leads nowhere
  pictures       write the pictures of the command in docs/pictures
  screenshots    write the pictures of a driver's page in docs/pictures; needs Chromium
  kubevirt       compare with KubeVirt's own code: webhooks, pod, host devices, domain; needs Go and a C compiler
  kubevirt --bless
                 record what KubeVirt answers in crates/kubevirt/testdata/goldens
  bench          compare a driver with one on Kubernetes' Go framework, and write the plot to docs/performance.svg
  bench --help   list the options of the benchmark";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["proto"] => proto::generate(),
        ["proto", "--check"] => proto::check(),
        ["e2e", "up", ref options @ ..] => e2e::up(e2e::options(options)?),
        ["e2e", "older", release] => e2e::older(release),
        ["e2e", "down"] => e2e::down(),
        ["e2e", "versions"] => e2e::versions(),
        ["e2e"] => e2e::all(),
        ["e2e", "test", ref filter @ ..] => e2e::test(filter),
        ["e2e", "start-times"] => e2e::start_times(),
        ["e2e", "unfit"] => e2e::unfit(),
        ["e2e", "check"] => e2e::check(),
        ["vm", "unfit"] => {
            vm::unfit();
            Ok(())
        }
        ["vm", ref filter @ ..] => vm::test(filter),
        ["image", ref arguments @ ..] => image::image(arguments),
        ["chart"] => chart::write(),
        ["chart", "--check"] => chart::check(),
        ["test", ref arguments @ ..] => programs::test(arguments),
        ["campaign", ref arguments @ ..] => campaign::run(arguments),
        ["soak", ref arguments @ ..] => soak::run(arguments),
        ["book"] => book::run(),
        ["pictures"] => programs::write_pictures(),
        ["screenshots"] => programs::write_screenshots(),
        ["kubevirt", ref arguments @ ..] => kubevirt::run(arguments),
        ["bench", ref more @ ..] => bench::run(more),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
