//! `cargo xtask chart`: what is rendered from the Helm chart, and the checks of the chart.
//!
//! Helm is built from `e2e/cluster/helm`. The chart has a copy of the alert rules, since a chart has no files outside of its directory;
//! the manifests in `deploy/manifests` are what the chart renders. Both are written here and compared by `--check`.

mod refusals;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use drakkar_e2e::{ClusterPaths, build_helm, helm_command, run};

use self::refusals::REFUSALS;

/// The release of Kubernetes that is rendered for, so that the output does not depend on helm's own.
const KUBE_VERSION: &str = "--kube-version=1.37.0";

/// The manifests: name of the file, of the release and namespace, and of the values in `ci`.
const MANIFESTS: [&str; 2] = ["net", "pci"];

/// Objects that the values of `ci` must render: a template that renders nothing would otherwise pass.
const RENDERED: [(&str, &[(&str, usize)]); 4] = [
    (
        "net",
        &[
            ("Namespace", 1),
            ("ServiceAccount", 1),
            ("ConfigMap", 1),
            ("ClusterRole", 1),
            ("ClusterRoleBinding", 1),
            ("ValidatingAdmissionPolicy", 1),
            ("ValidatingAdmissionPolicyBinding", 1),
            ("DeviceClass", 1),
            ("DaemonSet", 1),
        ],
    ),
    ("pci", &[("Namespace", 1), ("DaemonSet", 1), ("DeviceClass", 1)]),
    (
        "all",
        &[
            ("Namespace", 0),
            ("DaemonSet", 4),
            ("ServiceAccount", 4),
            ("ValidatingAdmissionPolicy", 4),
            // Two of the drivers have the default of one each, one has another, one has none.
            ("DeviceClass", 3),
            ("ConfigMap", 3),
            ("PodMonitor", 1),
            ("PrometheusRule", 1),
        ],
    ),
    ("simulated", &[("DaemonSet", 1), ("ValidatingAdmissionPolicy", 0), ("ConfigMap", 1)]),
];

/// Commands that the notes of an installation must have, with values of `ci`: with the files that the pod has.
const NOTED: [(&str, &str); 3] = [
    ("net", "/drakkar-net devices --config /config/config.yaml"),
    ("pci", "/drakkar-pci devices --root /host --config /config/config.yaml"),
    ("simulated", "/drakkar-pci devices --simulate /config/host.yaml --config /config/config.yaml"),
];

/// Renders the notes, which `helm template` leaves out, as a value of an object.
const NOTES: &str = r#"notes: {{ include (print $.Template.BasePath "/NOTES.txt") . | toJson }}"#;

/// `cargo xtask chart`: writes the chart's copy of the alert rules, and the manifests.
pub(crate) fn write() -> Result<()> {
    let helm = Helm::new()?;
    for (path, content) in helm.derived()? {
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// `cargo xtask chart --check`: lints the chart, renders it with several values, compares what is derived from it, and sees that wrong
/// values are refused.
pub(crate) fn check() -> Result<()> {
    let helm = Helm::new()?;
    for (path, content) in helm.derived()? {
        let committed = fs::read_to_string(&path).unwrap_or_default();
        ensure!(committed == content, "{} is not up to date: run `cargo xtask chart`", path.display());
    }
    for (values, objects) in RENDERED {
        helm.lint(values)?;
        let rendered = helm.template(values, values)?;
        for (kind, expected) in objects {
            let found = rendered.lines().filter(|line| **line == format!("kind: {kind}")).count();
            ensure!(
                found == *expected,
                "ci/{values}-values.yaml renders {found} objects of kind {kind}, not {expected}"
            );
        }
    }
    for (values, command) in NOTED {
        let notes = helm.notes(values)?;
        ensure!(notes.contains(command), "ci/{values}-values.yaml: expected `{command}` in:\n{notes}");
    }
    for refusal in REFUSALS {
        let Err(error) = helm.render(&["--set-json", refusal.values]) else {
            bail!("the chart accepts {}: expected a message with `{}`", refusal.values, refusal.message);
        };
        let error = error.to_string();
        ensure!(error.contains(refusal.message), "{}: expected `{}` in:\n{error}", refusal.values, refusal.message);
    }
    println!(
        "the chart renders with {} sets of values, refuses {} wrong ones, and {} manifests are up to date",
        RENDERED.len(),
        REFUSALS.len(),
        MANIFESTS.len()
    );
    Ok(())
}

/// The chart's directory.
fn directory() -> PathBuf {
    top().join("deploy/helm/drakkar")
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Helm on this chart.
struct Helm(ClusterPaths);

impl Helm {
    fn new() -> Result<Self> {
        let paths = ClusterPaths::of_checkout()?;
        build_helm(&paths)?;
        Ok(Self(paths))
    }

    fn command(&self) -> Command {
        helm_command(&self.0)
    }

    /// The files that are derived from others, and what they should have.
    fn derived(&self) -> Result<Vec<(PathBuf, String)>> {
        let rules = top().join("deploy/alerts/drakkar.rules.yaml");
        let rules = fs::read_to_string(&rules).with_context(|| format!("read {}", rules.display()))?;
        let mut derived = vec![(directory().join("files/drakkar.rules.yaml"), rules)];
        for name in MANIFESTS {
            let manifest = self.template(&format!("drakkar-{name}"), name)?;
            let header = format!(
                "# drakkar-{name}, rendered from deploy/helm/drakkar by `cargo xtask chart`: edit the chart, not this file. Replace the \
                 image, and\n# the configuration in the ConfigMap with your own.\n"
            );
            derived.push((top().join(format!("deploy/manifests/{name}.yaml")), header + &manifest));
        }
        Ok(derived)
    }

    /// Renders the values of a file in `ci` for a namespace.
    fn template(&self, namespace: &str, values: &str) -> Result<String> {
        let values = values_file(values);
        let rendered = self.render(&["--namespace", namespace, "--values", &values])?;
        // For people who read and apply them: which template an object is from, and that Helm manages it, is not their concern.
        let lines = rendered
            .lines()
            .filter(|line| !line.starts_with("# Source: ") && line.trim() != "app.kubernetes.io/managed-by: Helm");
        Ok(lines.map(|line| format!("{line}\n")).collect())
    }

    /// Renders the notes of an installation with the values of a file in `ci`.
    fn notes(&self, values: &str) -> Result<String> {
        let copy = tempfile::tempdir().context("make a temporary directory")?;
        let chart = copy.path().join("drakkar");
        run(Command::new("cp").arg("-r").arg(directory()).arg(&chart))?;
        fs::write(chart.join("templates/notes.yaml"), NOTES).context("write a template")?;
        let mut template = self.command();
        template.args(["template", "drakkar"]).arg(&chart).args([KUBE_VERSION, "--values", &values_file(values)]);
        Ok(run(template.args(["--show-only", "templates/notes.yaml"]))?)
    }

    fn render(&self, arguments: &[&str]) -> Result<String> {
        let chart = directory();
        Ok(run(self.command().args(["template", "drakkar"]).arg(&chart).arg(KUBE_VERSION).args(arguments))?)
    }

    fn lint(&self, values: &str) -> Result<()> {
        let mut lint = self.command();
        lint.args(["lint", "--strict", "--quiet", KUBE_VERSION, "--values", &values_file(values)]).arg(directory());
        run(&mut lint).with_context(|| format!("lint the chart with ci/{values}-values.yaml"))?;
        Ok(())
    }
}

fn values_file(name: &str) -> String {
    directory().join(format!("ci/{name}-values.yaml")).display().to_string()
}
