//! Whose a death is.
//!
//! A signal that the job did not send itself, the out-of-memory killer and the loss of a slot, a node or one of ftd's own
//! processes are failures: they are recovered from. `MPI_Abort`, a non-zero exit, and an exit without `MPI_Finalize` of a
//! program that had called `MPI_Init` are the program's own wish: they end the job — but not before it is known that no
//! death came first, for libraries abort because a peer died, often before the kernel has finished with that peer. Until
//! then such an end is *held*.

use crate::failure::{Cause, OwnEnd};

/// How far a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Phase {
    /// Started; it may never call MPI.
    #[default]
    Launched,
    /// Inside `MPI_Init`.
    Initializing,
    /// Past `MPI_Init`.
    Initialized,
    /// Past `MPI_Finalize`.
    Finalized,
}

/// How a process ended, as `wait` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exit {
    /// Killed by this signal.
    Signal(i32),
    /// Exited with this code.
    Code(i32),
    /// It was killed, and of what nobody can tell any more.
    Unseen,
}

/// Why the kernel sends a SIGKILL of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// Memory ran out: the out-of-memory killer.
    Memory,
    /// The process had used up the CPU time that it may use (`RLIMIT_CPU`).
    CpuTime,
}

/// What is seen of a process that is dying or dead, before anybody has waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// It had said that it ends by its own will, or is known to have done so: its exit will say how.
    pub announced: bool,
    /// It stands below a wrapper and was killed by this signal, wherever it was: what its wrapper makes of that is not waited for.
    pub signal: Option<i32>,
}

/// What is known when the direct child of a slot has ended: the rank, or a wrapper above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// How that one ended.
    pub child: Exit,
    /// Why the kernel may have killed it.
    pub limit: Option<Limit>,
    /// The rank below it died before, and not by its own will.
    pub below: Option<Below>,
    /// A rank below it may have died that nobody has seen.
    pub unseen: bool,
    /// The rank below it had ended with status 0 before.
    pub well: bool,
}

/// How a rank below a wrapper died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Below {
    /// Its exit, where anybody knows it.
    pub exit: Option<Exit>,
    /// Why the kernel killed it, if it did.
    pub limit: Option<Limit>,
}

impl Ended {
    /// What the wrapper's end, or its shepherd's word on it, means for the rank.
    pub fn of_rank(&self) -> (Exit, Option<Limit>) {
        let Some(below) = self.below else { return (self.child, self.limit) };
        let exit = match (below.exit, self.child) {
            (Some(killed @ Exit::Signal(_)), _) => killed,
            // ftd kills the wrappers of the dead.
            (known, Exit::Signal(SIGKILL)) => known.unwrap_or(Exit::Unseen),
            // A rank that ended without a word to ftd, but not by a signal: what it meant its wrapper may say.
            (_, exit) => exit,
        };
        (exit, self.limit.or(below.limit))
    }

    /// The signal that ended the wrapper, not from outside, once its rank had ended well: nothing is gained by running that again.
    pub fn of_script(&self) -> Option<i32> {
        match self.child {
            Exit::Signal(signal) if self.well && signal != SIGKILL => Some(signal),
            _ => None,
        }
    }

    /// Whether the wrapper tells of a signal below it of which nobody has seen whom it killed: that was the rank.
    pub fn tells_of_death(&self) -> bool {
        let tells = |exit| match exit {
            Exit::Code(code) => ends_a_process(code - 128),
            Exit::Signal(_) | Exit::Unseen => true,
        };
        self.unseen && tells(self.of_rank().0)
    }
}

const SIGKILL: i32 = 9;

/// Whether there is a signal of this number, and it ends processes: not SIGCHLD, SIGCONT, those that stop, SIGURG and SIGWINCH.
fn ends_a_process(signal: i32) -> bool {
    matches!(signal, 1..=64) && !matches!(signal, 17..=23 | 28)
}

/// What an exit means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The rank is done.
    Clean,
    /// A failure.
    Failure(Cause),
    /// The program's own wish, unless a death came first.
    Own(OwnEnd),
}

/// What the exit of a process means. `dying`: its robust futex had fired without an exit of its own announced, so it
/// was killed, whatever code a wrapper (`bash -c …`) makes of that.
///
/// `limit`: why the kernel sent a SIGKILL, if it was the kernel.
///
/// | exit | killed (`dying`) or at a limit | otherwise |
/// | --- | --- | --- |
/// | signal | failure | failure |
/// | a signal that nobody knows any more | failure of unknown cause | failure of unknown cause |
/// | code 129 to 192 | failure: signal code − 128 | own |
/// | other code, not 0 | own; past `MPI_Init` a failure of unknown cause | own |
/// | code 0 before `MPI_Init` or after `MPI_Finalize` | clean | clean |
/// | code 0 between | failure of unknown cause | own |
/// | code 0 within `MPI_Init` | own | own |
pub fn verdict(phase: Phase, dying: bool, exit: Exit, limit: Option<Limit>) -> Verdict {
    let between = phase == Phase::Initialized;
    match exit {
        Exit::Signal(9) | Exit::Code(137) | Exit::Unseen if limit == Some(Limit::Memory) => {
            Verdict::Failure(Cause::OutOfMemory)
        }
        Exit::Signal(9) | Exit::Code(137) | Exit::Unseen if limit == Some(Limit::CpuTime) => {
            Verdict::Failure(Cause::CpuLimit)
        }
        Exit::Signal(signal) => Verdict::Failure(Cause::Signal(signal)),
        Exit::Unseen => Verdict::Failure(Cause::Unknown),
        Exit::Code(code @ 129..=192) if dying => Verdict::Failure(Cause::Signal(code - 128)),
        Exit::Code(_) if dying && between => Verdict::Failure(Cause::Unknown),
        // Within `MPI_Init` as well: the others wait there for it.
        Exit::Code(0) if between || phase == Phase::Initializing => Verdict::Own(OwnEnd::NoFinalize),
        Exit::Code(0) => Verdict::Clean,
        Exit::Code(code) => Verdict::Own(OwnEnd::ExitCode(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_ends() {
        use Phase::{Finalized, Initialized, Initializing, Launched};
        let own = |code| Verdict::Own(OwnEnd::ExitCode(code));
        let signal = |signal| Verdict::Failure(Cause::Signal(signal));
        let table = [
            (Launched, false, Exit::Code(0), None, Verdict::Clean),
            (Finalized, false, Exit::Code(0), None, Verdict::Clean),
            (Initialized, false, Exit::Code(0), None, Verdict::Own(OwnEnd::NoFinalize)),
            (Launched, false, Exit::Code(3), None, own(3)),
            (Finalized, false, Exit::Code(3), None, own(3)),
            (Initializing, true, Exit::Code(0), None, Verdict::Own(OwnEnd::NoFinalize)),
            (Initialized, false, Exit::Signal(11), None, signal(11)),
            (Launched, false, Exit::Signal(11), None, signal(11)),
            (Initialized, false, Exit::Signal(9), Some(Limit::Memory), Verdict::Failure(Cause::OutOfMemory)),
            (Launched, false, Exit::Signal(9), Some(Limit::CpuTime), Verdict::Failure(Cause::CpuLimit)),
            (Initialized, false, Exit::Code(137), Some(Limit::CpuTime), Verdict::Failure(Cause::CpuLimit)),
            (Initialized, false, Exit::Signal(24), None, signal(24)),
            (Initialized, true, Exit::Code(137), None, signal(9)),
            (Launched, true, Exit::Code(137), None, signal(9)),
            (Launched, false, Exit::Code(137), None, own(137)),
            (Initialized, true, Exit::Code(0), None, Verdict::Failure(Cause::Unknown)),
            (Finalized, true, Exit::Code(0), None, Verdict::Clean),
            (Initialized, true, Exit::Unseen, None, Verdict::Failure(Cause::Unknown)),
            (Finalized, true, Exit::Unseen, None, Verdict::Failure(Cause::Unknown)),
        ];
        for (phase, dying, exit, limit, expected) in table {
            assert_eq!(verdict(phase, dying, exit, limit), expected, "{phase:?} {dying} {exit:?} {limit:?}");
        }
    }

    fn below(exit: Option<Exit>) -> Option<Below> {
        Some(Below { exit, limit: None })
    }

    #[test]
    fn the_rank_counts_when_it_was_seen_dying_and_else_the_wrapper() {
        let ended = |child, below| Ended { child, limit: None, below, unseen: false, well: false }.of_rank().0;
        let killed = Exit::Signal(SIGKILL);
        assert_eq!(ended(killed, None), killed, "it may be ftd that kills both");
        for wrapper in [killed, Exit::Code(0), Exit::Code(139)] {
            assert_eq!(ended(wrapper, below(Some(Exit::Signal(11)))), Exit::Signal(11));
        }
        let by_itself = below(Some(Exit::Code(3)));
        assert_eq!((ended(Exit::Code(7), by_itself), ended(killed, by_itself)), (Exit::Code(7), Exit::Code(3)));
        // As on a kernel that has forgotten it: what nobody knows is no SIGKILL.
        let forgotten = below(None);
        assert_eq!(ended(killed, forgotten), Exit::Unseen);
        assert_eq!(ended(Exit::Code(139), forgotten), Exit::Code(139), "a shell tells of the signal");
        assert_eq!(ended(Exit::Signal(15), forgotten), Exit::Signal(15));
        let limits = Ended {
            child: killed,
            limit: Some(Limit::Memory),
            below: Some(Below { exit: None, limit: Some(Limit::CpuTime) }),
            unseen: false,
            well: false,
        };
        assert_eq!(limits.of_rank().1, Some(Limit::Memory));
    }

    #[test]
    fn a_script_that_is_killed_after_its_rank_has_ended_well_says_nothing_of_it() {
        let of_script = |child, well| Ended { child, limit: None, below: None, unseen: false, well }.of_script();
        assert_eq!(of_script(Exit::Signal(15), true), Some(15));
        for (child, well) in [(Exit::Signal(15), false), (Exit::Signal(SIGKILL), true), (Exit::Code(143), true)] {
            assert_eq!(of_script(child, well), None, "{child:?} {well}");
        }
    }

    #[test]
    fn a_wrapper_tells_of_a_death_that_nobody_saw() {
        let tells = |child, unseen| Ended { child, limit: None, below: None, unseen, well: false }.tells_of_death();
        for exit in [Exit::Signal(11), Exit::Code(129), Exit::Code(192), Exit::Unseen] {
            assert!(tells(exit, true) && !tells(exit, false), "{exit:?}");
        }
        assert!(![0, 1, 128, 145, 156, 193, 255].into_iter().any(|code| tells(Exit::Code(code), true)));
    }
}
