//! All measurements, as a `cargo bench` target. With `-- --test` each runs once on a small scale; it fails if something cannot
//! be measured, or if publishing sends more requests than promised.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to measure")]

use std::path::Path;

use drakkar_bench::compare::{self, Comparison};
use drakkar_bench::floor::FLOOR;
use drakkar_bench::framework::{Framework, build_go, build_go_with_nri};
use drakkar_bench::table::Table;
use drakkar_bench::{nri, publish};

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
    let mut table = Table::default();
    for _ in 0..compare_scale.rounds {
        runtime.block_on(publish::round(publish_scale, &comparison.frameworks[0], &mut table));
    }
    let nri_scale = if is_test { nri::Scale::TEST } else { nri::Scale::FULL };
    let mut nri_table = Table::default();
    match build_go_with_nri(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(go) => {
            let ours = nri::NriPlugin::ours(env!("CARGO_BIN_EXE_bench-nri").into());
            for plugin in [ours, nri::NriPlugin::go(go.clone())] {
                nri::round(nri_scale, &go, &plugin, &mut nri_table);
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
        println!("{} figures of NRI were measured", nri_table.rows().len());
    } else {
        println!("{}\n\n{}\n{}", compare::host(), both.markdown(&names), floor.markdown(&[FLOOR]));
        println!("{}", table.markdown(&names[..1]));
        println!("{}", nri_table.markdown(&names));
    }
}
