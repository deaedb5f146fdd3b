//! What the repository needs done now and then, by `cargo xtask <task>`.

#![forbid(unsafe_code)]

mod bench;
mod campaign;
mod e2e;
mod proto;

use std::env;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask <task>

tasks:
  proto          make the code in crates/kubelet-api/src from the files in crates/kubelet-api/proto
  proto --check  only say whether that code is what those files give
  e2e            all of it: up, test, down
  e2e up [--all-dra-gates] [--kubelet RELEASE]
                 bring up a real cluster of one node, from source; with all there is of DRA, or with an older kubelet
  e2e down       take it down
  e2e test [NAME…]
                 run the tests on it, or those with these names
  e2e older RELEASE
                 with a kubelet of that release: up, the tests that are for it, down
  e2e unfit      say why this machine cannot run it, if it cannot
  e2e versions   say which versions its components have
  e2e check      bring it up, run a pod and take it down, and fail when that leaves anything on the machine
  image --binary PATH --name NAME --output FILE.tar [--busybox]
                 make an OCI image of a program, with busybox to look around; `ctr images import` takes it
  campaign [NAME] [--seconds N]
                 run the randomized attacks on drivers and on the command, or one of them, for 600 seconds each or for N
  bench          measure a driver beside one on Kubernetes' Go framework; plots to docs/performance.svg
  bench --help   what else it can be told";

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
        ["e2e", "unfit"] => e2e::unfit(),
        ["e2e", "check"] => e2e::check(),
        ["image", ref arguments @ ..] => e2e::image(arguments),
        ["campaign", ref arguments @ ..] => campaign::run(arguments),
        ["bench", ref more @ ..] => bench::run(more),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
