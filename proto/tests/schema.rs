//! What neighbouring releases and agents that come later read: numbers and types of all fields, as they were when they were first written.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A line for each field, value and reservation, behind the messages in which it is.
fn schema() -> String {
    let files = ["epoch", "node", "peer"].map(|name| here().join("ftd/v1").join(format!("{name}.proto")));
    let mut all = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut within = Vec::new();
        for line in text.lines().map(|line| line.split("//").next().unwrap().trim()) {
            if let Some(head) = line.strip_suffix('{') {
                within.push(head.split_whitespace().next_back().unwrap());
            } else if line == "}" {
                within.pop();
            } else if let Some(said) = line.strip_suffix(';') {
                if !within.is_empty() {
                    let _ = writeln!(all, "{}: {said}", within.join(" "));
                }
            } else {
                assert!(line.is_empty() || line.ends_with("{}"), "{file:?}: {line} is to be read by somebody");
            }
        }
        assert!(within.is_empty(), "{file:?} ends within {within:?}");
    }
    all
}

/// protobuf has no names: a number that is given to another field is read as that one, and nobody notices.
#[test]
fn each_field_has_the_number_and_type_that_it_had() {
    let (file, now) = (here().join("tests/schema.txt"), schema());
    if std::env::var_os("FT_TEST_WRITE").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let then = std::fs::read_to_string(file).unwrap();
    let (then, now): (BTreeSet<_>, BTreeSet<_>) = (then.lines().collect(), now.lines().collect());
    let gone: Vec<_> = then.difference(&now).collect();
    let new: Vec<_> = now.difference(&then).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:#?}, new: {new:#?}: what goes is reserved, a number and its type stay (docs/decisions/protocol-numbers.md says what may \
         change), and FT_TEST_WRITE=1 writes down what there is now"
    );
    assert!(now.len() > 150, "{}", now.len());
}

/// A file that nobody reads would be one without a test.
#[test]
fn there_is_no_other_file() {
    let files = std::fs::read_dir(here().join("ftd/v1")).unwrap();
    let names: BTreeSet<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["epoch.proto", "node.proto", "peer.proto"]);
}
