//! Whose an end is after signals that were passed on to the ranks, which may go on after them.
//!
//! | end | it is the answer to |
//! | --- | --- |
//! | died of a signal that counts, or a script says so | that one: nothing failed |
//! | died of another signal, of lack of memory, or of what nobody knows | none: a failure like any other |
//! | exited by itself, whatever its status, but not well | the newest that counts |
//! | `MPI_Abort` | none: it ends the job, and the others with it, as ever |
//! | ended well | none: it is done |

use crate::blame::{Exit, Verdict};
use crate::failure::{Cause, OwnEnd};
use crate::heard::Heard;
use crate::ids::Micros;

/// The same verdict; but a handler may leave by `_exit`, of which nobody is told before, and that is no death.
pub fn judged(heard: &Heard, exit: Exit, verdict: Verdict, now: Micros) -> Verdict {
    match (verdict, exit) {
        (Verdict::Failure(Cause::Unknown), Exit::Code(code)) if heard.newest(now).is_some() => {
            Verdict::Own(if code == 0 { OwnEnd::NoFinalize } else { OwnEnd::ExitCode(code) })
        }
        _ => verdict,
    }
}

/// The signal to which this end is the answer, if it is to one. An end by a process's own will is so only if nobody had died before it.
pub fn answered(heard: &Heard, verdict: Verdict, now: Micros) -> Option<i32> {
    let of = |signal: i32| Some(signal).filter(|signal| heard.counts(*signal, now));
    match verdict {
        Verdict::Clean | Verdict::Own(OwnEnd::Abort(_)) => None,
        Verdict::Failure(Cause::Signal(signal)) | Verdict::Own(OwnEnd::Script(signal)) => of(signal),
        Verdict::Failure(_) => None,
        // A script tells of the signal of its program so.
        Verdict::Own(OwnEnd::ExitCode(code @ 129..=192)) => of(code - 128).or(heard.newest(now)),
        Verdict::Own(OwnEnd::ExitCode(_) | OwnEnd::NoFinalize) => heard.newest(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::{Limit, Phase, verdict};

    const TERM: i32 = 15;
    const USR1: i32 = 10;

    #[test]
    fn the_table_of_answers() {
        use Phase::{Finalized, Initialized, Launched};
        let mut heard = Heard::new(Micros(0));
        heard.hears(TERM, Micros::from_secs(100));
        heard.hears(USR1, Micros::from_secs(50));
        let table = [
            (Initialized, true, Exit::Signal(TERM), None, Some(TERM)),
            (Launched, false, Exit::Signal(USR1), None, Some(USR1)),
            (Initialized, true, Exit::Code(128 + USR1), None, Some(USR1)),
            (Launched, false, Exit::Code(128 + USR1), None, Some(USR1)),
            (Initialized, true, Exit::Signal(9), None, None),
            (Initialized, true, Exit::Signal(11), None, None),
            (Initialized, true, Exit::Code(137), None, None),
            (Initialized, true, Exit::Signal(9), Some(Limit::Memory), None),
            (Initialized, true, Exit::Unseen, None, None),
            (Initialized, false, Exit::Code(5), None, Some(TERM)),
            (Initialized, true, Exit::Code(5), None, Some(TERM)),
            (Initialized, false, Exit::Code(0), None, Some(TERM)),
            (Finalized, false, Exit::Code(0), None, None),
            (Launched, false, Exit::Code(0), None, None),
            (Finalized, false, Exit::Code(3), None, Some(TERM)),
        ];
        for (phase, dying, exit, limit, expected) in table {
            let said = verdict(phase, dying, exit, limit);
            let at = |seconds| {
                let now = Micros::from_secs(seconds);
                answered(&heard, judged(&heard, exit, said, now), now)
            };
            assert_eq!(at(110), expected, "{phase:?} {dying} {exit:?} {limit:?}");
            assert_eq!(at(401), None, "{phase:?} {dying} {exit:?} {limit:?}, when the time of both is over");
        }
        let now = Micros::from_secs(110);
        let own = |end| answered(&heard, Verdict::Own(end), now);
        assert_eq!(
            (own(OwnEnd::Abort(1)), own(OwnEnd::Script(TERM)), own(OwnEnd::Script(11))),
            (None, Some(TERM), None)
        );
    }
}
