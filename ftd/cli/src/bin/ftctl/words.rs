//! What is wrong with the words of a command line, in a sentence.

use crate::Arguments;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

/// The exit status then.
pub const WRONG: u8 = 2;

/// Why it is not known who is to die in which job.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// Nobody is named.
    #[error("which rank is to die? Say so with rank=N, rank=N,after=TIME or rank=N,at=PLACE")]
    Nobody,
    /// What is one word was written as several.
    #[error("write '{0}' in one word, with a comma between")]
    Apart(String),
    /// There are two jobs.
    #[error("'{0}' is one word too many: ftctl inject has a failure in one job, JOB rank=N")]
    More(String),
}

/// The words of `ftctl inject`: a job, or none where there is only one, and who is to die, when and where.
///
/// # Errors
/// [`WordsError`].
pub fn job_and_what<'a>(words: &[&'a str]) -> Result<(Option<&'a str>, &'a str), WordsError> {
    let (whats, jobs): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.contains('='));
    match (jobs.as_slice(), whats.as_slice()) {
        ([], [what]) => Ok((None, what)),
        // The second one is said to be no such thing.
        ([job], [what]) | ([job, what], []) => Ok((Some(job), what)),
        ([] | [_], []) => Err(WordsError::Nobody),
        ([] | [_], whats) => Err(WordsError::Apart(whats.join(","))),
        ([_, more, ..], _) => Err(WordsError::More((*more).into())),
    }
}

/// A word that means nothing where it stands; nothing where clap has said something else.
pub fn unknown(error: &clap::Error, typed: &[String]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let word = text(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let all = Arguments::command();
    let own = all.get_subcommands().find(|command| typed.iter().any(|word| word == command.get_name()));
    let where_it_stands = own.map(|command| format!(" {}", command.get_name())).unwrap_or_default();
    if !word.starts_with('-') {
        return Some(format!("'{word}' is one word too many: `ftctl{where_it_stands} --help` says which there are"));
    }
    let of_others: Vec<&str> =
        all.get_subcommands().filter(|command| has(command, word)).map(Command::get_name).collect();
    let instead = match (of_others.as_slice(), text(ContextKind::SuggestedArg)) {
        ([], None) => format!("; `ftctl{where_it_stands} --help` lists the options"),
        ([], Some(near)) => format!(" (did you mean {near}?)"),
        (others, _) => format!(": it is one of ftctl {}", others.join(" and ftctl ")),
    };
    Some(format!("ftctl{where_it_stands} has no option {word}{instead}"))
}

/// Whether this command has an option that is written so.
fn has(command: &Command, word: &str) -> bool {
    command.get_arguments().any(|argument| {
        let is_long = argument.get_long().is_some_and(|long| word == format!("--{long}"));
        is_long || argument.get_short().is_some_and(|short| word == format!("-{short}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_only_job_needs_no_name() {
        for (words, meant) in [
            (vec!["rank=2"], Ok((None, "rank=2"))),
            (vec!["7", "rank=2,after=1s"], Ok((Some("7"), "rank=2,after=1s"))),
            (vec!["rank=2", "7"], Ok((Some("7"), "rank=2"))),
            (vec!["7", "2"], Ok((Some("7"), "2"))),
            (vec!["7"], Err(WordsError::Nobody)),
            (vec![], Err(WordsError::Nobody)),
            (vec!["7", "rank=1", "after=1s"], Err(WordsError::Apart("rank=1,after=1s".into()))),
            (vec!["rank=1", "after=1s", "at=x"], Err(WordsError::Apart("rank=1,after=1s,at=x".into()))),
            (vec!["7", "8", "rank=1"], Err(WordsError::More("8".into()))),
        ] {
            assert_eq!(job_and_what(&words), meant, "{words:?}");
        }
        use clap::Parser;
        assert!(Arguments::try_parse_from(["ftctl", "inject", "rank=2"]).is_ok());
        assert!(Arguments::try_parse_from(["ftctl", "inject", "7", "rank=1", "after=1s"]).is_ok());
    }

    #[test]
    fn an_option_is_said_to_be_another_commands() {
        use clap::Parser;
        for (line, sentence) in [
            ("show -f", "ftctl show has no option -f: it is one of ftctl events"),
            ("show --follow", "ftctl show has no option --follow: it is one of ftctl events"),
            ("--jsn jobs", "ftctl jobs has no option --jsn (did you mean --json?)"),
            ("jobs -x", "ftctl jobs has no option -x; `ftctl jobs --help` lists the options"),
            ("show a b", "'b' is one word too many: `ftctl show --help` says which there are"),
        ] {
            let words: Vec<String> = line.split(' ').map(String::from).collect();
            let error = Arguments::try_parse_from(std::iter::once("ftctl".into()).chain(words.clone())).unwrap_err();
            assert_eq!(unknown(&error, &words).as_deref(), Some(sentence), "{line}");
        }
        let other = Arguments::try_parse_from(["ftctl", "shwo"]).unwrap_err();
        assert_eq!(unknown(&other, &["shwo".into()]), None);
    }
}
