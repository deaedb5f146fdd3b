//! `drakkar completions` and `drakkar man`, both generated from the definition of the command line.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::definition;
use crate::exit::{Code, Failure};
use crate::output::print_bytes;

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "drakkar", &mut script);
    Ok(print_bytes(&script)?)
}

pub(crate) fn man(command: Option<&str>, directory: Option<&Path>) -> Result<(), Failure> {
    let pages = pages();
    if let Some(directory) = directory {
        for page in &pages {
            let path = directory.join(format!("{}.1", page_name(page)));
            let system = |error| Failure::new(Code::System, format!("{}: {error}", path.display()));
            std::fs::write(&path, render(page)?).map_err(system)?;
        }
        return Ok(());
    }
    let name = command.map_or("drakkar".to_owned(), |command| format!("drakkar-{command}"));
    match pages.iter().find(|page| page_name(page) == name) {
        Some(page) => Ok(print_bytes(&render(page)?)?),
        None => {
            let message = format!("unknown command {}", command.unwrap_or_default());
            Err(Failure::new(Code::Usage, message).hint("`drakkar help` lists the commands"))
        }
    }
}

/// Returns the command and its subcommands. clap's display names are the names of the pages: `drakkar-get`.
fn pages() -> Vec<Command> {
    let mut root = definition().disable_help_subcommand(true);
    root.build();
    let subcommands: Vec<Command> = root.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    std::iter::once(root).chain(subcommands).collect()
}

fn page_name(page: &Command) -> &str {
    page.get_display_name().unwrap_or_else(|| page.get_name())
}

fn render(page: &Command) -> Result<Vec<u8>, Failure> {
    let mut roff = Vec::new();
    Man::new(page.clone()).render(&mut roff)?;
    Ok(roff)
}
