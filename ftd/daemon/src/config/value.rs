//! From what the file says to what is meant.

use super::keys::{Form, Key};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use toml::de::DeValue;

/// The longest name of a node or of a failure domain.
const LONGEST_NAME: usize = 64;
/// What the kernel takes as the path of a socket, and room for what is put behind it.
const LONGEST_PLACE: usize = 100;

/// A key's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Words; empty where there is none.
    Text(String),
    /// Several of them.
    Texts(Vec<String>),
    /// `address:port`.
    Address(SocketAddr),
    /// A time.
    Time(Duration),
    /// A number.
    Count(u64),
    /// A nice value.
    Nice(i32),
    /// Bytes a second; 0: no limit.
    Rate(u64),
    /// Yes or no.
    Switch(bool),
}

impl Value {
    /// Reads the value of a key.
    ///
    /// # Errors
    /// A sentence that says what is meant.
    pub fn read(key: &Key, value: &DeValue<'_>) -> Result<Value, String> {
        match (&key.form, value) {
            (Form::Switch, DeValue::Boolean(given)) => Ok(Value::Switch(*given)),
            (Form::Switch, other) => Err(format!("{} is no true and no false", shown(other))),
            (Form::Count(allowed), given) => number(given, allowed).map(Value::Count),
            (Form::Nice(allowed), given) => number(given, allowed).map(Value::Nice),
            (Form::Endpoints, DeValue::Array(given)) => {
                let words = given.iter().map(|one| match one.get_ref() {
                    DeValue::String(text) => endpoint(text),
                    other => Err(format!("{} is no text; endpoints look like \"https://host:2379\"", shown(other))),
                });
                let words = words.collect::<Result<Vec<String>, String>>()?;
                if words.is_empty() {
                    return Err("no endpoint is named, and at least one member of etcd must be known".into());
                }
                Ok(Value::Texts(words))
            }
            (Form::Endpoints, other) => {
                Err(format!("{} is no list; it looks like [\"https://host:2379\"]", shown(other)))
            }
            (Form::Rate, DeValue::Integer(given)) => {
                Err(format!("{} is no text; a rate looks like \"200M\", and no limit like \"0\"", given.as_str()))
            }
            (Form::Time(_), DeValue::Integer(given)) => {
                Err(format!("{} has no unit; a time looks like \"500ms\", \"10s\" or \"2m\"", given.as_str()))
            }
            (_, DeValue::String(text)) => words(key, text),
            (_, other) => Err(format!("{} is no text in quotation marks", shown(other))),
        }
    }
}

fn number<T: TryFrom<i128> + PartialOrd + fmt::Display>(
    value: &DeValue<'_>,
    allowed: &RangeInclusive<T>,
) -> Result<T, String> {
    let given = match value {
        DeValue::Integer(given) => i128::from_str_radix(&given.as_str().replace('_', ""), given.radix()).ok(),
        _ => None,
    };
    let number = given.and_then(|number| T::try_from(number).ok()).filter(|number| allowed.contains(number));
    number.ok_or_else(|| format!("{} is not a number from {} to {}", shown(value), allowed.start(), allowed.end()))
}

/// A value as a person would name it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.as_str().to_string(),
        DeValue::Boolean(given) => given.to_string(),
        other => format!("this {}", other.type_str()),
    }
}

fn words(key: &Key, text: &str) -> Result<Value, String> {
    if let Some(control) = text.chars().find(|c| c.is_control()) {
        return Err(format!("there is a control character ({control:?}) in it"));
    }
    if text.is_empty() {
        let none =
            if matches!(key.form, Form::Text) || key.may_be_empty { Ok(Value::Text(String::new())) } else { Err(()) };
        return none.map_err(|()| "it is empty; to have the default, leave the key out".into());
    }
    let text = text.to_string();
    match &key.form {
        Form::Name => name(&text).map(|()| Value::Text(text)),
        Form::Place => place(&text).map(|()| Value::Text(text)),
        Form::File => readable(&text, false).map(|()| Value::Text(text)),
        Form::Secret => readable(&text, true).map(|()| Value::Text(text)),
        Form::Prefix => prefix(&text).map(|()| Value::Text(text)),
        Form::Address => match text.parse() {
            Ok(address) => Ok(Value::Address(address)),
            Err(_) => Err(format!("\"{text}\" is no address with a port, as 198.51.100.7:9727 or [2001:db8::7]:9727")),
        },
        Form::Time(allowed) => {
            let given = time(&text)
                .ok_or_else(|| format!("\"{text}\" is no time; one looks like \"500ms\", \"10s\" or \"2m\""))?;
            if !allowed.contains(&given) {
                return Err(format!(
                    "\"{text}\" is not between {} and {}",
                    Said(*allowed.start()),
                    Said(*allowed.end())
                ));
            }
            Ok(Value::Time(given))
        }
        Form::Rate => match ft_sys::rate::read(&text) {
            Some(rate) => Ok(Value::Rate(rate)),
            None => Err(format!("\"{text}\" is not {}", ft_sys::rate::EXPECTED)),
        },
        Form::Fabric => {
            let list = ft_sys::fabric::read(&text)?;
            Ok(Value::Text(list.unwrap_or_else(|| ft_sys::fabric::AUTO.into())))
        }
        Form::Filter => match tracing_subscriber::EnvFilter::try_new(&text) {
            Ok(_) => misspelt_level(&text).map_or_else(|| Ok(Value::Text(text.clone())), Err),
            Err(error) => Err(format!("\"{text}\" is not what can be logged: {error}")),
        },
        _ => Ok(Value::Text(text)),
    }
}

/// A word alone that is no level names a part of the program, of which all is logged, and of the rest nothing: that of a slip is none.
fn misspelt_level(text: &str) -> Option<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let alone = text.split(',').map(str::trim).filter(|word| !word.contains(['=', '[', ':']));
    let slip = |word: &str| {
        let near = |level: &&&str| strsim::damerau_levenshtein(&word.to_lowercase(), level) <= 2 && word.len() > 2;
        LEVELS.iter().find(near).filter(|_| !LEVELS.contains(&word.to_lowercase().as_str()))
    };
    alone
        .filter_map(|word| Some((word, slip(word)?)))
        .next()
        .map(|(word, level)| format!("\"{text}\" is not what can be logged: \"{word}\" is no level; {level} is meant?"))
}

fn name(text: &str) -> Result<(), String> {
    let letters = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    if letters && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= LONGEST_NAME {
        return Ok(());
    }
    Err(format!(
        "\"{text}\" is no name of at most {LONGEST_NAME} letters, digits, dots, '-' and '_' that begins with a letter or a digit"
    ))
}

/// Whether a host's own name can be a node's.
///
/// # Errors
/// A sentence that says why not.
pub fn check_name(text: &str) -> Result<(), String> {
    name(text)
}

fn place(text: &str) -> Result<(), String> {
    if !text.starts_with('/') || text.ends_with('/') {
        return Err(format!("\"{text}\" is no full path: it begins with a slash and does not end with one"));
    }
    if text.len() > LONGEST_PLACE {
        return Err(format!("\"{text}\" is longer than the {LONGEST_PLACE} bytes that are possible here"));
    }
    Ok(())
}

fn prefix(text: &str) -> Result<(), String> {
    let parts = text.strip_prefix('/').map(|rest| rest.split('/').all(|part| name(part).is_ok()));
    if parts == Some(true) {
        return Ok(());
    }
    Err(format!(
        "\"{text}\" is no prefix of keys, as \"/ftd\" or \"/site/ftd\": it begins with a slash and does not end with one"
    ))
}

fn endpoint(text: &str) -> Result<String, String> {
    let wrong = |what: &str| Err(format!("\"{text}\": {what}; an endpoint looks like \"https://host:2379\""));
    let Some(host) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        return wrong("it does not begin with https:// (or with http://, for etcd without TLS)");
    };
    let Some((host, port)) = host.trim_end_matches('/').rsplit_once(':') else {
        return wrong("it names no port, and etcd's is usually 2379");
    };
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | '?' | '#' | '"');
    if host.is_empty() || host.contains(bad) {
        return wrong("it names no host");
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(text.to_string()),
        _ => wrong("its port is no number from 1 to 65535"),
    }
}

/// `500ms`, `10s`, `2m`, `1h`.
fn time(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
}

/// A time as the file would say it.
pub struct Said(pub Duration);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if ms % 1000 != 0 => write!(f, "{ms}ms"),
            ms if ms % 60_000 != 0 || ms == 0 => write!(f, "{}s", ms / 1000),
            ms if ms % 3_600_000 != 0 => write!(f, "{}m", ms / 60_000),
            ms => write!(f, "{}h", ms / 3_600_000),
        }
    }
}

fn readable(text: &str, secret: bool) -> Result<(), String> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(format!("\"{text}\" is no full path: it does not begin with a slash"));
    }
    let opened = std::fs::File::open(path).and_then(|file| file.metadata());
    let metadata = opened.map_err(|error| format!("{text} cannot be read: {error}"))?;
    if !metadata.is_file() {
        return Err(format!("{text} is no file"));
    }
    if secret && metadata.mode() & 0o007 != 0 {
        return Err(format!(
            "{text} is a secret, and everybody may read it (mode {:04o}): chmod o= {text}",
            metadata.mode() & 0o7777
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_they_are_read() {
        for text in ["1ms", "1500ms", "10s", "90s", "2m", "1h", "36h"] {
            assert_eq!(Said(time(text).unwrap()).to_string(), text);
        }
        assert!(["", "5", "s", "5 s", "-1s", "5d", "99999999999999999999s"].iter().all(|text| time(text).is_none()));
    }

    #[test]
    fn endpoints_are_urls_with_a_port() {
        for good in ["http://a:2379", "https://[2001:db8::1]:2379", "https://etcd.example:1/"] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "a:2379",
            "ftp://a:1",
            "http://a",
            "http://:2379",
            "http://a:0",
            "http://a:65536",
            "http://u@a:1",
            "http://a/b:1",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
