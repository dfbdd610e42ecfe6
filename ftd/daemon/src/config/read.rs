//! The file, read: every mistake in it gets its sentence.

use super::keys::{KEYS, Key};
use super::value::Value;
use std::collections::BTreeMap;
use std::fmt;
use toml::de::{DeTable, DeValue};

/// What the file says of a key, and on which line; line 0 for what it does not say.
pub type Values = BTreeMap<&'static str, (Value, usize)>;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Its line; 0 for the file as a whole.
    pub line: usize,
    /// The key that it is about; empty when it is about none.
    pub key: String,
    /// What is wrong, and what is meant.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.key.as_str()) {
            (0, "") => write!(f, "{}", self.what),
            (0, key) => write!(f, "{key}: {}", self.what),
            (line, "") => write!(f, "line {line}: {}", self.what),
            (line, key) => write!(f, "line {line}: {key}: {}", self.what),
        }
    }
}

/// So many letters may be wrong in a key for which another one is proposed.
const TYPOS: usize = 3;

/// Reads a file's text: the values of all keys, and what is wrong.
pub fn read(text: &str) -> (Values, Vec<Mistake>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mistake = |error: toml::de::Error| Mistake {
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            key: String::new(),
            what: format!("this is no TOML: {}", error.message().replace('\n', ", ")),
        };
        return (defaults(), errors.into_iter().map(mistake).collect());
    }
    of_table(text, table.get_ref())
}

/// What can be read of a text, whatever is wrong with it.
pub fn legible(text: &str) -> Values {
    of_table(text, DeTable::parse_recoverable(text).0.get_ref()).0
}

fn of_table(text: &str, table: &DeTable<'_>) -> (Values, Vec<Mistake>) {
    let (mut values, mut mistakes) = (defaults(), Vec::new());
    for (section, content) in table {
        let (at, name) = (line_of(text, section.span().start), section.get_ref().as_ref());
        let mut wrong = |key: &str, line, what| mistakes.push(Mistake { line, key: key.to_string(), what });
        let DeValue::Table(keys) = content.get_ref() else {
            wrong(name, at, outside(name));
            continue;
        };
        if !KEYS.iter().any(|key| key.section() == name) {
            wrong(&format!("[{name}]"), at, no_section(name));
            continue;
        }
        for (short, value) in keys {
            let (at, full) = (line_of(text, short.span().start), format!("{name}.{}", short.get_ref()));
            match KEYS.iter().find(|key| key.name == full) {
                None => wrong(&full, at, no_key(name, short.get_ref())),
                Some(key) => match Value::read(key, value.get_ref()) {
                    Ok(value) => drop(values.insert(key.name, (value, at))),
                    Err(what) => wrong(&full, at, what),
                },
            }
        }
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    (values, mistakes)
}

/// What every key is when the file says nothing.
fn defaults() -> Values {
    let value = |key: &'static Key| {
        let parsed = DeValue::parse(key.default).ok()?;
        Some((key.name, (Value::read(key, parsed.get_ref()).ok()?, 0)))
    };
    KEYS.iter().filter_map(value).collect()
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn outside(name: &str) -> String {
    match KEYS.iter().find(|key| key.short() == name) {
        Some(key) => format!("it stands outside of its section: [{}] is missing above it", key.section()),
        None => "there is no such key outside of the sections".into(),
    }
}

fn no_section(name: &str) -> String {
    let mut sections: Vec<&str> = KEYS.iter().map(Key::section).collect();
    sections.dedup();
    let meant = nearest(name, sections.iter().copied()).map_or(String::new(), |meant| format!("[{meant}] is meant? "));
    format!("there is no such section; {meant}There are {}", sections.join(", "))
}

fn no_key(section: &str, short: &str) -> String {
    if let Some(key) = KEYS.iter().find(|key| key.short() == short) {
        return format!("there is no such key in [{section}]; it belongs into [{}]", key.section());
    }
    let of_section = || KEYS.iter().filter(|key| key.section() == section).map(Key::short);
    match nearest(short, of_section()) {
        Some(meant) => format!("there is no such key; {meant} is meant?"),
        None => {
            format!("there is no such key; in [{section}] there are {}", of_section().collect::<Vec<_>>().join(", "))
        }
    }
}

fn nearest<'a>(name: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |other: &str| strsim::damerau_levenshtein(&name.to_lowercase(), other);
    among
        .map(|other| (distance(other), other))
        .filter(|(far, other)| *far <= TYPOS.min(other.len() / 2))
        .min()
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(text: &str) -> Vec<String> {
        read(text).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_mistake_has_line_key_and_what_is_meant() {
        let text = "[node]\nname = \"a b\"\n\n[etcd]\nendpoint = [\"http://a:1\"]\nlease = 10\n[contrl]\n[peers]\nlease = \"4s\"\n";
        let found = sentences(text);
        assert_eq!(found.len(), 5, "{found:#?}");
        assert!(found[0].starts_with("line 2: node.name: \"a b\" is no name"), "{}", found[0]);
        assert_eq!(found[1], "line 5: etcd.endpoint: there is no such key; endpoints is meant?");
        assert!(found[2].starts_with("line 6: etcd.lease: 10 has no unit"), "{}", found[2]);
        assert!(
            found[3].starts_with("line 7: [contrl]: there is no such section; [control] is meant?"),
            "{}",
            found[3]
        );
        assert_eq!(found[4], "line 9: peers.lease: there is no such key in [peers]; it belongs into [etcd]");
    }

    #[test]
    fn what_is_no_toml_is_said_with_its_line() {
        let found = sentences("[node]\nname = \"a\nlabel = \"b\"\n");
        assert!(!found.is_empty() && found[0].starts_with("line 2: this is no TOML"), "{found:?}");
        assert!(sentences("[node]\nname = \"a\"\nname = \"b\"\n")[0].starts_with("line 3: "), "{found:?}");
        assert!(sentences("name = \"a\"")[0].contains("[node] is missing above it"));
    }

    #[test]
    fn every_default_is_a_value() {
        assert_eq!(defaults().len(), KEYS.len());
    }

    #[test]
    fn what_is_legible_in_no_toml_is_read() {
        let socket = |text: &str| legible(text).get("control.socket").map(|(value, _)| value.clone());
        for (text, found) in [
            ("[control]\nsocket = \"/tmp/x\"\n[node\n", "/tmp/x"),
            ("[node\nname = \n[control]\nsocket = \"/tmp/x\"\n", "/tmp/x"),
            ("[control]\nsocket = 7\n", "/run/ftd/ftd.sock"),
            ("", "/run/ftd/ftd.sock"),
        ] {
            assert_eq!(socket(text), Some(Value::Text(found.into())), "{text}");
        }
    }
}
