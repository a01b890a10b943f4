//! Holds `SPECIFICATION.md` and the tests to each other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn every_promise_has_its_test_and_every_test_its_promise() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let specification = fs::read_to_string(tests.join("SPECIFICATION.md")).expect("SPECIFICATION.md");
    let promised: BTreeSet<String> = specification
        .lines()
        .filter(|line| line.starts_with("- "))
        .map(|line| line.rsplit('`').nth(1).unwrap_or_else(|| panic!("no test is named: {line}")).to_owned())
        .collect();
    let mut kept = BTreeSet::new();
    for entry in fs::read_dir(&tests).expect("tests").flatten() {
        let path = entry.path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if path.extension().is_none_or(|extension| extension != "rs") || name == "specification" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a test file");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.trim() == "#[test]" {
                let declaration = lines.next().expect("a function").trim();
                let function = declaration.strip_prefix("fn ").and_then(|rest| rest.split('(').next()).expect("a name");
                kept.insert(format!("{name}::{function}"));
            }
        }
    }
    assert!(!kept.is_empty());
    assert_eq!(promised, kept);
}
