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
    /// What was found when all that was found, but for those that are spared, was past its last instruction.
    ended: Option<Found>,
    /// Looks since then that found the same.
    equal: u32,
}

/// What a look finds.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Those that are to be killed.
    pids: Vec<i32>,
    /// There are others, which are spared.
    spares: bool,
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
        self.look_and_kill(|| Found { pids: below(keep), spares: false })
    }

    /// As [`round`](Self::round), but that `spare` says which of those that do not stay, parents before children, are left
    /// alone for now.
    pub fn round_sparing(&mut self, keep: &[i32], mut spare: impl FnMut(&[i32]) -> Vec<i32>) -> bool {
        self.look_and_kill(|| {
            let mut pids = below(keep);
            let spared = spare(&pids);
            pids.retain(|pid| !spared.contains(pid));
            Found { pids, spares: !spared.is_empty() }
        })
    }

    fn look_and_kill(&mut self, mut look: impl FnMut() -> Found) -> bool {
        for _ in 0..LOOKS {
            let found = look();
            if found.pids.is_empty() {
                return true;
            }
            // Who has ended forks no more. A child that it forked before moves up to this process at most once, and is
            // missed only by a look during which it moves: of two looks in a row that come after its parent's end, one
            // sees it. That holds for one that is spared as well: who is told that nobody is must not be told so by the other look.
            if self.ended.as_ref() == Some(&found) {
                self.equal += 1;
                if self.equal == 2 {
                    return true;
                }
                continue;
            }
            // At once: one that forks and exits lives for a tenth of a millisecond. Parents first: a shell must not go on
            // with its next command because the one before was killed.
            let pids = &found.pids;
            let refused: Vec<bool> = pids.iter().map(|pid| is_refused(*pid)).collect();
            let living = |pid: i32| !is_past_user_code(pid).unwrap_or(false);
            let ended = !pids.iter().rev().any(|pid| living(*pid));
            let only_refused = !ended
                && refused.contains(&true)
                && pids.iter().zip(refused).all(|(pid, refused)| refused || !living(*pid));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn one_that_is_spared_is_not_overlooked_while_it_moves() {
        let mut ended = Command::new("true").spawn().unwrap();
        let pid = ended.id() as i32;
        let until = Instant::now() + Duration::from_secs(20);
        while !is_past_user_code(pid).unwrap_or(true) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It is seen below its parent, which has ended, and not in the look in which it moves up.
        let mut looks = [true, true, false, true, true, true].into_iter();
        let mut last = None;
        let gone = Sweep::default().look_and_kill(|| {
            last = looks.next();
            Found { pids: vec![pid], spares: last.unwrap_or(true) }
        });
        assert!(gone);
        assert_eq!((last, looks.len()), (Some(true), 0), "the look that did not see it decided");
        let _ = ended.wait();
    }
}
