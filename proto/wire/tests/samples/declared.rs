//! What can be said: the structures and variants in this crate's sources that have a form on the wire, as rustfmt writes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each as [`Sample`](super::Sample) names it.
pub fn all() -> BTreeSet<String> {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    std::fs::read_dir(sources).unwrap().flat_map(|file| of_file(&file.unwrap().path())).collect()
}

/// Whether it is a variant's name, and none of a structure or function.
pub fn is_variant(name: &str) -> bool {
    name.rsplit("::").take_while(|part| part.starts_with(|c: char| c.is_ascii_uppercase())).count() == 2
}

fn of_file(file: &Path) -> Vec<String> {
    assert!(file.is_file(), "{file:?} is none: its modules are read by nobody");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(!text.contains("Serialize for "), "{file:?}: what is not derived is found by nobody");
    let module = match file.file_stem().unwrap().to_str().unwrap() {
        "lib" => String::new(),
        name => format!("{name}::"),
    };
    let mut texts = text.split("#[cfg(test)]\nmod ");
    let before = texts.next().unwrap();
    // Behind a module of tests.
    let text =
        texts.filter_map(|tests| tests.split_once("\n}\n")).fold(before.to_string(), |text, (_, more)| text + more);
    let derives = text.split("#[derive(").skip(1).filter(|rest| {
        rest.split(")]").next().unwrap().split(|c: char| !c.is_alphanumeric()).any(|word| word == "Serialize")
    });
    derives.flat_map(of_item).map(|name| format!("{module}{name}")).collect()
}

/// From behind `#[derive(` on.
fn of_item(rest: &str) -> Vec<String> {
    let mut lines =
        rest.lines().skip_while(|line| word_behind(line, "enum ").or(word_behind(line, "struct ")).is_none());
    let head = lines.next().unwrap();
    let Some(name) = word_behind(head, "enum ") else { return vec![word_behind(head, "struct ").unwrap()] };
    let margin = head.len() - head.trim_start().len();
    let end = format!("{}}}", &head[..margin]);
    let variants = lines.take_while(|line| **line != end).filter_map(|line| {
        let inner = line.get(margin + 4..).filter(|_| line[..margin + 4].trim().is_empty())?;
        inner.starts_with(|c: char| c.is_ascii_uppercase()).then(|| first_word(inner))
    });
    variants.map(|variant| format!("{name}::{variant}")).collect()
}

fn word_behind(line: &str, kind: &str) -> Option<String> {
    let line = line.trim_start();
    line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) ")).unwrap_or(line).strip_prefix(kind).map(first_word)
}

fn first_word(text: &str) -> String {
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_string()
}
