//! The comparison as a command: `cargo xtask bench` builds it and both drivers, and runs it.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use drakkar_bench::cluster::Cluster;
use drakkar_bench::compare::{self, Comparison};
use drakkar_bench::floor::FLOOR;
use drakkar_bench::framework::{Framework, build_go, build_go_with_nri};
use drakkar_bench::table::{Spread, Table};
use drakkar_bench::{api_server, counts, net, nri, plot, publish};

/// Compare a driver on Drakkar with one on Kubernetes' Go framework
#[derive(Parser)]
struct Arguments {
    /// The driver on Drakkar [default: bench-driver in the directory of this program]
    #[arg(long, value_name = "PATH")]
    driver: Option<PathBuf>,
    /// Measure only the driver on Drakkar; does not need Go
    #[arg(long)]
    ours: bool,
    /// Another build of the driver, which is measured instead of Go's
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// The number of rounds
    #[arg(long, default_value_t = compare::Scale::FULL.rounds, value_name = "COUNT")]
    rounds: usize,
    /// A directory on a disk, not in memory [default: the directory for temporary files]
    #[arg(long, value_name = "PATH")]
    disk: Option<PathBuf>,
    /// Write the plot to this file
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
    /// Measure everything once, on a small scale
    #[arg(long)]
    test: bool,
    /// Measure only one part: counts, compare, publish, nri, net (the network driver; needs root), claims (the calls of
    /// compare in memory, in seconds; only if named), or apiserver (a real kube-apiserver, which is built first and takes
    /// long; only if named)
    #[arg(long, value_name = "PART")]
    only: Option<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    if arguments.only.as_deref() == Some("apiserver") {
        return measure_api_server(arguments);
    }
    let own = std::env::current_exe()?;
    let directory = own.parent().ok_or("the path of this program has no directory")?;
    let driver = arguments.driver.clone().unwrap_or_else(|| directory.join("bench-driver"));
    if !driver.exists() {
        return Err(format!("no driver at {}: run `cargo build --release -p drakkar-bench`", driver.display()).into());
    }
    let is_selected = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    let mut frameworks = vec![Framework::ours(driver)];
    let is_claims = arguments.only.as_deref() == Some("claims");
    if let Some(other) = &arguments.against {
        frameworks.push(Framework::other(other.clone()));
    } else if !arguments.ours && (is_selected("compare") || is_claims) {
        frameworks.push(Framework::go(build_go(directory)?));
    }
    let comparison = Comparison { frameworks, disk: arguments.disk.clone().unwrap_or_else(std::env::temp_dir) };
    let compare_scale = if arguments.test {
        compare::Scale { rounds: 1, ..compare::Scale::TEST }
    } else {
        compare::Scale { rounds: arguments.rounds, ..compare::Scale::FULL }
    };
    let publish_scale = if arguments.test { publish::Scale::TEST } else { publish::Scale::FULL };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}\n", compare::host());
    let names: Vec<_> = comparison.frameworks.iter().map(|framework| framework.name).collect();
    if is_selected("counts") {
        let counted = directory.join("bench-counted");
        let counts =
            runtime.block_on(counts::measure(comparison.frameworks[0].program(), &counted, &Cluster::start(None)));
        println!("a claim that is prepared and unprepared: {counts:?}\n");
    }
    if is_selected("compare") {
        let table = runtime.block_on(compare::run(compare_scale, &comparison));
        let (both, floor) = table.split(FLOOR);
        println!("{}\n{}", both.markdown(&names), floor.markdown(&[FLOOR]));
        if let (Some(path), [first, second]) = (&arguments.plot, names.as_slice()) {
            std::fs::write(path, plot::svg(&both, first, second))?;
        }
    }
    if is_claims {
        println!("{}", runtime.block_on(compare::claims(compare_scale, &comparison)).markdown(&names));
    }
    if is_selected("publish") {
        let mut table = Table::default();
        for _ in 0..compare_scale.rounds {
            runtime.block_on(publish::round(publish_scale, &comparison.frameworks[0], &mut table));
        }
        println!("{}", table.markdown(&names[..1]));
    }
    // The runtime's side is a Go program.
    if is_selected("nri") && !arguments.ours {
        let go = build_go_with_nri(directory)?;
        let scale = if arguments.test { nri::Scale::TEST } else { nri::Scale::FULL };
        let plugins = [nri::NriPlugin::ours(directory.join("bench-nri")), nri::NriPlugin::go(go.clone())];
        let mut table = Table::default();
        for _ in 0..compare_scale.rounds {
            plugins.iter().for_each(|plugin| nri::round(scale, &go, plugin, &mut table));
        }
        println!("{}", table.markdown(&plugins.map(|plugin| plugin.name)));
    }
    if is_selected("net") && !arguments.ours {
        let programs = net::Programs { driver: directory.join("bench-net"), runtime: build_go_with_nri(directory)? };
        let scale = if arguments.test { net::Scale::TEST } else { net::Scale::FULL };
        let cluster = Cluster::start(None);
        let mut table = Table::default();
        for round in 0..compare_scale.rounds {
            eprintln!("network driver: round {} of {}", round + 1, compare_scale.rounds);
            if let Err(reason) = runtime.block_on(net::round(scale, &programs, &cluster, &mut table)) {
                println!("skipped: {reason}");
                return Ok(());
            }
        }
        println!("{}", table.markdown(&[net::NAME]));
    }
    Ok(())
}

/// Measures what a GET costs a real kube-apiserver.
fn measure_api_server(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let scale = if arguments.test {
        api_server::Scale::TEST
    } else {
        api_server::Scale { rounds: arguments.rounds, ..api_server::Scale::FULL }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}\n", compare::host());
    let table = runtime.block_on(api_server::run(scale))?;
    let [first, second] = api_server::columns();
    println!("{}", table.markdown(&[first, second]));
    for row in table.rows() {
        // The table has one digit, and the encodings differ by less.
        if let Some(Spread { median, min, max }) = row.advantage(first, second) {
            println!("{}: {first} is {median:.2} times better ({min:.2} to {max:.2})", row.name);
        }
    }
    Ok(())
}
