//! All measurements, as a `cargo bench` target. With `-- --test` each runs once on a small scale; it fails if something cannot
//! be measured, if publishing sends more requests than promised, or if a claim costs more system calls or allocations.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to measure")]

use std::path::Path;

use drakkar_bench::cluster::Cluster;
use drakkar_bench::compare::{self, Comparison};
use drakkar_bench::floor::FLOOR;
use drakkar_bench::framework::{Framework, build_go, build_go_with_nri};
use drakkar_bench::table::Table;
use drakkar_bench::{counts, net, nri, publish};

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let mut frameworks = vec![Framework::ours(env!("CARGO_BIN_EXE_bench-driver").into())];
    match build_go(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(program) => frameworks.push(Framework::go(program)),
        Err(reason) => println!("skipped: the Go framework: {reason}"),
    }
    let comparison = Comparison { frameworks, disk: std::env::temp_dir() };
    let compare_scale = if is_test { compare::Scale::TEST } else { compare::Scale::FULL };
    let publish_scale = if is_test { publish::Scale::TEST } else { publish::Scale::FULL };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (both, floor) = runtime.block_on(compare::run(compare_scale, &comparison)).split(FLOOR);
    let programs = [env!("CARGO_BIN_EXE_bench-driver"), env!("CARGO_BIN_EXE_bench-counted")].map(Path::new);
    let counts = runtime.block_on(counts::measure(programs[0], programs[1], &Cluster::start(None)));
    println!("a claim that is prepared and unprepared: {counts:?}");
    if counts.system_calls.is_none() {
        println!("skipped: the count of system calls: perf is not installed, or may not count them here");
    }
    let excess = counts.excess(&counts::LIMITS);
    assert!(excess.is_empty(), "{}", excess.join("; "));
    let mut table = Table::default();
    for _ in 0..compare_scale.rounds {
        runtime.block_on(publish::round(publish_scale, &comparison.frameworks[0], &mut table));
    }
    let nri_scale = if is_test { nri::Scale::TEST } else { nri::Scale::FULL };
    let mut nri_table = Table::default();
    let mut net_table = Table::default();
    match build_go_with_nri(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(go) => {
            let ours = nri::NriPlugin::ours(env!("CARGO_BIN_EXE_bench-nri").into());
            for plugin in [ours, nri::NriPlugin::go(go.clone())] {
                nri::round(nri_scale, &go, &plugin, &mut nri_table);
            }
            let programs = net::Programs { driver: env!("CARGO_BIN_EXE_bench-net").into(), runtime: go };
            let scale = if is_test { net::Scale::TEST } else { net::Scale::FULL };
            let cluster = Cluster::start(None);
            if let Err(reason) = runtime.block_on(net::round(scale, &programs, &cluster, &mut net_table)) {
                println!("skipped: {reason}");
            }
        }
        Err(reason) => println!("skipped: NRI: {reason}"),
    }
    let names: Vec<_> = comparison.frameworks.iter().map(|framework| framework.name).collect();
    if is_test {
        for name in &names {
            let count = both.rows().iter().filter(|row| row.of(name).is_some()).count();
            println!("{count} figures of {name} were measured");
        }
        println!("{} figures of the floor and {} of publishing were measured", floor.rows().len(), table.rows().len());
        let counts = (nri_table.rows().len(), net_table.rows().len());
        println!("{} figures of NRI and {} of the network driver were measured", counts.0, counts.1);
    } else {
        println!("{}\n\n{}\n{}", compare::host(), both.markdown(&names), floor.markdown(&[FLOOR]));
        println!("{}", table.markdown(&names[..1]));
        println!("{}\n{}", nri_table.markdown(&names), net_table.markdown(&[net::NAME]));
    }
}
