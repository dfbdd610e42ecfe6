//! Ending everything below this process.

use crate::death::is_past_user_code;
use crate::job_time;
use crate::process::{own_children, with_descendants};
use crate::unkillable::{Unkillable, is_refused};
use std::time::{Duration, Instant};

/// Looks per [`Sweep::round`] before the caller may do something else.
const LOOKS: u32 = 16;
/// Another user's process may end by itself when what it worked for is gone.
const REFUSED: Duration = Duration::from_secs(1);

/// Kills descendants of this process until none can do anything any more, also those that have left their session, are
/// stopped, or fork faster than they can be counted. This process must be a subreaper, or orphans escape, and it must not
/// wait for children while [`round`](Self::round) runs.
#[derive(Debug)]
pub struct Sweep {
    begun: Instant,
    /// Since when all that lives is what this user may not kill.
    refused: Option<Instant>,
    /// What was found when all that was found was past its last instruction.
    ended: Option<Vec<i32>>,
    /// Looks since then that found the same.
    equal: u32,
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep { begun: job_time::now(), refused: None, ended: None, equal: 0 }
    }
}

impl Sweep {
    /// How long it has been going on.
    pub fn age(&self) -> Duration {
        job_time::now().saturating_duration_since(self.begun)
    }

    /// Whether all that lives is what this user may not kill, and has been for a while: nothing can be done.
    pub fn is_refused(&self) -> bool {
        self.refused.is_some_and(|since| job_time::now().saturating_duration_since(since) > REFUSED)
    }

    /// Looks a few times, and kills what it finds; `keep` are children that stay, with all below them. True when none of
    /// the others can execute another instruction of its program; the kernel may still be taking their memory apart. To be
    /// called again until then.
    pub fn round(&mut self, keep: &[i32]) -> bool {
        self.look_and_kill(|| below(keep))
    }

    /// As [`round`](Self::round), but that `spare` says which of those that do not stay, parents before children, are left
    /// alone for now.
    pub fn round_sparing(&mut self, keep: &[i32], mut spare: impl FnMut(&[i32]) -> Vec<i32>) -> bool {
        self.look_and_kill(|| {
            let mut found = below(keep);
            let spared = spare(&found);
            found.retain(|pid| !spared.contains(pid));
            found
        })
    }

    fn look_and_kill(&mut self, mut below: impl FnMut() -> Vec<i32>) -> bool {
        for _ in 0..LOOKS {
            let found = below();
            if found.is_empty() {
                return true;
            }
            // Who has ended forks no more. A child that it forked before moves up to this process at most once, and is
            // missed only by a look during which it moves: of two looks in a row that come after its parent's end, one
            // sees it.
            if self.ended.as_ref() == Some(&found) {
                self.equal += 1;
                if self.equal == 2 {
                    return true;
                }
                continue;
            }
            // At once: one that forks and exits lives for a tenth of a millisecond. Parents first: a shell must not go on
            // with its next command because the one before was killed.
            let refused: Vec<bool> = found.iter().map(|pid| is_refused(*pid)).collect();
            let living = |pid: i32| !is_past_user_code(pid).unwrap_or(false);
            let ended = !found.iter().rev().any(|pid| living(*pid));
            let only_refused = !ended
                && refused.contains(&true)
                && found.iter().zip(refused).all(|(pid, refused)| refused || !living(*pid));
            self.refused = only_refused.then(|| self.refused.unwrap_or_else(job_time::now));
            self.ended = ended.then_some(found);
            self.equal = 0;
        }
        false
    }
}

/// The descendants of this process that live: for the user, when killing them was of no use.
pub fn unkillable() -> Vec<Unkillable> {
    let mut found = below(&[]);
    found.retain(|pid| !is_past_user_code(*pid).unwrap_or(false));
    found.into_iter().map(Unkillable::of).collect()
}

/// All descendants of this process but `keep` and what is below them.
fn below(keep: &[i32]) -> Vec<i32> {
    let mut found = own_children();
    found.retain(|pid| !keep.contains(pid));
    with_descendants(found)
}
