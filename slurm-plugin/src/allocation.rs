//! What becomes of an sbatch or salloc whose job holds steps that ftd keeps going: Slurm is to leave the job its other nodes when it loses one.

use crate::place::Missing;
use crate::step::{self, Refusal};
use crate::told::Told;
use crate::words::{Known, Program, Words};
use ftd_core::policy::Mode;
use std::env::split_paths;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is to be done about an sbatch or salloc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allocation {
    /// It goes on as it is.
    Plain,
    /// It is executed once more, with these words.
    Again(Vec<OsString>),
}

/// Why there can be no such job; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAllocation {
    /// As for a step.
    #[error(transparent)]
    Step(#[from] Refusal),
    /// ftd is not there.
    #[error("--ft: {0}")]
    Missing(#[from] Missing),
    /// Slurm is told to do what ftd is there against.
    #[error("{0} has Slurm end the job with its first lost node, and --ft is to keep it going: leave one of them out")]
    Kills(String),
    /// The script has been read and is gone.
    #[error(
        "with --ft sbatch needs --no-kill, and to add that the script would have to be read a second time, which a pipe cannot be: give \
         --no-kill yourself, or the script as a file"
    )]
    Script,
}

/// What decides besides the command line.
pub struct Around<'a> {
    /// A variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Whether standard input can be set back to where it was.
    pub input_returns: bool,
    /// Whether Slurm comes to the second component of a job.
    pub is_component: bool,
}

/// What becomes of it.
///
/// # Errors
/// One sentence.
pub fn plan(whose: Program, words: &Words, told: &Told, around: &Around<'_>) -> Result<Allocation, NoAllocation> {
    if step::mode(told, around.variable)? == Mode::None {
        return Ok(Allocation::Plain);
    }
    if around.is_component || words.all.get(..words.program).unwrap_or_default().iter().any(|word| word == ":") {
        return Err(Refusal::NotTogether("several components of a job".to_string()).into());
    }
    let variable = if whose == Program::Sbatch { "SBATCH_NO_KILL" } else { "SALLOC_NO_KILL" };
    let off = |value: &OsStr| matches!(value.to_ascii_lowercase().as_bytes(), b"off" | b"no");
    if let Some(typed) = words.last(Known::NoKill) {
        let kills = typed.value.as_deref().is_some_and(off);
        return if kills { Err(NoAllocation::Kills(typed.text.clone())) } else { Ok(Allocation::Plain) };
    }
    match (around.variable)(variable) {
        Some(value) if off(&value) => return Err(NoAllocation::Kills(format!("{variable}={}", value.display()))),
        Some(_) => return Ok(Allocation::Plain),
        None => {}
    }
    if whose == Program::Sbatch && !script_returns(words, around) {
        return Err(NoAllocation::Script);
    }
    Ok(Allocation::Again([vec![OsString::from("--no-kill")], words.all.clone()].concat()))
}

/// Whether sbatch can read its script once more.
fn script_returns(words: &Words, around: &Around<'_>) -> bool {
    if words.last(Known::Wrap).is_some() {
        return true;
    }
    let Some(name) = words.all.get(words.program) else { return around.input_returns };
    let directory = words.last(Known::Directory).and_then(|typed| typed.value.clone()).unwrap_or_else(|| ".".into());
    let path = (around.variable)("PATH").unwrap_or_default();
    found(Path::new(name), Path::new(&directory), &path).is_some_and(|script| script.is_file())
}

/// The script, where sbatch looks for it: beside it, then in `PATH`.
fn found(name: &Path, directory: &Path, path: &OsStr) -> Option<Metadata> {
    let along: Vec<PathBuf> =
        if name.as_os_str().as_bytes().starts_with(b".") { Vec::new() } else { split_paths(path).collect() };
    let places = [directory.to_path_buf(), PathBuf::from(".")].into_iter().chain(along);
    // A name from the root on is itself, whatever it is joined to.
    places.map(|place| place.join(name)).find_map(|file| file.metadata().ok().filter(|found| !found.is_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable's name and value.
    type Set<'a> = &'a [(&'a str, &'a str)];

    fn about(whose: Program, line: &str, set: Set<'_>, input_returns: bool) -> Result<Allocation, NoAllocation> {
        let all: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let program = all.iter().position(|word| !word.as_bytes().starts_with(b"-")).unwrap_or(all.len());
        let words = Words::read(whose, all, program);
        let variable =
            |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value));
        plan(whose, &words, &Told::default(), &Around { variable: &variable, input_returns, is_component: false })
    }

    const REINIT: (&str, &str) = ("SLURM_FT", "reinit");

    fn again(words: &[&str]) -> Result<Allocation, NoAllocation> {
        Ok(Allocation::Again(words.iter().map(OsString::from).collect()))
    }

    #[test]
    fn a_job_that_is_to_go_on_keeps_its_other_nodes() {
        let salloc = |line, set| about(Program::Salloc, line, set, false);
        assert_eq!(salloc("-N2", &[]), Ok(Allocation::Plain));
        assert_eq!(salloc("-N2", &[("SLURM_FT", "none")]), Ok(Allocation::Plain));
        assert_eq!(salloc("-N2 sh", &[REINIT]), again(&["--no-kill", "-N2", "sh"]));
        for line in ["-N2 --no-kill", "-kN2", "--no-kill=set"] {
            assert_eq!(salloc(line, &[REINIT]), Ok(Allocation::Plain), "{line}");
        }
        assert_eq!(salloc("-N2", &[REINIT, ("SALLOC_NO_KILL", "set")]), Ok(Allocation::Plain));
        assert_eq!(
            salloc("-N2", &[REINIT, ("SALLOC_NO_KILL", "off")]),
            Err(NoAllocation::Kills("SALLOC_NO_KILL=off".into()))
        );
        assert_eq!(salloc("--no-kill=no", &[REINIT]), Err(NoAllocation::Kills("--no-kill=no".into())));
        let several = NoAllocation::Step(Refusal::NotTogether("several components of a job".into()));
        let words = Words::read(Program::Salloc, ["-N1", ":", "-N2"].map(OsString::from).to_vec(), 3);
        let around = Around {
            variable: &|name| (name == "SLURM_FT").then(|| "reinit".into()),
            input_returns: true,
            is_component: false,
        };
        assert_eq!(plan(Program::Salloc, &words, &Told::default(), &around), Err(several.clone()));
        let around = Around { is_component: true, ..around };
        assert_eq!(
            plan(Program::Sbatch, &Words { all: vec![], program: 0, ..words }, &Told::default(), &around),
            Err(several)
        );
    }

    #[test]
    fn sbatch_reads_again_what_can_be_read_again() {
        let sbatch =
            |line: &str, returns| about(Program::Sbatch, line, &[REINIT, ("PATH", "/nowhere:/usr/bin")], returns);
        let refused = Err(NoAllocation::Script);
        let same = |line: &str| again(&[&["--no-kill"], &line.split(' ').collect::<Vec<_>>()[..]].concat());
        for line in
            ["--wrap=date", "-N2 /proc/self/environ", "-D/proc self/environ", "env", "--chdir=/proc self/environ"]
        {
            assert_eq!(sbatch(line, false), same(line), "{line}");
        }
        for line in ["/dev/null", "-D/dev null", "./no-such-script", "no-such-script"] {
            assert_eq!(sbatch(line, true), refused, "{line}");
        }
        assert_eq!((sbatch("-N2", false), sbatch("-N2", true)), (refused, same("-N2")));
        let set = [REINIT, ("SBATCH_NO_KILL", "set")];
        assert_eq!(about(Program::Sbatch, "-N2", &set, false), Ok(Allocation::Plain));
    }
}
