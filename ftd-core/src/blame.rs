//! Whose a death is.
//!
//! A signal that the job did not send itself, the out-of-memory killer and the loss of a slot, a node or one of ftd's own
//! processes are failures: they are recovered from. `MPI_Abort`, a non-zero exit, and an exit without `MPI_Finalize` of a
//! program that had called `MPI_Init` are the program's own wish: they end the job — but not before it is known that no
//! death came first, for libraries abort because a peer died, often before the kernel has finished with that peer. Until
//! then such an end is *held*.

use crate::agent::{Exit, Limit};
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
        Exit::Code(0) if between => Verdict::Own(OwnEnd::NoFinalize),
        Exit::Code(0) => Verdict::Clean,
        Exit::Code(code) => Verdict::Own(OwnEnd::ExitCode(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_ends() {
        use Phase::{Finalized, Initialized, Launched};
        let own = |code| Verdict::Own(OwnEnd::ExitCode(code));
        let signal = |signal| Verdict::Failure(Cause::Signal(signal));
        let table = [
            (Launched, false, Exit::Code(0), None, Verdict::Clean),
            (Finalized, false, Exit::Code(0), None, Verdict::Clean),
            (Initialized, false, Exit::Code(0), None, Verdict::Own(OwnEnd::NoFinalize)),
            (Launched, false, Exit::Code(3), None, own(3)),
            (Finalized, false, Exit::Code(3), None, own(3)),
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
}
