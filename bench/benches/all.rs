//! Everything that is measured, as `cargo bench` runs it. With `-- --test` everything once and little of it: what cannot be
//! measured fails, and so does publishing that sends a request too many.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to measure")]

use std::path::Path;

use drakkar_bench::compare::{self, Contest};
use drakkar_bench::floor::FLOOR;
use drakkar_bench::framework::{Framework, build_go};
use drakkar_bench::publish;
use drakkar_bench::table::Table;

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let mut frameworks = vec![Framework::ours(env!("CARGO_BIN_EXE_bench-driver").into())];
    match build_go(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(program) => frameworks.push(Framework::go(program)),
        Err(why) => println!("skipped: everything about the Go framework: {why}"),
    }
    let contest = Contest { frameworks, disk: std::env::temp_dir() };
    let (compared, published) = match is_test {
        true => (compare::Scale::TEST, publish::Scale::TEST),
        false => (compare::Scale::FULL, publish::Scale::FULL),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (both, floor) = runtime.block_on(compare::run(compared, &contest)).split(FLOOR);
    let mut table = Table::default();
    for _ in 0..compared.rounds {
        runtime.block_on(publish::round(published, &contest.frameworks[0], &mut table));
    }
    let names: Vec<_> = contest.frameworks.iter().map(|framework| framework.name).collect();
    if is_test {
        for name in &names {
            let can = both.rows().iter().filter(|row| row.of(name).is_some()).count();
            println!("{can} figures of {name} can be measured");
        }
        println!("{} of the floor, {} of publishing", floor.rows().len(), table.rows().len());
    } else {
        println!("{}\n\n{}\n{}", compare::machine(), both.markdown(&names), floor.markdown(&[FLOOR]));
        println!("{}", table.markdown(&names[..1]));
    }
}
