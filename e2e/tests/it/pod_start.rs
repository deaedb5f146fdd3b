//! How much longer a pod takes to start with metadata: pods with and without it, in turn, one at a time.
//!
//! A pod's time is that from its creation until its container runs, by the machine's uptime, which both read. Not part of
//! `cargo xtask e2e`: `cargo xtask e2e start-times` runs it.

use drakkar_node::{ClaimSpec, Container, Pod};

use crate::support::{Driver, TestEnv, template_path};

/// Pods with metadata, and as many without.
const PAIRS: usize = 100;
/// Pairs whose times do not count: images, caches and connections are warm afterwards.
const WARM_UP: usize = 3;

/// Returns the seconds since the machine was started, as containers of it see them.
fn uptime(text: &str) -> f64 {
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Starts a pod with a claim of the driver, and removes it; returns the seconds until its container ran.
async fn start(env: &TestEnv, driver: &Driver, template: &str, has_metadata: bool, number: usize) -> f64 {
    let path = template_path("devices", "gpu", driver);
    let expectation = if has_metadata { format!("test -s {path}") } else { format!("test ! -e {path}") };
    let script = format!("read uptime idle < /proc/uptime; {expectation} && echo $uptime");
    let main = Container::new("main", ["sh", "-c", &script]).claim("devices");
    let name = format!("{template}-{number}");
    let pod = Pod::new(&name).template("devices", template).container(main).restart_policy("Never");
    let created = uptime(&std::fs::read_to_string("/proc/uptime").unwrap());
    env.create_pod(pod).await;
    let path = format!("/api/v1/namespaces/{}/pods/{name}", env.namespace);
    env.eventually(&format!("{name} has completed"), async || {
        let pod = env.get(&path).await?;
        let phase = pod["status"]["phase"].as_str()?;
        assert_ne!(phase, "Failed", "{name}: its file is not as expected");
        (phase == "Succeeded").then_some(())
    })
    .await;
    let started = uptime(&env.log(&name, "main"));
    env.delete(&path).await;
    env.no_pods(&env.namespace).await;
    started - created
}

/// Returns a text with the mean of values in milliseconds, its 95 % confidence interval, and the median.
///
/// The clock that containers see has steps of 10 ms, which a mean of many values evens out and a median does not.
fn summary(values: &[f64]) -> String {
    let mut sorted: Vec<f64> = values.iter().map(|value| value * 1000.0).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let mean = sorted.iter().sum::<f64>() / count;
    let variance = sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let margin = 1.96 * (variance / count).sqrt();
    format!("{mean:.1} ms ({:.1} to {:.1}), median {:.0} ms", mean - margin, mean + margin, sorted[sorted.len() / 2])
}

#[tokio::test]
#[ignore = "needs a real cluster, and minutes: cargo xtask e2e start-times"]
async fn pods_with_metadata_and_without_start_in_turn() {
    let env = TestEnv::new("start").await;
    let with = Driver::new("with").deploy(&env).await;
    let without = Driver::new("without").metadata(false).deploy(&env).await;
    env.template("with", ClaimSpec::default().request("gpu", &with.name, 1)).await;
    env.template("without", ClaimSpec::default().request("gpu", &without.name, 1)).await;
    let (mut times_with, mut times_without, mut differences) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..WARM_UP + PAIRS {
        // The order changes, so that neither always comes second.
        let (first, second) = if number % 2 == 0 {
            let first = start(&env, &with, "with", true, number).await;
            (first, start(&env, &without, "without", false, number).await)
        } else {
            let second = start(&env, &without, "without", false, number).await;
            (start(&env, &with, "with", true, number).await, second)
        };
        if number >= WARM_UP {
            times_with.push(first);
            times_without.push(second);
            differences.push(first - second);
        }
    }
    eprintln!("{PAIRS} pods each, one at a time: mean, and its 95 % confidence interval");
    eprintln!("with metadata       {}", summary(&times_with));
    eprintln!("without             {}", summary(&times_without));
    eprintln!("difference of pairs {}", summary(&differences));
    for driver in [with, without] {
        driver.clean_up(&env).await;
    }
    env.clean_up().await;
}
