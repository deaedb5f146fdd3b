//! The flags of a driver with their effective values, for the page `/flagz`.
//!
//! The framework's flags come from the builder, so that they are right also if a driver sets something by itself. A driver adds its
//! own from what clap has parsed ([`PluginBuilder::command_line`]).

use std::collections::BTreeMap;

use crate::builder::PluginBuilder;

/// What is shown of a flag whose value is secret. Kubernetes shows the same.
#[cfg(feature = "clap")]
const CLASSIFIED: &str = "CLASSIFIED";

impl PluginBuilder {
    /// Adds the flags of the driver's own command line to the page `/flagz`: those with a long name, with the values that clap
    /// has parsed, defaults and environment variables included, and those of the subcommand that was chosen. The value of an
    /// argument with `hide_env_values` is not shown: it may be secret.
    ///
    /// ```no_run
    /// use clap::{CommandFactory as _, FromArgMatches as _};
    /// use drakkar_plugin::{Flags, PluginBuilder};
    ///
    /// #[derive(clap::Parser)]
    /// struct Arguments {
    ///     /// Resets GPUs before they are handed out
    ///     #[arg(long)]
    ///     reset: bool,
    ///     #[command(flatten)]
    ///     plugin: Flags,
    /// }
    ///
    /// let command = Arguments::command();
    /// let matches = command.clone().get_matches();
    /// let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    /// let builder = PluginBuilder::new("gpu.example.com").flags(&arguments.plugin).command_line(&command, &matches);
    /// ```
    #[cfg(feature = "clap")]
    pub fn command_line(mut self, command: &clap::Command, matches: &clap::ArgMatches) -> Self {
        self.shown_flags.extend(parsed(command, matches));
        match matches.subcommand().and_then(|(name, matches)| Some((command.find_subcommand(name)?, matches))) {
            Some((command, matches)) => self.command_line(command, matches),
            None => self,
        }
    }

    /// Returns the flags as `/flagz` shows them.
    pub(crate) fn flag_values(&self) -> BTreeMap<String, String> {
        let list = |items: Vec<String>| items.join(",");
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let framework = [
            ("enable-device-metadata", self.metadata.to_string()),
            ("metadata-versions", list(self.versions.iter().map(ToString::to_string).collect())),
            ("metadata-layout", list(self.layouts.iter().map(ToString::to_string).collect())),
            ("kubelet-root-dir", self.kubelet_root.display().to_string()),
            ("cdi-dir", self.cdi_directory.display().to_string()),
            ("node-name", text(&self.node_name)),
            ("node-uid", text(&self.node_uid)),
            ("pod-uid", text(&self.pod_uid)),
            ("http-endpoint", self.http_endpoint.map(|address| address.to_string()).unwrap_or_default()),
            ("http-details", self.http_details.as_str().to_owned()),
            ("kubeconfig", self.kubeconfig.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
        ];
        let mut flags = self.shown_flags.clone();
        flags.extend(framework.map(|(name, value)| (name.to_owned(), value)));
        flags
    }
}

/// Returns the arguments of a command that have a long name, with their values.
#[cfg(feature = "clap")]
fn parsed(command: &clap::Command, matches: &clap::ArgMatches) -> BTreeMap<String, String> {
    let value = |argument: &clap::Arg| {
        if argument.is_hide_env_values_set() {
            return CLASSIFIED.to_owned();
        }
        let id = argument.get_id().as_str();
        if matches!(argument.get_action(), clap::ArgAction::Count) {
            return matches.try_get_one::<u8>(id).ok().flatten().copied().unwrap_or_default().to_string();
        }
        let values = matches.try_get_raw(id).ok().flatten();
        let values = values.into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
        values.collect::<Vec<_>>().join(",")
    };
    let ends = |argument: &&clap::Arg| {
        use clap::ArgAction::{Help, HelpLong, HelpShort, Version};
        !matches!(argument.get_action(), Help | HelpLong | HelpShort | Version)
    };
    let arguments = command.get_arguments().filter(ends);
    arguments.filter_map(|argument| Some((argument.get_long()?.to_owned(), value(argument)))).collect()
}

#[cfg(all(test, feature = "logging"))]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::*;
    use crate::Flags;

    #[derive(clap::Parser)]
    struct Arguments {
        #[arg(long)]
        reset: bool,
        #[arg(long, default_value = "10")]
        index: u8,
        #[arg(long, value_delimiter = ',')]
        names: Vec<String>,
        #[arg(long)]
        missing: Option<String>,
        #[arg(long, env = "DRAKKAR_TEST_TOKEN", hide_env_values = true)]
        token: Option<String>,
        #[command(flatten)]
        plugin: Flags,
    }

    #[test]
    fn the_flags_of_a_driver_are_shown_with_their_effective_values() {
        let command = Arguments::command();
        let line = ["driver", "--names=a,b", "--token=s3cret", "-vv", "--node-name=n1", "--http-endpoint=:9464"];
        let matches = command.clone().get_matches_from(line);
        let arguments = Arguments::from_arg_matches(&matches).unwrap();
        let builder = PluginBuilder::new("gpu.example.com").flags(&arguments.plugin).command_line(&command, &matches);
        let flags = builder.device_metadata(true).flag_values();
        let shown: Vec<String> = flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "cdi-dir=/var/run/cdi",
            "enable-device-metadata=true",
            "http-details=loopback",
            "http-endpoint=[::]:9464",
            "index=10",
            "kubeconfig=",
            "kubelet-root-dir=/var/lib/kubelet",
            "log-format=text",
            "metadata-layout=kep,kubernetes",
            "metadata-versions=v1alpha1",
            "missing=",
            "names=a,b",
            "node-name=n1",
            "node-uid=",
            "pod-uid=",
            "reset=false",
            "token=CLASSIFIED",
            "verbose=2",
        ];
        assert_eq!(shown, expected);
        assert!(!arguments.reset && arguments.index == 10 && arguments.names.len() == 2);
        assert!(arguments.missing.is_none() && arguments.token.is_some());
    }

    /// A driver without flags of its own has those of the framework, all of them.
    #[test]
    fn every_flag_of_the_framework_is_shown() {
        let matches = Flags::command().get_matches_from(["driver"]);
        let flags = Flags::from_arg_matches(&matches).unwrap();
        let shown = PluginBuilder::new("gpu.example.com").flags(&flags).flag_values();
        let command = Flags::command();
        let all: Vec<String> =
            command.get_arguments().filter_map(|argument| argument.get_long()).map(str::to_owned).collect();
        assert!(all.len() > 10);
        for name in all {
            assert!(shown.contains_key(&name), "--{name} is not in {shown:?}");
        }
    }
}
