//! What becomes of an srun: nothing, a step that ftd keeps going, or one sentence.

use crate::told::{Told, Value};
use crate::words::{Known, Typed, Words};
use crate::world::{Asked, WorldError};
use ftd_core::policy::{Mode, ModeError};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Programs with which an MPI's own launcher starts itself on the nodes: Open MPI 4 and 5, MPICH and its relatives, MVAPICH.
const DAEMONS: [&[u8]; 6] = [b"orted", b"prted", b"hydra_pmi_proxy", b"hydra_bstrap_proxy", b"pmi_proxy", b"mpispawn"];

/// What takes back what a user's own options say otherwise: Slurm would end the step with the first thing that ends in it.
const LASTING: [&str; 3] = ["--kill-on-bad-exit=0", "--no-kill", "--wait=0"];

/// What is to be done about an srun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It goes on as it is.
    Plain,
    /// The front stands in its place.
    Kept {
        /// ftrun's own options.
        options: Vec<OsString>,
        /// srun's.
        words: Vec<OsString>,
    },
}

/// Why there can be no such step; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A mode that cannot be had.
    #[error("{from}: {error}")]
    Mode {
        /// The option or variable.
        from: &'static str,
        /// What is wrong with it.
        error: ModeError,
    },
    /// Options of ftd's for a job that is none of ftd's.
    #[error("{0} says how a job is kept going, and nothing says that it is to be: add --ft=reinit")]
    NoMode(String),
    /// What cannot be had with any mode yet.
    #[error("{0} cannot be had together with --ft yet: leave one of them out (--ft=none where an allocation has it)")]
    NotTogether(String),
    /// Somebody else's PMI.
    #[error("{0} cannot be had together with --ft: the ranks find each other through ftd, so leave it out")]
    OtherMpi(String),
    /// More numbers of nodes than one.
    #[error("{0}: with --ft the number of nodes is one number yet, the spare ones included")]
    NodesVary(String),
    /// Another option that says how many tasks there are.
    #[error("{0} cannot be had together with --ft-spares: say -n or --ntasks-per-node")]
    TasksPerOther(String),
    /// A number that is none.
    #[error("{0}: with --ft-spares this is to be a number")]
    NoNumber(String),
    /// No such world.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// The mode, if there is to be any.
///
/// # Errors
/// For one that cannot be had, and for options that come without one.
pub fn mode(told: &Told, variable: impl Fn(&str) -> Option<OsString>) -> Result<Mode, Refusal> {
    let Some(Value { from, text }) = told.mode(variable) else {
        return match told.companions().first() {
            Some(word) => Err(Refusal::NoMode(word.to_string_lossy().into_owned())),
            None => Ok(Mode::None),
        };
    };
    text.parse().map_err(|error| Refusal::Mode { from, error })
}

/// What becomes of an srun with these words, in which Slurm has read what was told.
///
/// # Errors
/// One sentence.
pub fn plan(words: &Words, told: &Told, variable: impl Fn(&str) -> Option<OsString>) -> Result<Step, Refusal> {
    let mode = mode(told, &variable)?;
    if mode == Mode::None || words.program_name().is_some_and(|name| DAEMONS.contains(&name)) {
        return Ok(Step::Plain);
    }
    if let Some(apart) = words.last(Known::Apart) {
        // Who has said both has said something else than a job's script that starts a shell.
        let typed = words.last(Known::Mode).is_some();
        return if typed { Err(Refusal::NotTogether(apart.text.clone())) } else { Ok(Step::Plain) };
    }
    refuse(words, &variable)?;
    let mut options = vec![OsString::from(format!("--ft={mode}"))];
    options.extend(told.companions());
    let mut more = Vec::new();
    // A number of spare nodes that is none is ftrun's to refuse.
    let spares = told.spares(&variable).and_then(|value| value.text.parse().ok()).unwrap_or(0);
    if spares > 0 {
        let world = asked(words, spares, &variable)?.world()?;
        options.push(format!("-n{}", world.ranks).into());
        more.push(format!("--nodes={}", world.nodes).into());
        more.push(format!("--ntasks={}", world.tasks).into());
        more.push(format!("--ntasks-per-node={}", world.per_node).into());
    }
    if words.last(Known::Kills).is_some() || words.last(Known::NoKill).is_some() {
        more.extend(LASTING.map(OsString::from));
    }
    Ok(Step::Kept { options, words: if more.is_empty() { words.all.clone() } else { words.with(more) } })
}

fn refuse(words: &Words, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Refusal> {
    let not_together = |what: String| Err(Refusal::NotTogether(what));
    if words.of_program().iter().any(|word| word == ":") {
        return not_together("':' between components of a job".to_string());
    }
    for option in [Known::Group, Known::Container, Known::MultiProgram] {
        if let Some(typed) = words.last(option) {
            return not_together(typed.text.clone());
        }
    }
    for name in ["SRUN_CONTAINER", "SRUN_CONTAINER_ID", "SLURM_SRUN_MULTI", "SLURM_HET_SIZE"] {
        // What is set to nothing is unset; a job of one component is none of several.
        if let Some(value) = variable(name)
            .filter(|value| !value.is_empty() && value != "0" && (name != "SLURM_HET_SIZE" || value != "1"))
        {
            return not_together(format!("{name}={}", value.to_string_lossy()));
        }
    }
    let arbitrary = |value: &OsString| value.as_bytes().to_ascii_lowercase().starts_with(b"arb");
    match words.last(Known::Distribution) {
        Some(typed) if typed.value.as_ref().is_some_and(arbitrary) => return not_together(typed.text.clone()),
        Some(_) => {}
        None if variable("SLURM_DISTRIBUTION").as_ref().is_some_and(arbitrary) => {
            return not_together("SLURM_DISTRIBUTION=arbitrary".to_string());
        }
        None => {}
    }
    if let Some(what) = distribution(words, &variable) {
        return not_together(what);
    }
    // With it Slurm goes by no other distribution, unless it is told the nodes.
    if let Some(file) = variable("SLURM_HOSTFILE").filter(|_| words.last(Known::NodeList).is_none()) {
        return not_together(format!("SLURM_HOSTFILE={}", file.to_string_lossy()));
    }
    if let Some(typed) = words.last(Known::Mpi).filter(|typed| typed.value.as_ref().is_none_or(|value| value != "none"))
    {
        return Err(Refusal::OtherMpi(typed.text.clone()));
    }
    match words.last(Known::Nodes) {
        Some(typed) if number(typed).is_none() => Err(Refusal::NodesVary(typed.text.clone())),
        Some(_) => Ok(()),
        None => nodes_vary(variable),
    }
}

/// What deals tasks round over nodes, so that a node's do not follow each other. Where as much is not known a node's first task says it.
fn distribution(words: &Words, variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let count = |option, names: &[&str]| match words.last(option) {
        Some(typed) => number(typed),
        None => names.iter().find_map(|name| variable(name)?.to_str()?.parse().ok()),
    };
    let nodes = count(Known::Nodes, &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"])?;
    let per_node = count(Known::TasksPerNode, &["SLURM_NTASKS_PER_NODE"]);
    let tasks =
        count(Known::Tasks, &["SLURM_NTASKS", "SLURM_NPROCS"]).or_else(|| Some(nodes.saturating_mul(per_node?)))?;
    // On one node, and with a task on each, all distributions are the same.
    if nodes < 2 || tasks <= nodes {
        return None;
    }
    match words.last(Known::Distribution) {
        Some(typed) => typed.value.as_ref().is_some_and(deals_round).then(|| typed.text.clone()),
        None => {
            let value = variable("SLURM_DISTRIBUTION").filter(deals_round)?;
            Some(format!("SLURM_DISTRIBUTION={}", value.to_string_lossy()))
        }
    }
}

/// Slurm takes shortened names. What is behind a colon concerns the processors of one node.
fn deals_round(value: &OsString) -> bool {
    let text = value.to_string_lossy().to_ascii_lowercase();
    // What stands behind a comma is about packing.
    let name = text.split([',', ':', '=']).next().unwrap_or_default();
    !name.is_empty() && ["cyclic", "plane"].iter().any(|whole| whole.starts_with(name))
}

/// Where nobody has typed `-N`.
fn nodes_vary(variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Refusal> {
    let names = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
    let Some((name, value)) = names.iter().find_map(|name| Some((name, variable(name)?.into_string().ok()?))) else {
        return Ok(());
    };
    match value.split_once('-') {
        Some((least, most)) if least != most => Err(Refusal::NodesVary(format!("{name}={value}"))),
        _ => Ok(()),
    }
}

/// Its argument, if that is one number. `4-4` is one.
fn number(typed: &Typed) -> Option<u32> {
    let text = typed.value.as_ref()?.to_str()?;
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    (least == most).then(|| least.parse().ok())?
}

/// What srun's words and variables say of the world, where nodes are spare.
fn asked(words: &Words, spares: u32, variable: impl Fn(&str) -> Option<OsString>) -> Result<Asked, Refusal> {
    let of_environment = |name: &str| variable(name)?.to_str()?.parse::<u32>().ok();
    let given = |option, names: &[&'static str]| match words.last(option) {
        Some(typed) => number(typed).map(Some).ok_or_else(|| Refusal::NoNumber(typed.text.clone())),
        None => Ok(names.iter().find_map(|name| of_environment(name))),
    };
    let nodes = given(Known::Nodes, &["SLURM_JOB_NUM_NODES"])?;
    let per_node = given(Known::TasksPerNode, &["SLURM_NTASKS_PER_NODE"])?;
    let ranks = given(Known::Tasks, &["SLURM_NTASKS", "SLURM_NPROCS"])?;
    if let Some(typed) = words.last(Known::TasksPerOther) {
        return Err(Refusal::TasksPerOther(typed.text.clone()));
    }
    // Where nobody has said -n, sbatch and salloc work it out, spare nodes included.
    let whole = of_environment("SLURM_JOB_NUM_NODES")
        .map(|nodes| nodes.saturating_mul(of_environment("SLURM_NTASKS_PER_NODE").unwrap_or(1)));
    let derived = words.last(Known::Tasks).is_none() && ranks == whole;
    Ok(Asked { nodes, ranks: ranks.filter(|_| !derived), per_node, spares })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told;
    use crate::words::Program;

    /// A variable's name and value.
    type Set<'a> = &'a [(&'a str, &'a str)];

    const REINIT: (&str, &str) = ("SLURM_FT", "reinit");

    fn about(line: &str, set: Set<'_>) -> Result<Step, Refusal> {
        let all: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let program = all.iter().position(|word| word.as_bytes().ends_with(b"app")).unwrap_or(all.len() - 1);
        let words = Words::read(Program::Srun, all, program);
        let variable =
            |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value));
        plan(&words, &Told::default(), variable)
    }

    /// Both lists of words of a step that is kept.
    fn kept(line: &str, set: Set<'_>) -> (String, String) {
        let whole = |words: Vec<OsString>| words.join(" ".as_ref()).into_string().unwrap();
        match about(line, &[set, &[REINIT]].concat()) {
            Ok(Step::Kept { options, words }) => (whole(options), whole(words)),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str, set: Set<'_>) -> String {
        about(line, &[set, &[REINIT]].concat()).expect_err(line).to_string()
    }

    #[test]
    fn the_words_are_the_users_where_nothing_has_to_be_added() {
        for line in ["-N2 app", "-n 4 -- app -N5", "-N1-1 -m cyclic --mpi=none app", "-l a/path/app x"] {
            assert_eq!(kept(line, &[("SLURM_NTASKS", "3")]), ("--ft=reinit".into(), line.into()));
        }
        assert_eq!(about("-N2 app", &[]), Ok(Step::Plain));
        assert_eq!(about("-N2 app", &[("SLURM_FT", "none")]), Ok(Step::Plain));
    }

    #[test]
    fn what_ends_a_step_is_taken_back() {
        for line in ["-K", "-K1", "--kill-on-bad-exit", "-W9", "--wait=9", "-k", "--no-kill=off"] {
            let expected = format!("{line} --kill-on-bad-exit=0 --no-kill --wait=0 app");
            assert_eq!(kept(&format!("{line} app"), &[]).1, expected);
        }
    }

    #[test]
    fn what_is_no_part_of_a_job_is_left_alone() {
        for name in DAEMONS {
            let line = format!("-N2 /opt/mpi/bin/{} app", String::from_utf8_lossy(name));
            let all: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let words = Words::read(Program::Srun, all, 1);
            let variable = |name: &str| (name == "SLURM_FT").then(|| "reinit".into());
            assert_eq!(plan(&words, &Told::default(), variable), Ok(Step::Plain), "{line}");
        }
        for line in ["--pty app", "--interactive app", "--external-launcher app", "--test-only app"] {
            assert_eq!(about(line, &[REINIT]), Ok(Step::Plain), "{line}");
        }
        assert!(refused("--ft=reinit --pty app", &[]).starts_with("--pty cannot be had together with --ft yet"));
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let yet = "cannot be had together with --ft yet";
        for (line, said) in [
            ("app : app", format!("':' between components of a job {yet}")),
            ("--het-group=0,1 app", format!("--het-group=0,1 {yet}")),
            ("--container /some/where app", format!("--container=/some/where {yet}")),
            ("--multi-prog app", format!("--multi-prog {yet}")),
            ("-m arbitrary app", format!("-marbitrary {yet}")),
            ("--dist=Arbitrary,Pack app", format!("--dist=Arbitrary,Pack {yet}")),
            ("-N2 -n4 -m cyclic app", format!("-mcyclic {yet}")),
            ("-N2 --ntasks-per-node=2 --dist Plane=1,Pack app", format!("--dist=Plane=1,Pack {yet}")),
            ("-N2 -n3 --distribution=cyc:block app", format!("--distribution=cyc:block {yet}")),
            ("--mpi=pmix app", "--mpi=pmix cannot be had together with --ft: ".into()),
            ("-N2-4 app", "-N2-4: with --ft the number of nodes is one number yet".into()),
            ("--nodes=1,3-5 app", "--nodes=1,3-5: with --ft".into()),
        ] {
            assert!(refused(line, &[]).starts_with(&said), "{line}: {}", refused(line, &[]));
        }
        for set in [
            ("SRUN_CONTAINER", "/x"),
            ("SRUN_CONTAINER_ID", "x"),
            ("SLURM_SRUN_MULTI", "1"),
            ("SLURM_HET_SIZE", "2"),
            ("SLURM_DISTRIBUTION", "arbitrary"),
            ("SLURM_HOSTFILE", "./hosts"),
        ] {
            assert_eq!(
                refused("-n2 app", &[set]),
                format!("{}={} {yet}: leave one of them out (--ft=none where an allocation has it)", set.0, set.1)
            );
        }
        for name in ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"] {
            let said = format!("{name}=2-4: with --ft the number of nodes is one number yet");
            assert!(refused("-n2 app", &[(name, "2-4")]).starts_with(&said));
            kept("-N2 app", &[(name, "2-4")]);
            kept("-n2 app", &[(name, "3")]);
        }
        let dealt = [("SLURM_DISTRIBUTION", "plane"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_NTASKS", "4")];
        assert!(refused("app", &dealt).starts_with(&format!("SLURM_DISTRIBUTION=plane {yet}")));
        for line in ["-N1 app", "-n2 app", "-m block:cyclic app", "-m *:cyclic app", "-m block,pack app"] {
            kept(line, &dealt);
        }
        for line in [
            "-N2 -m cyclic app",
            "-N3 -n3 -m cyclic app",
            "-N2 --ntasks-per-node=1 -m plane=1 app",
            "-n4 -m cyclic app",
        ] {
            kept(line, &[]);
        }
        kept("-w n1,n2 app", &[("SLURM_HOSTFILE", "./hosts")]);
        kept("-m block app", &[("SLURM_DISTRIBUTION", "arbitrary"), ("SLURM_HET_SIZE", "1")]);
        assert_eq!(
            about("app", &[("SLURM_FT", "rienit")]).expect_err("no mode").to_string(),
            "SLURM_FT: 'rienit' is no mode: choose none or reinit"
        );
    }

    #[test]
    fn options_without_a_mode_are_noticed() {
        told::hear(2, b"7".to_vec());
        let variable = |_: &str| None;
        assert_eq!(mode(&told::heard(), variable), Err(Refusal::NoMode("--ft-max-failures=7".into())));
    }

    #[test]
    fn spare_nodes_are_a_part_of_the_step() {
        let one = ("FT_SPARES", "1");
        let four = "--nodes=5 --ntasks=20 --ntasks-per-node=4";
        for (line, set, ranks) in [
            ("-N5 --ntasks-per-node=4", &[][..], 16),
            ("-N5 -n16", &[], 16),
            ("-n14 -N 5", &[], 14),
            ("-n16", &[("SLURM_JOB_NUM_NODES", "5"), ("SLURM_NTASKS", "5")], 16),
            // As in a job of `sbatch -N5 --ntasks-per-node=4`, whose SLURM_NTASKS nobody has said.
            ("-l", &[("SLURM_JOB_NUM_NODES", "5"), ("SLURM_NTASKS_PER_NODE", "4"), ("SLURM_NTASKS", "20")], 16),
            ("-N5", &[("SLURM_JOB_NUM_NODES", "6"), ("SLURM_NTASKS_PER_NODE", "4"), ("SLURM_NTASKS", "24")], 16),
            ("-l", &[("SLURM_JOB_NUM_NODES", "5"), ("SLURM_NPROCS", "13")], 13),
        ] {
            let (options, words) = kept(&format!("{line} app"), &[set, &[one]].concat());
            assert_eq!((options, words), (format!("--ft=reinit -n{ranks}"), format!("{line} {four} app")));
        }
        for (line, said) in [
            ("app", "--ft-spares=1: of how many nodes? Say so with -N"),
            ("-N1 app", "--ft-spares=1 leaves none of 1 node"),
            ("-N3 -n9 --ntasks-per-node=4 app", "9 ranks do not fit: 3 nodes less 1 spare, with 4 tasks each, hold 8"),
            ("-N3 --ntasks-per-gpu=1 app", "--ntasks-per-gpu=1 cannot be had together with --ft-spares"),
            ("-N3 -n1k app", "-n1k: with --ft-spares this is to be a number"),
        ] {
            assert!(refused(line, &[one]).starts_with(said), "{line}: {}", refused(line, &[one]));
        }
        // ftrun says what is wrong with it.
        assert_eq!(kept("-N2 app", &[("FT_SPARES", "few")]).1, "-N2 app");
    }
}
