//! What can be said: the structures and variants in a crate's sources that have a form on the wire, as rustfmt writes them. Each is
//! `module::Structure`, or `module::Enum::Variant`. ft-store's tests use this file as well.

use std::any::type_name;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// All that this crate's sources have.
pub fn all() -> Vec<String> {
    within(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"))
}

/// What a message is called there. A derived `Debug` begins with the name of the variant.
pub fn name<M: Debug>(message: &M) -> String {
    let path = type_name::<M>().split('<').next().unwrap();
    let mut last = path.rsplit("::");
    let (of_type, module) = (last.next().unwrap(), last.next().unwrap());
    let shown = format!("{message:?}");
    let variant = first_word(&shown);
    // A structure's begins with the structure's own name, and `Hidden` says nothing.
    match variant.is_empty() || variant == of_type {
        true => format!("{module}::{of_type}"),
        false => format!("{module}::{of_type}::{variant}"),
    }
}

fn within(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.flat_map(|file| if file.is_dir() { within(&file) } else { of_file(&file) }).collect()
}

fn of_file(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(!text.contains("Serialize for "), "{file:?}: what is not derived is found by nobody");
    let module = match file.file_stem().unwrap().to_str().unwrap() {
        "lib" => env!("CARGO_PKG_NAME").replace('-', "_"),
        name => name.to_string(),
    };
    let mut texts = text.split("#[cfg(test)]\nmod ");
    let before = texts.next().unwrap();
    let behind = texts.filter_map(|tests| {
        tests.split_once(";\n").filter(|(name, _)| !name.contains('\n')).or(tests.split_once("\n}\n"))
    });
    let text = behind.fold(before.to_string(), |text, (_, more)| text + more);
    let derives = text.split("#[derive(").skip(1).filter(|rest| {
        rest.split(")]").next().unwrap().split(|c: char| !c.is_alphanumeric()).any(|word| word == "Serialize")
    });
    derives.flat_map(of_item).map(|name| format!("{module}::{name}")).collect()
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
