//! The subcommands, one module each.

mod convert;
#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "operate")]
mod doctor;
mod environment;
mod foreign;
mod get;
mod input;
#[cfg(feature = "operate")]
mod inspect;
#[cfg(feature = "kubevirt")]
mod kubevirt;
mod list;
#[cfg(feature = "manual")]
mod manual;
#[cfg(feature = "net")]
mod net;
#[cfg(feature = "new")]
mod new;
#[cfg(feature = "operate")]
mod node;
mod read;
mod selected;
mod validate;
mod wait;
mod watch;

use drakkar_metadata::Reader;
use drakkar_metadata::schema::json_schema;

pub(crate) use self::environment::fail_shell;
use self::input::Input;
use crate::args::{Arguments, Command};
use crate::exit::Failure;
use crate::output::print_bytes;

pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let root = arguments.root();
    let reader = || Reader::with_root(&root);
    match arguments.command {
        Command::List { output } => list::run(&reader()?, output),
        Command::Read { target, output, to } => read::run(&reader()?, &target.into_selection(), output, to),
        Command::Get { target, attribute, device, raw, output } => {
            let wanted = get::Wanted { attribute: attribute.as_deref(), device: device.as_ref(), raw };
            get::run(&reader()?, &target.into_selection(), &wanted, output)
        }
        Command::Env { variables, readiness, export, requests } => {
            let reader = reader().map_err(Failure::from).inspect_err(|failure| fail_shell(failure.code()))?;
            environment::print(&reader, &requests, &readiness, &variables, export)
        }
        Command::Exec { variables, readiness, requests, command } => {
            environment::exec(&reader()?, &requests, &readiness, &variables, &command)
        }
        Command::Wait { request, attributes, timeout } => {
            wait::run(&reader()?, &request.into_query(), &attributes, timeout)
        }
        Command::Watch { selection, output } => watch::run(&reader()?, selection, output),
        Command::Validate { files } => validate::run(&Input::below(&root)?, &files),
        Command::Convert { file, to } => convert::run(&Input::below(&root)?, &file, &to),
        Command::Schema { version } => Ok(print_bytes(json_schema(version).as_bytes())?),
        #[cfg(feature = "kubevirt")]
        Command::Kubevirt { command } => kubevirt::run(&root, *command),
        #[cfg(feature = "net")]
        Command::Net { command } => net::run(&command),
        #[cfg(feature = "new")]
        Command::New { command } => new::run(command),
        #[cfg(feature = "operate")]
        Command::Doctor(options) => doctor::run(&options),
        #[cfg(feature = "operate")]
        Command::Node { command } => node::run(&command),
        #[cfg(feature = "operate")]
        Command::Inspect(options) => inspect::run(&options),
        #[cfg(feature = "demo")]
        Command::Demo(options) => demo::run(&options),
        #[cfg(feature = "demo")]
        Command::SampleDriver { kind, count, flags } => demo::run_sample_driver(kind, count, &flags),
        #[cfg(feature = "demo")]
        Command::DemoCleanup { directory } => demo::clean_up(&directory),
        #[cfg(feature = "manual")]
        Command::Completions { shell } => manual::completions(shell),
        #[cfg(feature = "manual")]
        Command::Man { command, dir } => manual::man(command.as_deref(), dir.as_deref()),
    }
}
