//! The guide's table of the test kit has every public function of the kit, and no other.

use std::collections::BTreeSet;

use super::{page, repository, rows};

/// The types of the kit: the files with their functions, and how the table writes one.
const TYPES: [(&str, &[&str], &str); 7] = [
    ("Node", &["node.rs", "node/resources.rs", "node/leftovers.rs"], "node."),
    ("NodeBuilder", &["node/builder.rs"], "NodeBuilder::"),
    ("PodHandle<'_>", &["node/pod.rs"], "pod."),
    ("DriverProcess", &["node/driver.rs"], "process."),
    ("ClaimSpec", &["objects.rs"], "ClaimSpec::"),
    ("Pod", &["objects.rs"], "Pod::"),
    ("Container", &["objects.rs"], "Container::"),
];

/// Returns the public functions in the `impl` blocks of a type.
fn functions(type_name: &str, files: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        let source = std::fs::read_to_string(repository().join("crates/node/src").join(file)).unwrap();
        let mut is_in_type = false;
        for line in source.lines() {
            if let Some(block) = line.strip_prefix("impl") {
                let block = block.trim_end_matches(" {");
                is_in_type = block.ends_with(&format!(" {type_name}")) && !block.contains(" for ");
            }
            let function = line.strip_prefix("    pub ").map(|rest| rest.trim_start_matches("async "));
            if let Some(rest) = function.and_then(|rest| rest.strip_prefix("fn ")).filter(|_| is_in_type) {
                found.insert(rest.split(['(', '<']).next().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn the_table_of_the_test_kit_has_every_function() {
    let page = page("driver-authors.md");
    let section = page.split("## The test kit").nth(1).unwrap().split("\n## ").next().unwrap();
    let cells: Vec<&str> = rows(section).filter(|row| row.len() == 2).map(|row| row[1]).collect();
    let documented: BTreeSet<&str> = cells
        .iter()
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|call| call.split('(').next().unwrap())
        .collect();
    for (type_name, files, prefix) in TYPES {
        let known = functions(type_name, files);
        assert!(known.len() > 3, "{type_name}: {known:?}");
        let mut listed: BTreeSet<String> =
            documented.iter().filter_map(|call| call.strip_prefix(prefix)).map(str::to_owned).collect();
        // Functions of the type itself.
        listed.extend(
            documented.iter().filter_map(|call| call.strip_prefix(&format!("{type_name}::"))).map(str::to_owned),
        );
        assert_eq!(listed, known, "{type_name}: the guide's table, and the code");
    }
    for macro_or_function in ["device_class", "resource_slice", "assert_eventually!"] {
        assert!(section.contains(macro_or_function), "{macro_or_function}");
    }
}
