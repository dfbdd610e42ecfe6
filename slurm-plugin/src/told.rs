//! The plugin's options and what was told of them. ftrun has the same ones, and judges their values.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Mutex, PoisonError};

/// An option, as Slurm is told of it.
#[derive(Debug)]
pub struct Row {
    /// Its name, without the dashes.
    pub name: &'static CStr,
    /// What `--help` calls its argument.
    pub argument: &'static CStr,
    /// What `--help` says of it.
    pub usage: &'static CStr,
}

const fn row(name: &'static CStr, argument: &'static CStr, usage: &'static CStr) -> Row {
    Row { name, argument, usage }
}

/// The number of `--ft` in [`OPTIONS`].
const MODE: usize = 0;
/// The number of `--ft-spares`.
const SPARES: usize = 1;
/// `--ft` where it was not typed, for all three programs. Not `FT_MODE`, which many have set for ftrun: every srun of theirs would change.
const MODE_VARIABLE: &str = "SLURM_FT";
/// `--ft-spares` where it was not told, as for ftrun.
const SPARES_VARIABLE: &str = "FT_SPARES";

/// The options. `ftrun --help` says more of each, and reads the variable `FT_…` in the place of each that is not given.
pub const OPTIONS: [Row; 14] = [
    row(
        c"ft",
        c"MODE",
        c"keep the job going at a failure: none, or reinit (all ranks start again from the newest checkpoint)",
    ),
    row(c"ft-spares", c"NODES", c"so many of the nodes of -N, the last ones, hold no rank before another node is lost"),
    row(c"ft-max-failures", c"N", c"so many failures in a row without progress end the job"),
    row(c"ft-on-abort", c"end|recover", c"what MPI_Abort and an exit status that is not 0 do: end the job, or recover"),
    row(c"ft-grace", c"TIME", c"so long ranks may run on after a signal that ends the job"),
    row(c"ft-mpi", c"KIND", c"the program's MPI, where it cannot be found out: auto, openmpi or mpich"),
    row(c"ft-wait", c"TIME", c"so long a job without slots enough waits for another node"),
    row(c"ft-oversubscribe", c"yes|no", c"whether ranks of a lost node go on beside others where no slot is free"),
    row(c"ft-copy-rate", c"RATE", c"so many bytes a second a node sends at most for copies of checkpoints"),
    row(
        c"ft-heartbeat",
        c"PERIOD,TIMEOUT",
        c"how often nodes tell that they live, and the silence after which one is dead",
    ),
    row(c"ft-inject", c"rank=N[,...]", c"have a rank killed, to see what comes of it"),
    row(c"ft-standby", c"none", c"how a next world stands by: only none is built"),
    row(c"ft-flush", c"DIR|URL", c"where checkpoints go besides memory: not built yet"),
    row(c"ft-degree", c"PERCENT", c"share of the ranks that have a replica: not built yet"),
];

/// What Slurm has read of the options.
static TOLD: Mutex<Told> = Mutex::new(Told { values: Vec::new() });

/// What was told, in order: what comes from an allocation before what was typed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// Number of the option, and its value.
    values: Vec<(usize, Vec<u8>)>,
}

/// Slurm has read the option of that number.
pub fn hear(option: usize, value: Vec<u8>) {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).values.push((option, value));
}

/// What Slurm has read so far.
pub fn heard() -> Told {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A value and the option or variable that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// `--ft`, or `SLURM_FT`.
    pub from: &'static str,
    /// The value.
    pub text: String,
}

impl Told {
    /// `--ft`, or what stands in its place. Nothing if nobody has said anything.
    pub fn mode(&self, variable: impl Fn(&str) -> Option<OsString>) -> Option<Value> {
        self.value(MODE, "--ft", MODE_VARIABLE, variable)
    }

    /// `--ft-spares`, or what stands in its place.
    pub fn spares(&self, variable: impl Fn(&str) -> Option<OsString>) -> Option<Value> {
        self.value(SPARES, "--ft-spares", SPARES_VARIABLE, variable)
    }

    fn value(
        &self,
        option: usize,
        name: &'static str,
        other: &'static str,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Option<Value> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        if let Some((_, value)) = self.values.iter().rev().find(|(number, _)| *number == option) {
            return Some(Value { from: name, text: text(value) });
        }
        let value = variable(other).filter(|value| !value.is_empty())?;
        Some(Value { from: other, text: text(value.as_bytes()) })
    }

    /// The options other than `--ft`, as words for ftrun. Of one that was told twice the last counts; failures that are asked for all do.
    pub fn companions(&self) -> Vec<OsString> {
        let repeats = |option: usize| OPTIONS.get(option).is_some_and(|row| row.name == c"ft-inject");
        let counts = |(at, (option, _)): &(usize, &(usize, Vec<u8>))| {
            let later = self.values.get(at + 1..).unwrap_or_default();
            *option != MODE && (repeats(*option) || !later.iter().any(|(other, _)| other == option))
        };
        let word = |(option, value): &(usize, Vec<u8>)| {
            let name = OPTIONS.get(*option)?.name.to_bytes();
            Some(OsString::from_vec([b"--", name, b"=", value].concat()))
        };
        self.values.iter().enumerate().filter(counts).filter_map(|(_, told)| word(told)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(values: &[(usize, &str)]) -> Told {
        Told { values: values.iter().map(|(option, value)| (*option, value.as_bytes().to_vec())).collect() }
    }

    #[test]
    fn what_was_told_last_counts() {
        let nothing = |_: &str| None;
        let told = told(&[(0, "reinit"), (1, "1"), (10, "rank=1"), (1, "2"), (10, "rank=2"), (0, "none"), (4, "")]);
        assert_eq!(told.mode(nothing), Some(Value { from: "--ft", text: "none".into() }));
        assert_eq!(told.spares(nothing), Some(Value { from: "--ft-spares", text: "2".into() }));
        assert_eq!(told.companions(), ["--ft-inject=rank=1", "--ft-spares=2", "--ft-inject=rank=2", "--ft-grace="]);
    }

    #[test]
    fn a_variable_stands_in_for_what_was_not_told() {
        let set = |name: &str| Some(format!("value of {name}").into());
        assert_eq!(Told::default().mode(set), Some(Value { from: "SLURM_FT", text: "value of SLURM_FT".into() }));
        assert_eq!(Told::default().spares(set).map(|value| value.from), Some("FT_SPARES"));
        assert_eq!(Told::default().mode(|_| Some(OsString::new())), None);
    }
}
