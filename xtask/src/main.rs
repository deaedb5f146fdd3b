//! What the repository needs done now and then, by `cargo run -p xtask -- <task>`.

mod proto;

use std::env;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo run -p xtask -- <task>

tasks:
  proto          make the code in crates/plugin/src/proto from the files in crates/plugin/proto
  proto --check  only say whether that code is what those files give";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["proto"] => proto::generate(),
        ["proto", "--check"] => proto::check(),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
