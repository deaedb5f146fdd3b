//! A strict parser of OpenMetrics text.

use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The declaration of a metric family.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) kind: String,
    help: String,
    unit: Option<String>,
    /// The names of its labels, except for the bounds of buckets.
    pub(super) labels: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct Sample {
    family: String,
    suffix: String,
    labels: Vec<(String, String)>,
    value: f64,
}

#[derive(Debug)]
pub(super) struct Exposition {
    pub(super) families: BTreeMap<String, Family>,
    pub(super) samples: Vec<Sample>,
    values: BTreeMap<String, f64>,
}

impl Exposition {
    /// Parses a text. Panics if it is malformed.
    pub(super) fn parse(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("the end is marked");
        let mut families = BTreeMap::<String, Family>::new();
        let mut samples = vec![];
        let mut values = BTreeMap::new();
        let mut current = String::new();
        for line in body.lines() {
            if let Some(declaration) = line.strip_prefix("# ") {
                let [what, name, text] = declaration.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
                if current != name {
                    assert!(!families.contains_key(name), "{name} is declared twice, or its samples are not together");
                    name.clone_into(&mut current);
                }
                let family = families.entry(name.to_owned()).or_default();
                match what {
                    "HELP" => text.clone_into(&mut family.help),
                    "TYPE" => text.clone_into(&mut family.kind),
                    "UNIT" => family.unit = Some(text.to_owned()),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let value: f64 = value.parse().expect("a value is a number");
            assert!(values.insert(series.to_owned(), value).is_none(), "{series} is exposed twice");
            let (name, labels) = match series.split_once('{') {
                None => (series, vec![]),
                Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}').expect("labels end"))),
            };
            let suffix = name.strip_prefix(&current).unwrap_or_else(|| panic!("{name} is not below its declaration"));
            let family = families.get_mut(&current).expect("a sample is declared");
            family.labels.extend(labels.iter().map(|(name, _)| name.clone()).filter(|name| name != "le"));
            samples.push(Sample { family: current.clone(), suffix: suffix.to_owned(), labels, value });
        }
        Self { families, samples, values }
    }

    /// Checks the rules of OpenMetrics 1.0, and those of Prometheus for names.
    pub(super) fn check(&self) {
        let valid = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        for (name, family) in &self.families {
            assert!(valid(name) && !name.ends_with("_total"), "{name}");
            assert!(family.help.len() > 10 && family.help.ends_with('.'), "{name}: help text {:?}", family.help);
            assert!(!family.help.ends_with(".."), "{name}: help text {:?}", family.help);
            if let Some(unit) = &family.unit {
                assert!(name.ends_with(&format!("_{unit}")), "{name} does not end with its unit {unit}");
            }
            assert!(family.labels.iter().all(|label| valid(label)), "{name}: {:?}", family.labels);
            assert!(self.samples.iter().any(|sample| sample.family == *name), "{name} has no samples");
        }
        for sample in &self.samples {
            let kind = self.families[&sample.family].kind.as_str();
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                "info" => &["_info"],
                _ => panic!("{}: unknown type {kind}", sample.family),
            };
            assert!(suffixes.contains(&sample.suffix.as_str()), "{sample:?}");
            let bound = sample.labels.iter().any(|(name, _)| name == "le");
            assert_eq!(bound, sample.suffix == "_bucket", "{sample:?}");
            let names: HashSet<_> = sample.labels.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), sample.labels.len(), "{sample:?}");
            assert!(kind == "gauge" || sample.value >= 0.0, "{sample:?}");
        }
        self.check_buckets();
    }

    /// Checks that the bounds and counts of buckets increase, and that the last one has all observations.
    fn check_buckets(&self) {
        let mut last: BTreeMap<(&str, String), (f64, f64)> = BTreeMap::new();
        let key = |sample: &Sample| {
            let labels = sample.labels.iter().filter(|(name, _)| name != "le");
            labels.map(|(name, value)| format!("{name}={value},")).collect::<String>()
        };
        for sample in self.samples.iter().filter(|sample| sample.suffix == "_bucket") {
            let le = sample.labels.iter().find(|(name, _)| name == "le").map(|(_, value)| value.as_str());
            let bound: f64 = le.unwrap().replace("+Inf", "inf").parse().unwrap();
            let now = (bound, sample.value);
            if let Some(before) = last.insert((&sample.family, key(sample)), now) {
                assert!(before.0 < now.0 && before.1 <= now.1, "{sample:?}");
            }
        }
        for sample in self.samples.iter().filter(|sample| sample.suffix == "_count") {
            assert_eq!(last[&(sample.family.as_str(), key(sample))], (f64::INFINITY, sample.value), "{sample:?}");
        }
    }

    pub(super) fn value(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("no {series} among {:#?}", self.values.keys()))
    }

    /// Returns the names as queries use them, with type and labels.
    pub(super) fn in_queries(&self) -> BTreeMap<String, (String, Vec<String>)> {
        let of_family = |(name, family): (&String, &Family)| {
            let suffix = match family.kind.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            (format!("{name}{suffix}"), (family.kind.clone(), family.labels.iter().cloned().collect()))
        };
        self.families.iter().map(of_family).collect()
    }

    pub(super) fn families_as_text(&self) -> String {
        let lines = self.in_queries().into_iter();
        lines.map(|(name, (kind, labels))| format!("{name} {kind} {{{}}}\n", labels.join(","))).collect()
    }
}

/// Parses labels whose values have no comma, quote or backslash, as all of ours.
fn parse_labels(text: &str) -> Vec<(String, String)> {
    let label = |label: &str| {
        let (name, value) = label.split_once('=').expect("a label has a value");
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).expect("a value is in quotes");
        (name.to_owned(), value.to_owned())
    };
    text.split(',').map(label).collect()
}
