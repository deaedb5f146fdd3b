//! The comparison as a command: `cargo xtask bench` builds it and both drivers, and runs it.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use drakkar_bench::compare::{self, Contest};
use drakkar_bench::floor::FLOOR;
use drakkar_bench::framework::{Framework, build_go};
use drakkar_bench::table::Table;
use drakkar_bench::{plot, publish};

/// Measure a driver on Drakkar beside one on Kubernetes' Go framework
#[derive(Parser)]
struct Arguments {
    /// The driver on Drakkar [default: bench-driver beside this program]
    #[arg(long, value_name = "PATH")]
    driver: Option<PathBuf>,
    /// Measure only ours, without Go
    #[arg(long)]
    ours: bool,
    /// How many rounds
    #[arg(long, default_value_t = compare::Scale::FULL.rounds, value_name = "COUNT")]
    rounds: usize,
    /// A directory that is not in memory [default: the one for temporary files]
    #[arg(long, value_name = "PATH")]
    disk: Option<PathBuf>,
    /// Where to write the plot
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
    /// Do everything once, and little of it
    #[arg(long)]
    test: bool,
    /// Measure one part: compare or publish
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
    let own = std::env::current_exe()?;
    let directory = own.parent().ok_or("this program is in no directory")?;
    let driver = arguments.driver.clone().unwrap_or_else(|| directory.join("bench-driver"));
    if !driver.exists() {
        return Err(
            format!("there is no driver at {}: cargo build --release -p drakkar-bench", driver.display()).into()
        );
    }
    let mut frameworks = vec![Framework::ours(driver)];
    if !arguments.ours {
        frameworks.push(Framework::go(build_go(directory)?));
    }
    let contest = Contest { frameworks, disk: arguments.disk.clone().unwrap_or_else(std::env::temp_dir) };
    let (compared, published) = match arguments.test {
        true => (compare::Scale { rounds: 1, ..compare::Scale::TEST }, publish::Scale::TEST),
        false => (compare::Scale { rounds: arguments.rounds, ..compare::Scale::FULL }, publish::Scale::FULL),
    };
    let wanted = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}\n", compare::machine());
    let names: Vec<_> = contest.frameworks.iter().map(|framework| framework.name).collect();
    if wanted("compare") {
        let table = runtime.block_on(compare::run(compared, &contest));
        let (both, floor) = table.split(FLOOR);
        println!("{}\n{}", both.markdown(&names), floor.markdown(&[FLOOR]));
        if let (Some(path), [first, second]) = (&arguments.plot, names.as_slice()) {
            std::fs::write(path, plot::svg(&both, first, second))?;
        }
    }
    if wanted("publish") {
        let mut table = Table::default();
        for _ in 0..compared.rounds {
            runtime.block_on(publish::round(published, &contest.frameworks[0], &mut table));
        }
        println!("{}", table.markdown(&names[..1]));
    }
    Ok(())
}
