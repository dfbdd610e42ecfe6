//! The part of a step that a task belongs to, as processes. Its end is waited for: when the last task of a node has ended, slurmstepd kills
//! what is left in the step's group, and where there was something it looks again a second later.

use ft_sys::individual::Held;
use nix::poll::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// It has said its last word and has nothing to do but to end. One that is stopped is Slurm's to end.
const ENDS: Duration = Duration::from_secs(5);

/// `ftrun`'s two processes: the one that does its work, and its parent, which waits for that (`ft_sys::divide`).
#[derive(Debug, Default)]
pub struct Part(Vec<Held>);

impl Part {
    /// The part that this process works for.
    pub fn of(worker: Option<Held>) -> Part {
        let Some(worker) = worker else { return Part::default() };
        // The worker ends with its parent; so this number is still that parent's, as long as the worker lives.
        let parent = worker.parent().filter(|parent| is_same_program(&worker, parent) && worker.lives());
        Part(std::iter::once(worker).chain(parent).collect())
    }

    /// Waits until it has ended.
    pub fn wait_for_end(&self) {
        let until = Instant::now() + ENDS;
        for process in &self.0 {
            let left = until.saturating_duration_since(Instant::now());
            let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            // Where it cannot be waited for Slurm looks once more.
            let _ = poll(&mut end, ft_sys::patience::at_most(left));
        }
    }
}

/// Who started the part may be of another program, and lives on. (The program's name may be read where its file may not: a step may have another
/// group than its part.)
fn is_same_program(one: &Held, other: &Held) -> bool {
    let name = |of: &Held| ft_sys::proc::stat(&ft_sys::proc::of(of.identity.pid)).ok().flatten().map(|stat| stat.comm);
    name(one).is_some_and(|name_of_one| name(other) == Some(name_of_one))
}
