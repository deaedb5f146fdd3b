//! The requests of a phase by `docs/SCALE.md`: the number of each kind, and the peak.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::traffic::Traffic;

/// The time within which nodes reconnect to a server that was down. Not taken from the framework on purpose: a change there has
/// to be one of docs/SCALE.md.
pub(crate) const SPREAD: Duration = Duration::from_secs(10);

/// The number of nodes from which the peak is extrapolated to 5,000.
const MANY: usize = 200;

/// The expected requests of a phase.
pub(crate) struct Expectation {
    /// The number of requests of each kind, for each node or pod.
    pub(crate) each: &'static [(&'static str, usize)],
    /// The number of nodes or pods.
    pub(crate) of: usize,
    /// The average number of requests in the busiest second; `None` if only the server limits it.
    pub(crate) peak: Option<f64>,
}

impl Expectation {
    /// Prints what was measured beside what was expected, and returns the differences.
    pub(crate) fn compare(&self, phase: &str, nodes: usize, traffic: &Traffic) -> Vec<String> {
        println!("\n{phase}");
        println!("{:34} {:>9} {:>9} {:>7}", "", "measured", "expected", "ratio");
        let mut expected: BTreeMap<&str, usize> =
            self.each.iter().map(|(kind, count)| (*kind, count * self.of)).collect();
        for kind in traffic.kinds.keys() {
            expected.entry(kind).or_default();
        }
        let mut differences = Vec::new();
        for (kind, expected) in expected {
            let measured = traffic.count(kind);
            let ratio = if expected == 0 { f64::NAN } else { float(measured) / float(expected) };
            println!("{kind:34} {measured:>9} {expected:>9} {ratio:>7.2}");
            // On a busy machine some requests time out and are repeated.
            if measured.abs_diff(expected) > expected / 50 + 1 {
                differences.push(format!("{phase}: {kind}: {measured} requests, expected {expected}"));
            }
        }
        let average = float(traffic.total()) / traffic.lasted.as_secs_f64().max(1.0);
        println!("{:34} {:>9.1}", "per node", float(traffic.total()) / float(nodes));
        println!("{:34} {average:>9.0}", format!("per second, over {:.1} s", traffic.lasted.as_secs_f64()));
        match self.peak {
            None => println!("{:34} {:>9}", "in the busiest second", traffic.peak),
            Some(peak) => {
                println!(
                    "{:34} {:>9} {peak:>9.0} {:>7.2}",
                    "in the busiest second",
                    traffic.peak,
                    float(traffic.peak) / peak
                );
                // With few nodes the peak is mostly random.
                if nodes >= MANY {
                    println!(
                        "{:34} {:>9.0}",
                        "extrapolated to 5,000 nodes",
                        float(traffic.peak) * 5000.0 / float(nodes)
                    );
                }
                // Six standard deviations, and some more because requests come in groups of two or three.
                let bound = peak + 6.0 * peak.sqrt() + 4.0;
                if float(traffic.peak) > bound {
                    differences
                        .push(format!("{phase}: {} requests in a second, expected at most {bound:.0}", traffic.peak));
                }
            }
        }
        differences
    }
}

/// Returns the requests per second, if they are spread evenly over a time.
pub(crate) fn spread(requests: usize, within: Duration) -> f64 {
    float(requests) / within.as_secs_f64().max(1.0)
}

/// Returns the requests per second after an outage that is shorter than [`SPREAD`]. Nodes that retry during the outage retry
/// again after another delay, so a longer outage has a higher peak.
pub(crate) fn after_outage(requests: usize, outage: Duration) -> f64 {
    spread(requests, SPREAD) * (outage.as_secs_f64() / SPREAD.as_secs_f64()).exp()
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
