//! A rank that would be a job of its own, what keeps an MPI from starting one, and the words for it.

use ft_wire::forlorn::FORLORN;
use ft_wire::{Flavour, Rank};
use std::path::Path;

/// What keeps every MPI from starting alone but the family that is served from the start.
pub fn forlorn(served: Option<Flavour>) -> impl Iterator<Item = (&'static str, &'static str)> {
    FORLORN.into_iter().filter(move |(family, _)| served != Some(*family)).map(|(_, variable)| variable)
}

/// Why no rank has the preload, and what is to be done; none where there is no such reason.
pub fn unreadable(preload: &Path) -> Option<String> {
    let error = std::fs::File::open(preload).err()?;
    let file = preload.display();
    Some(format!("because {file} cannot be read any more ({error}): install ftd again, and start the job again"))
}

/// A process that is, or would be, a job of its own.
#[derive(Debug)]
pub struct Loner {
    /// Of this rank.
    pub rank: Rank,
    /// Its process id.
    pub pid: i32,
    /// The MPI library's file name, or words for it.
    pub what: String,
    /// What is wrong.
    pub fault: Fault,
}

/// Why a process is alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The preload was taken away.
    Preload,
    /// It is of this family, which is not what it was said to be.
    Told(Flavour),
    /// The environment was cleared.
    Environment,
    /// The environment was cleared, and the MPI started past the preload.
    Past,
}

impl Loner {
    /// One sentence. `told`: what `--ft-mpi` says; `preload`: the file that was to be preloaded.
    pub fn sentence(&self, told: &str, preload: &Path) -> String {
        let Loner { pid, what, fault, .. } = self;
        match fault {
            Fault::Preload => {
                let why = match unreadable(preload) {
                    None => "; something between ftrun and the program takes LD_PRELOAD away".to_string(),
                    Some(why) => format!(", {why}"),
                };
                format!(
                    "process {pid} has loaded {what} without ftd's libft_preload.so and would be a job of its own{why}"
                )
            }
            Fault::Told(family) => format!(
                "process {pid} has loaded {what} without ftd's libft_preload.so and would be a job of its own; that is {}, and \
                 --ft-mpi={told} is wrong",
                name(*family)
            ),
            Fault::Environment => format!(
                "process {pid} has {what} without ftd's environment and would be a job of its own; something between ftrun and \
                 the program clears the environment"
            ),
            Fault::Past => format!(
                "process {pid} has initialised {what} past ftd's libft_preload.so and without ftd's environment, as a job of its \
                 own; something between ftrun and the program clears the environment"
            ),
        }
    }
}

/// Words for people.
pub fn name(family: Flavour) -> &'static str {
    match family {
        Flavour::OpenMpi => "Open MPI",
        Flavour::Mpich => "MPICH or a relative of it",
    }
}
