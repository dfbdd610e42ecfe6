//! The command line of srun, sbatch or salloc, as far as the plugin has to understand it. Slurm shows a plugin nothing of what it has read
//! before it has a job (`spank_get_item` knows none of it in `init_post_opt`); where its options end it has told getopt.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Whose command line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Starts a step.
    Srun,
    /// Hands in a script.
    Sbatch,
    /// Gets nodes for a shell.
    Salloc,
}

impl Program {
    /// By the name of the program's file.
    pub fn named(name: &OsStr) -> Option<Program> {
        match name.as_bytes() {
            b"srun" => Some(Program::Srun),
            b"sbatch" => Some(Program::Sbatch),
            b"salloc" => Some(Program::Salloc),
            _ => None,
        }
    }

    /// How its messages begin.
    pub fn name(self) -> &'static str {
        match self {
            Program::Srun => "srun",
            Program::Sbatch => "sbatch",
            Program::Salloc => "salloc",
        }
    }

    /// The short options that take an argument, which may be the next word (alike from 22.05.8 to 26.05.3).
    fn with_argument(self) -> &'static [u8] {
        match self {
            Program::Srun => b"AbDMCScdmexBGiJLTFwNnopqrtW",
            Program::Sbatch | Program::Salloc => b"aAbDMCScdmexBGiJLFwNnopqrt",
        }
    }

    /// The short options that take one only if it stands in the same word.
    fn with_attached(self) -> &'static [u8] {
        b"IKk"
    }
}

/// An option that means something to the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// `-N`.
    Nodes,
    /// `-n`.
    Tasks,
    /// `--ntasks-per-node`.
    TasksPerNode,
    /// So many tasks for something else than a node.
    TasksPerOther,
    /// `-w`.
    NodeList,
    /// `-m`.
    Distribution,
    /// `--multi-prog`.
    MultiProgram,
    /// `--container` and what belongs to it.
    Container,
    /// `--mpi`.
    Mpi,
    /// `--het-group`.
    Group,
    /// What somebody talks to, or an MPI starts its daemons with, or starts nothing.
    Apart,
    /// `-K` and `-W`: end a step of which something has ended.
    Kills,
    /// `-k`.
    NoKill,
    /// `-D`.
    Directory,
    /// `--wrap`.
    Wrap,
    /// `--ft`.
    Mode,
}

/// Whether an option takes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Attached,
    Argument,
}

const LONG: [(&str, Known, Takes); 27] = [
    ("nodes", Known::Nodes, Takes::Argument),
    ("ntasks", Known::Tasks, Takes::Argument),
    ("ntasks-per-node", Known::TasksPerNode, Takes::Argument),
    ("tasks-per-node", Known::TasksPerNode, Takes::Argument),
    ("ntasks-per-core", Known::TasksPerOther, Takes::Argument),
    ("ntasks-per-gpu", Known::TasksPerOther, Takes::Argument),
    ("ntasks-per-socket", Known::TasksPerOther, Takes::Argument),
    ("ntasks-per-tres", Known::TasksPerOther, Takes::Argument),
    ("nodelist", Known::NodeList, Takes::Argument),
    ("distribution", Known::Distribution, Takes::Argument),
    ("multi-prog", Known::MultiProgram, Takes::Nothing),
    ("container", Known::Container, Takes::Argument),
    ("container-id", Known::Container, Takes::Argument),
    ("container-type", Known::Container, Takes::Argument),
    ("mpi", Known::Mpi, Takes::Argument),
    ("het-group", Known::Group, Takes::Argument),
    ("pack-group", Known::Group, Takes::Argument),
    ("pty", Known::Apart, Takes::Attached),
    ("interactive", Known::Apart, Takes::Nothing),
    ("external-launcher", Known::Apart, Takes::Attached),
    ("test-only", Known::Apart, Takes::Nothing),
    ("kill-on-bad-exit", Known::Kills, Takes::Attached),
    ("wait", Known::Kills, Takes::Argument),
    ("no-kill", Known::NoKill, Takes::Attached),
    ("chdir", Known::Directory, Takes::Argument),
    ("wrap", Known::Wrap, Takes::Argument),
    ("ft", Known::Mode, Takes::Argument),
];

const SHORT: [(u8, Known); 8] = [
    (b'N', Known::Nodes),
    (b'n', Known::Tasks),
    (b'w', Known::NodeList),
    (b'm', Known::Distribution),
    (b'K', Known::Kills),
    (b'W', Known::Kills),
    (b'k', Known::NoKill),
    (b'D', Known::Directory),
];

/// An option that was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// Which.
    pub option: Known,
    /// What was typed, for messages: `-N2-4`, `--mpi=pmix`.
    pub text: String,
    /// Its argument.
    pub value: Option<OsString>,
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// All but the name of srun itself, as they were typed.
    pub all: Vec<OsString>,
    /// Where the program begins: as many words are before it.
    pub program: usize,
    /// Where more options could stand: before the program and the `--` in front of it.
    pub end: usize,
    /// The options that are known.
    pub options: Vec<Typed>,
}

/// This process's own words, the first left out.
///
/// # Errors
/// Without /proc.
pub fn own() -> io::Result<Vec<OsString>> {
    let text = std::fs::read("/proc/self/cmdline")?;
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    Ok(text.split(|byte| *byte == 0).skip(1).map(|word| OsStr::from_bytes(word).to_os_string()).collect())
}

impl Words {
    /// The words of a command line whose options end before `program` of them.
    pub fn read(whose: Program, all: Vec<OsString>, program: usize) -> Words {
        let program = program.min(all.len());
        let mut options = Vec::new();
        let (mut at, mut end) = (0, program);
        while let Some(word) = all.get(at).filter(|_| at < program) {
            let next = all.get(at + 1).filter(|_| at + 1 < program);
            let took = match word.as_bytes() {
                b"--" => {
                    end = at;
                    break;
                }
                [b'-', b'-', name @ ..] => long(whose, name, next, &mut options),
                [b'-', letters @ ..] => short(whose, letters, next, &mut options),
                // An argument of an option that is not known here: a program would have ended the options.
                _ => false,
            };
            at += if took { 2 } else { 1 };
        }
        Words { all, program, end, options }
    }

    /// The last one of this option.
    pub fn last(&self, option: Known) -> Option<&Typed> {
        self.options.iter().rev().find(|typed| typed.option == option)
    }

    /// The program, without its directory.
    pub fn program_name(&self) -> Option<&[u8]> {
        self.all.get(self.program)?.as_bytes().rsplit(|byte| *byte == b'/').next()
    }

    /// What stands behind the options.
    pub fn of_program(&self) -> &[OsString] {
        self.all.get(self.program..).unwrap_or_default()
    }

    /// The same command line with more options behind the ones it has.
    pub fn with(&self, more: Vec<OsString>) -> Vec<OsString> {
        let mut all = self.all.clone();
        all.splice(self.end..self.end, more);
        all
    }
}

/// An option in a word of its own. Whether the next word is its argument.
fn long(whose: Program, word: &[u8], next: Option<&OsString>, options: &mut Vec<Typed>) -> bool {
    let mut parts = word.splitn(2, |byte| *byte == b'=');
    let (name, attached) = (parts.next().unwrap_or_default(), parts.next());
    let Some((known, takes)) = named(whose, name) else { return false };
    let takes_next = attached.is_none() && takes == Takes::Argument;
    let value = if takes_next { next.map(|word| word.as_bytes()) } else { attached };
    let joined = value.filter(|_| takes_next).map(|value| format!("={}", String::from_utf8_lossy(value)));
    let text = format!("--{}{}", String::from_utf8_lossy(word), joined.unwrap_or_default());
    options.push(Typed { option: known, text, value: value.map(|value| OsString::from_vec(value.to_vec())) });
    takes_next
}

/// The option of that name, which getopt takes shortened too, where only one is meant.
fn named(whose: Program, name: &[u8]) -> Option<(Known, Takes)> {
    let whole = LONG.iter().find(|(long, ..)| long.as_bytes() == name);
    let mut shortened = LONG.iter().filter(|(long, ..)| long.as_bytes().starts_with(name) && *long != "ft");
    let found =
        whole.or_else(|| shortened.next().filter(|(_, first, _)| shortened.all(|(_, other, _)| other == first)));
    found.map(|(long, known, takes)| match (*long, whose) {
        ("wait", Program::Sbatch) => (*known, Takes::Nothing),
        _ => (*known, *takes),
    })
}

/// Options of one letter each in one word. Whether the next word is the last one's argument.
fn short(whose: Program, letters: &[u8], next: Option<&OsString>, options: &mut Vec<Typed>) -> bool {
    for (at, letter) in letters.iter().enumerate() {
        let rest = letters.get(at + 1..).filter(|rest| !rest.is_empty());
        let takes = if whose.with_argument().contains(letter) {
            Takes::Argument
        } else if whose.with_attached().contains(letter) {
            Takes::Attached
        } else {
            Takes::Nothing
        };
        let takes_next = takes == Takes::Argument && rest.is_none();
        let value = match takes {
            Takes::Nothing => None,
            Takes::Attached => rest,
            Takes::Argument => rest.or(next.map(|word| word.as_bytes())),
        };
        if let Some((_, known)) = SHORT.iter().find(|(short, _)| short == letter) {
            let text = format!("-{}{}", *letter as char, String::from_utf8_lossy(value.unwrap_or_default()));
            options.push(Typed { option: *known, text, value: value.map(|value| OsString::from_vec(value.to_vec())) });
        }
        if takes != Takes::Nothing {
            return takes_next;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line, and how many of them stand before the program, which is called `app`.
    fn read(line: &str) -> Words {
        let all: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let program = all.iter().position(|word| word == "app").unwrap_or(all.len());
        Words::read(Program::Srun, all, program)
    }

    fn value(line: &str, option: Known) -> Option<String> {
        Some(read(line).last(option)?.value.as_ref()?.to_str()?.to_string())
    }

    #[test]
    fn options_are_found_however_they_are_written() {
        for line in ["-N5 app", "-N 5 app", "--nodes=5 app", "--nodes 5 app", "-lN5 app", "-lvN 5 app", "-N3 -N5 app"] {
            assert_eq!(value(line, Known::Nodes).as_deref(), Some("5"), "{line}");
        }
        for line in ["-n7 -N2 app", "--ntasks 7 app", "--ntasks=7 --ntasks-per-node=2 app", "-K -n7 app", "-k -n 7 app"]
        {
            assert_eq!(value(line, Known::Tasks).as_deref(), Some("7"), "{line}");
        }
        for line in ["--ntasks-per-node=2 app", "--ntasks-per-n 2 app", "--tasks-per=2 app"] {
            assert_eq!(value(line, Known::TasksPerNode).as_deref(), Some("2"), "{line}");
        }
        assert_eq!(value("-K1 app", Known::Kills).as_deref(), Some("1"));
        assert!(
            read("--pty app").last(Known::Apart).is_some() && read("--multi app").last(Known::MultiProgram).is_some()
        );
        assert_eq!(read("-N 2-4 app").last(Known::Nodes).map(|typed| typed.text.as_str()), Some("-N2-4"));
        assert_eq!(read("--mpi pmix app").last(Known::Mpi).map(|typed| typed.text.as_str()), Some("--mpi=pmix"));
    }

    #[test]
    fn what_is_no_option_is_not_taken_for_one() {
        for line in ["-J -N5 app", "-oN5 app", "-o -N5 app", "app -N5", "--job-name=x -- app -N5", "--ft-spares=5 app"]
        {
            assert_eq!(read(line).last(Known::Nodes), None, "{line}");
        }
        assert_eq!(read("--ft-spares=5 app").last(Known::Mode), None);
        // Another plugin's option with an argument in a word of its own.
        assert_eq!(value("--image some/where -N5 app", Known::Nodes).as_deref(), Some("5"));
    }

    #[test]
    fn more_options_stand_before_the_program() {
        let more = || vec![OsString::from("--wait=0")];
        assert_eq!(read("-N5 app -x").with(more()), ["-N5", "--wait=0", "app", "-x"]);
        assert_eq!(read("-N5 -- app -x").with(more()), ["-N5", "--wait=0", "--", "app", "-x"]);
        assert_eq!(read("-J -- app").with(more()), ["-J", "--", "--wait=0", "app"]);
        assert_eq!(read("-N5 app -x").of_program(), ["app", "-x"]);
        assert_eq!(Words::read(Program::Srun, vec!["/a/b/orted".into()], 0).program_name(), Some(&b"orted"[..]));
    }

    #[test]
    fn sbatch_and_salloc_have_letters_of_their_own() {
        let words = |whose| Words::read(whose, vec!["-Wk".into()], 1);
        assert!(
            words(Program::Sbatch).last(Known::NoKill).is_some() && words(Program::Srun).last(Known::NoKill).is_none()
        );
    }
}
