//! Environment variables that would be without effect in silence: misspelt ones of ftd's, and those that the ranks do not get.

use ft_wire::launcher::{FOREIGN, reaches_ranks};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Variables of ftrun's besides those of its options.
const READ: [&str; 6] = ["FT_CHECKPOINT_TIMEOUT", "FT_DAEMON", "FT_LIBEXEC", "FT_LOG", "FT_LOG_DIR", "FT_MEMORY_DIR"];
/// Variables that ftd sets for the ranks and for its own processes: who starts ftrun from one of those has them.
const SET: [&str; 13] = [
    "FT_CHECKPOINT_DIR",
    "FT_EPOCH",
    "FT_JOB",
    "FT_LAUNCHER_FD",
    "FT_LISTEN_FD",
    "FT_LOCAL_RANK",
    "FT_LOCAL_SIZE",
    "FT_RANK",
    "FT_SIZE",
    "FT_SOCKET",
    ft_wire::step::PORTS,
    "FT_STDOUT",
    "FT_WORLD",
];
/// Beginnings of the names that ftd's tests and its build have for themselves.
const OF_TESTS: [&str; 3] = ["FT_TEST_", "FT_GATE", "FT_PMIX_"];
/// Words of `FT_LOG`.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Whether this can be logged: levels, or targets with levels (`ft_agent=debug`), with commas between.
pub fn is_log(text: &str) -> bool {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let is_target =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    text.split(',').all(|part| match part.trim().split_once('=') {
        Some((target, level)) => is_target(target) && is_level(level),
        None => is_level(part.trim()),
    })
}

/// What is to be said of the environment, and of the variables that options set; each with its option.
pub fn warnings<'a>(
    environment: impl Iterator<Item = OsString>,
    given: impl Iterator<Item = (&'a str, &'a OsStr)>,
    options: &[&'static str],
) -> Vec<String> {
    let known: Vec<&str> = options.iter().chain(&READ).copied().collect();
    let mut unknown: Vec<OsString> = environment.filter(|name| is_unknown(name, &known)).collect();
    unknown.sort();
    let environment = unknown.into_iter().map(|name| {
        let meant = nearest(&name, &known).map(|known| format!("; {known} is one")).unwrap_or_default();
        format!("{} is no variable of ftd's, and is not passed on{meant}", name.to_string_lossy())
    });
    let given = given.filter(|(_, name)| !reaches_ranks(name.as_bytes())).map(|(option, name)| {
        let prefix = FOREIGN.iter().find(|prefix| name.as_bytes().starts_with(prefix.as_bytes())).unwrap_or(&"");
        format!(
            "{option} {}: variables that begin with {prefix} are the launcher's, and are not passed on",
            name.to_string_lossy()
        )
    });
    environment.chain(given).collect()
}

fn is_unknown(name: &OsStr, known: &[&str]) -> bool {
    let name = name.as_bytes();
    name.starts_with(b"FT_")
        && !known.iter().chain(&SET).any(|known| known.as_bytes() == name)
        && !OF_TESTS.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// The known name that somebody may have meant.
fn nearest<'a>(name: &OsStr, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_string_lossy();
    let near = known.iter().map(|known| (strsim::levenshtein(&name, known), *known));
    let (_, known) = near.filter(|(distance, known)| *distance <= 1 + known.len() / 5).min()?;
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_can_be_logged() {
        for text in ["debug", "WARN", "ft_agent=debug", "error,ft_pmix=trace", "ft_agent::driver=info , off"] {
            assert!(is_log(text), "{text}");
        }
        for text in ["loud", "===", "ft_agent", "ft_agent=loud", "=debug", "debug,", "ft agent=info"] {
            assert!(!is_log(text), "{text}");
        }
    }

    #[test]
    fn misspelt_names_are_named_with_what_was_meant() {
        let names =
            ["FT_MODEE", "FT_MODE", "FT_RANK", "FT_TEST_X", "FT_GATE", "PATH", "FT_MAX_FAILURE", "FT_SOMETHING"];
        let given = [("-x", "FT_MODE"), ("-x", "FT_LOG"), ("-env", "A"), ("-genv", "PMI_FD")];
        let given = given.iter().map(|(option, name)| (*option, OsStr::new(*name)));
        let said = warnings(names.iter().map(OsString::from), given, &["FT_MODE", "FT_MAX_FAILURES"]);
        assert_eq!(
            said,
            [
                "FT_MAX_FAILURE is no variable of ftd's, and is not passed on; FT_MAX_FAILURES is one",
                "FT_MODEE is no variable of ftd's, and is not passed on; FT_MODE is one",
                "FT_SOMETHING is no variable of ftd's, and is not passed on",
                "-x FT_MODE: variables that begin with FT_ are the launcher's, and are not passed on",
                "-genv PMI_FD: variables that begin with PMI_ are the launcher's, and are not passed on",
            ]
        );
    }

    #[test]
    fn letters_are_counted() {
        let cases = [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 2), ("mode", "moode", 1), ("grace", "trace", 1)];
        for (a, b, expected) in cases {
            assert_eq!(strsim::levenshtein(a, b), expected, "{a} {b}");
        }
    }
}
