//! The Helm chart as a test installs it.

use std::path::{Path, PathBuf};

use drakkar_e2e::run;
use serde_json::Value;

use super::TestEnv;

/// The namespace of the release.
pub(crate) const NAMESPACE: &str = "drakkar-chart";
const RELEASE: &str = "drakkar";

/// A release of the chart. There is one of these drivers on a node, so that tests with it run alone.
pub(crate) struct Release {
    /// The ids of its drivers, which are in the names of its objects.
    pub(crate) drivers: Vec<&'static str>,
    values: tempfile::TempDir,
}

impl Release {
    /// A release that is not installed yet.
    pub(crate) fn new(drivers: &[&'static str], values: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // JSON is YAML.
        std::fs::write(directory.path().join("values.yaml"), values.to_string()).unwrap();
        Self { drivers: drivers.to_vec(), values: directory }
    }

    /// Runs helm; returns what it prints.
    fn helm(&self, env: &TestEnv, arguments: &[&str]) -> String {
        run(env.cluster.helm().args(["--namespace", NAMESPACE]).args(arguments)).unwrap()
    }

    /// Installs the chart in a namespace of its own.
    pub(crate) async fn install(&self, env: &TestEnv) -> String {
        let chart = chart().display().to_string();
        let values = self.values.path().join("values.yaml").display().to_string();
        let notes = self.helm(env, &["install", RELEASE, &chart, "--create-namespace", "--values", &values]);
        self.rolled_out(env).await;
        notes
    }

    /// Upgrades the release with changed values.
    pub(crate) async fn upgrade(&self, env: &TestEnv, changes: &[&str]) {
        let chart = chart().display().to_string();
        let mut arguments = vec!["upgrade", RELEASE, &chart, "--reuse-values"];
        for change in changes {
            arguments.extend(["--set", change]);
        }
        self.helm(env, &arguments);
        self.rolled_out(env).await;
    }

    /// Goes back to a revision.
    pub(crate) async fn roll_back(&self, env: &TestEnv, revision: &str) {
        self.helm(env, &["rollback", RELEASE, revision]);
        self.rolled_out(env).await;
    }

    pub(crate) async fn uninstall(&self, env: &TestEnv) {
        self.helm(env, &["uninstall", RELEASE]);
        env.no_pods(NAMESPACE).await;
    }

    /// The name of a driver's objects.
    pub(crate) fn name(id: &str) -> String {
        format!("{RELEASE}-{id}")
    }

    /// The pods of a driver.
    pub(crate) async fn pods(&self, env: &TestEnv, id: &str) -> Vec<Value> {
        env.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io%2Fcomponent%3D{id}"))
            .await
    }

    /// The only pod of a driver.
    pub(crate) async fn pod(&self, env: &TestEnv, id: &str) -> Value {
        let mut pods = self.pods(env, id).await;
        assert_eq!(pods.len(), 1, "pods of {id}");
        pods.remove(0)
    }

    /// Waits until every driver has one pod, as the `DaemonSet` now says, and is ready.
    async fn rolled_out(&self, env: &TestEnv) {
        for id in &self.drivers {
            let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{}", Self::name(id));
            env.eventually_with(&format!("{id} is rolled out"), async |reason| {
                let set = env.get(&path).await?;
                let status = &set["status"];
                let pods = self.pods(env, id).await;
                *reason = format!("{status}, {} pods: {}", pods.len(), pods.first()?["status"]["containerStatuses"]);
                let is_new = status["observedGeneration"] == set["metadata"]["generation"];
                let all = status["desiredNumberScheduled"] == 1 && status["updatedNumberScheduled"] == 1;
                (is_new && all && status["numberReady"] == 1 && pods.len() == 1).then_some(())
            })
            .await;
        }
    }
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/drakkar")
}
