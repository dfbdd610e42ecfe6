//! What the completions of the shells are made of (`FT_TEST_WRITE=1 cargo test -p ftrun` writes them anew): the options, with their values.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::Shell;
use std::path::Path;

/// Values that an option's own word for them does not list.
const VALUES: &[(&str, &[&str])] = &[
    ("ft", &["none", "reinit"]),
    ("bind-to", &["core", "numa", "socket", "none"]),
    ("map-by", &["slot", "core", "numa", "socket"]),
];

/// Names and values of options live as long as the program.
fn kept(text: &str) -> &'static str {
    Box::leak(text.to_string().into_boxed_str())
}

/// An option as shells are to complete it.
fn completed(arg: Arg) -> Arg {
    let [name] = arg.get_value_names().unwrap_or_default() else { return arg };
    let name = name.to_string();
    let listed = VALUES.iter().find(|(long, _)| arg.get_long() == Some(long)).map(|(_, values)| values.to_vec());
    let in_name = || name.contains('|').then(|| name.split('|').collect::<Vec<_>>());
    let values =
        listed.or_else(in_name).filter(|values| values.iter().all(|v| v.chars().all(|c| c.is_ascii_lowercase())));
    // Zsh takes these for its own.
    let arg = arg.value_name(kept(&name.replace([':', '[', ']'], "")));
    match values {
        Some(values) => arg.value_parser(PossibleValuesParser::new(values.into_iter().map(kept))),
        None => arg,
    }
}

fn all_completed(command: Command) -> Command {
    command.mut_args(completed).mut_subcommands(all_completed)
}

/// What is not as people type it in the text for bash: bash takes `=` for a word of its own; and where no option is begun none is meant, but a file,
/// a word of the program's, or what the program does.
const FOR_BASH: [(&str, &str); 4] = [
    (
        "    prev=\"$3\"\n",
        "    prev=\"$3\"\n    if [[ \"${prev}\" == \"=\" && ${COMP_CWORD} -ge 2 ]]; then\n        prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n    fi\n",
    ),
    (" || ${COMP_CWORD} -eq 1 ", " "),
    (" || ${COMP_CWORD} -eq 2 ", " "),
    (
        "esac\n            COMPREPLY=( $(compgen -W \"${opts}\"",
        "esac\n            COMPREPLY=( $(compgen -X '-*' -W \"${opts}\"",
    ),
];

/// Compares those that are installed with what they are to be, or writes them.
pub fn compare(command: &Command, program: &str) {
    for (shell, name) in [(Shell::Bash, format!("{program}.bash")), (Shell::Zsh, format!("_{program}"))] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut all_completed(command.clone()), program, &mut text);
        if shell == Shell::Bash {
            let generated = String::from_utf8(text).unwrap();
            text = FOR_BASH.iter().fold(generated, |text, (from, to)| text.replace(from, to)).into_bytes();
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/completion").join(&name);
        if std::env::var_os("FT_TEST_WRITE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == text,
            "deploy/completion/{name} is of other options: FT_TEST_WRITE=1 cargo test -p ftrun writes it anew"
        );
    }
}
