//! The subcommands, one module each.

mod convert;
#[cfg(feature = "demo")]
mod demo;
mod environment;
mod get;
mod input;
#[cfg(feature = "kubevirt")]
mod kubevirt;
mod list;
#[cfg(feature = "manual")]
mod manual;
#[cfg(feature = "net")]
mod net;
#[cfg(feature = "new")]
mod new;
mod read;
mod validate;
mod wait;

use drakkar_metadata::Reader;
use drakkar_metadata::schema::json_schema;

use self::input::Input;
use crate::args::{Arguments, Command};
use crate::exit::Failure;
use crate::output::print_bytes;

pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let root = arguments.root();
    let reader = || Reader::with_root(&root);
    match arguments.command {
        Command::List { output } => list::run(&reader()?, output),
        Command::Read { request, output, to } => read::run(&reader()?, &request.into_query(), output, to),
        Command::Get { request, attribute, device, raw } => {
            get::run(&reader()?, &request.into_query(), &attribute, device.as_ref(), raw)
        }
        Command::Env { variables, export, requests } => environment::print(&reader()?, &requests, &variables, export),
        Command::Exec { variables, requests, command } => {
            environment::exec(&reader()?, &requests, &variables, &command)
        }
        Command::Wait { request, attributes, timeout } => {
            wait::run(&reader()?, &request.into_query(), &attributes, timeout)
        }
        Command::Validate { files } => validate::run(&Input::below(&root)?, &files),
        Command::Convert { file, to } => convert::run(&Input::below(&root)?, &file, &to),
        Command::Schema { version } => Ok(print_bytes(json_schema(version).as_bytes())?),
        #[cfg(feature = "kubevirt")]
        Command::Kubevirt { command } => kubevirt::run(&root, *command),
        #[cfg(feature = "net")]
        Command::Net { command } => net::run(&command),
        #[cfg(feature = "new")]
        Command::New { command } => new::run(command),
        #[cfg(feature = "demo")]
        Command::Demo(options) => demo::run(&options),
        #[cfg(feature = "demo")]
        Command::SampleDriver { kind, count, flags } => demo::run_sample_driver(kind, count, &flags),
        #[cfg(feature = "manual")]
        Command::Completions { shell } => manual::completions(shell),
        #[cfg(feature = "manual")]
        Command::Man { command, dir } => manual::man(command.as_deref(), dir.as_deref()),
    }
}
