//! What `docs/SCALE.md` says: how many requests of which kind a phase takes, and how many come in the worst second.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::traffic::Traffic;

/// In what time nodes come back to a server that was gone. The framework's, restated: a change there has to be one of the paper.
pub(crate) const SPREAD: Duration = Duration::from_secs(10);

/// From how many nodes on one can tell what 5,000 do.
const MANY: usize = 200;

/// What the paper says of a phase.
pub(crate) struct Paper {
    /// How many requests of each kind there are, for each node or pod.
    pub(crate) each: &'static [(&'static str, usize)],
    /// How many nodes or pods there are.
    pub(crate) of: usize,
    /// How many requests come in a second when most do, on the average; none if the server alone limits that.
    pub(crate) peak: Option<f64>,
}

impl Paper {
    /// What was measured, beside it, and whether it differs.
    pub(crate) fn compare(&self, phase: &str, nodes: usize, traffic: &Traffic) -> Vec<String> {
        println!("\n{phase}");
        println!("{:34} {:>9} {:>9} {:>7}", "", "measured", "paper", "ratio");
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
            // Some may be asked twice, on a machine that is busy with other things.
            if measured.abs_diff(expected) > expected / 50 + 1 {
                differences.push(format!("{phase}: {kind}: {measured} times, and {expected} on paper"));
            }
        }
        let average = float(traffic.total()) / traffic.lasted.as_secs_f64().max(1.0);
        println!("{:34} {:>9.1}", "for each node", float(traffic.total()) / float(nodes));
        println!("{:34} {average:>9.0}", format!("a second, over {:.1} s", traffic.lasted.as_secs_f64()));
        match self.peak {
            None => println!("{:34} {:>9}", "in the worst second", traffic.peak),
            Some(peak) => {
                println!(
                    "{:34} {:>9} {peak:>9.0} {:>7.2}",
                    "in the worst second",
                    traffic.peak,
                    float(traffic.peak) / peak
                );
                // Of few nodes it tells only what chance did.
                if nodes >= MANY {
                    println!("{:34} {:>9.0}", "the same with 5,000 nodes", float(traffic.peak) * 5000.0 / float(nodes));
                }
                // Chance has its say, the more the fewer there are; and requests come in pairs and threes.
                let bound = peak + 6.0 * peak.sqrt() + 4.0;
                if float(traffic.peak) > bound {
                    differences.push(format!(
                        "{phase}: {} requests in a second, and at most {bound:.0} on paper",
                        traffic.peak
                    ));
                }
            }
        }
        differences
    }
}

/// So many requests, evenly within a time.
pub(crate) fn spread(requests: usize, within: Duration) -> f64 {
    float(requests) / within.as_secs_f64().max(1.0)
}

/// So many requests when a server comes back after an outage that is shorter than [`SPREAD`]. Who tries in the outage tries again
/// after another pause, so there are more in a second the longer it is.
pub(crate) fn after_outage(requests: usize, outage: Duration) -> f64 {
    spread(requests, SPREAD) * (outage.as_secs_f64() / SPREAD.as_secs_f64()).exp()
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
