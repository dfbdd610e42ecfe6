//! What Slurm sends a task reaches its rank.

use super::*;
use crate::for_rank::{is_job_control, may_end};

impl Slot {
    /// What has been sent since the last call. The agent is to know what a rank may end by before the rank has it; anything else the rank
    /// has now.
    pub fn signalled(&mut self) -> Vec<ToAgent> {
        let next = || self.task.as_ref().and_then(Task::next_signal);
        let sent: Vec<i32> = std::iter::from_fn(next).collect();
        let (ending, others): (Vec<i32>, Vec<i32>) = sent.into_iter().partition(|signal| may_end(*signal));
        others.into_iter().for_each(|signal| self.hand_on(signal));
        ending.iter().for_each(|signal| self.pending.came(*signal));
        ending.into_iter().map(|signal| ToAgent::Signalled { signal }).collect()
    }

    /// Gives the rank, or who may become one, a signal that ends nobody. Whether a script goes on whose rank is dead is not Slurm's affair.
    fn hand_on(&mut self, signal: i32) {
        if is_job_control(signal) && !self.job_control(signal) {
            return;
        }
        // What was stopped may have been a script, before the rank below it had joined.
        if signal == nix::libc::SIGCONT && self.stopped.is_empty() {
            return ft_sys::process::signal_descendants(signal);
        }
        match (&self.joined, &self.child) {
            // Who is gone takes none.
            (Some(joined), _) => drop(joined.held.signal(signal)),
            (None, Some(child)) => ft_sys::process::kill(child.pid, signal),
            (None, None) => {}
        }
    }
}
