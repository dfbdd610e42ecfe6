//! Whether a helper of ftd's answers, and what is done with one that does not. `ftrun` asks the agent and the shepherds, the
//! agent its `ft-pmix`.

use crate::process::Condition;
use crate::timescale::scaled;
use std::time::{Duration, Instant};

/// How often it is looked whether helpers have answered.
const PERIOD: Duration = Duration::from_secs(1);
/// One of many, when it has answered, is asked again after so many looks more: sixteen that are asked every second would take a
/// thousandth of a processor for ever.
const RESTS: u32 = 2;
/// So many looks after its question one that has not answered is a silent one.
const MOST_UNANSWERED: u32 = 5;
/// A running helper that has not answered for so long is to be replaced.
pub const OVERDUE: Duration = Duration::from_secs(PERIOD.as_secs() * MOST_UNANSWERED as u64 + PATIENCE.as_secs());
/// A silent helper that is neither traced nor stopped has so long to answer after all.
const PATIENCE: Duration = Duration::from_secs(30);
/// One that was ended, and waits in the kernel where SIGKILL does not reach it, for a disk as a rule, is waited for so long: file systems
/// over a network have stood still for minutes.
pub const DEVICE: Duration = Duration::from_secs(600);

/// The beat of the looks.
#[derive(Debug)]
pub struct Beat {
    last: Instant,
}

impl Beat {
    /// From now on.
    pub fn new(now: Instant) -> Beat {
        Beat { last: now }
    }

    /// When the next look is due.
    pub fn next(&self) -> Instant {
        self.last + scaled(PERIOD)
    }

    /// A look is due now. Whether it is in time: when this process itself did not run, because it was stopped or the
    /// machine slept, nobody owes it an answer.
    pub fn beat(&mut self, now: Instant) -> bool {
        // On a busy machine it takes as long to run again however short the period of a test is.
        let late = now.duration_since(self.last) > scaled(PERIOD) + (scaled(PERIOD) / 2).max(PERIOD / 10);
        self.last = now;
        !late
    }
}

/// What is to be done with a helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Nothing.
    Leave,
    /// It is traced: nothing, and this is said once.
    Traced(i32),
    /// It is stopped and gets SIGCONT; `true` for the first time.
    Continue(bool),
    /// It has had its time and is to be replaced.
    End,
}

/// One helper's answers.
#[derive(Debug, Default)]
pub struct Pulse {
    asked: bool,
    /// Looks until it is asked again.
    rests: u32,
    unanswered: u32,
    silent: Option<Instant>,
    traced: bool,
    stopped: bool,
    ended: Option<Instant>,
    /// When it was last seen to wait in the kernel, where SIGKILL does not reach it.
    waited: Option<Instant>,
}

/// What is to be said and done about a helper that was sent SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterEnd {
    /// Nothing.
    Wait,
    /// It waits in the kernel, where no signal reaches it: this is said once.
    InKernel,
    /// It has had its time.
    GiveUp,
}

impl Pulse {
    /// An answer has come.
    pub fn answered(&mut self) {
        *self = Pulse { ended: self.ended, ..Pulse::default() };
    }

    /// An answer has come of one of many.
    pub fn one_of_many_answered(&mut self) {
        self.answered();
        self.rests = RESTS;
    }

    /// A look is due; whether a question is to be sent. One that is not answered yet stays asked.
    pub fn ask(&mut self, in_time: bool, now: Instant) -> bool {
        if !self.asked && self.rests > 0 {
            self.rests -= 1;
            return false;
        }
        if !in_time {
            (self.unanswered, self.silent) = (0, None);
        } else if self.asked {
            self.unanswered += 1;
            if self.unanswered >= MOST_UNANSWERED {
                self.silent.get_or_insert(now);
            }
        }
        !std::mem::replace(&mut self.asked, true)
    }

    /// Whether it has not answered for too long.
    pub fn is_silent(&self) -> bool {
        self.silent.is_some()
    }

    /// What is to be done with it, given what the kernel says of it.
    pub fn treat(&mut self, condition: Option<Condition>, now: Instant) -> Treatment {
        let (Some(since), Some(condition), None) = (self.silent, condition, self.ended) else {
            return Treatment::Leave;
        };
        if condition.tracer != 0 {
            // Its time begins when nobody traces it any more.
            self.silent = Some(now);
            let first = !std::mem::replace(&mut self.traced, true);
            return if first { Treatment::Traced(condition.tracer) } else { Treatment::Leave };
        }
        if now.duration_since(since) >= scaled(PATIENCE) {
            return Treatment::End;
        }
        match condition.state {
            'T' => Treatment::Continue(!std::mem::replace(&mut self.stopped, true)),
            _ => Treatment::Leave,
        }
    }

    /// It was sent SIGKILL.
    pub fn end(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// What is to be done with one that was sent SIGKILL and is still there: it has as long as it had for an answer, and longer when it
    /// is in uninterruptible sleep.
    pub fn after_end(&mut self, condition: Option<Condition>, now: Instant) -> AfterEnd {
        let Some(ended) = self.ended else { return AfterEnd::Wait };
        if now.duration_since(ended) < scaled(PATIENCE) {
            return AfterEnd::Wait;
        }
        let in_kernel = condition.is_some_and(|found| found.state == 'D');
        match (in_kernel, self.waited) {
            (true, _) if now.duration_since(ended) >= scaled(DEVICE) => AfterEnd::GiveUp,
            (true, before) => {
                self.waited = Some(now);
                if before.is_none() { AfterEnd::InKernel } else { AfterEnd::Wait }
            }
            // Out of the kernel it dies as soon as it runs.
            (false, Some(last)) if now.duration_since(last) < scaled(PATIENCE) => AfterEnd::Wait,
            (false, _) => AfterEnd::GiveUp,
        }
    }

    /// It was sent SIGKILL, and has not been waited for.
    pub fn is_ended(&self) -> bool {
        self.ended.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: Option<Condition> = Some(Condition { state: 'S', tracer: 0 });
    const STOPPED: Option<Condition> = Some(Condition { state: 'T', tracer: 0 });
    const WAITS: Option<Condition> = Some(Condition { state: 'D', tracer: 0 });
    const TRACED: Option<Condition> = Some(Condition { state: 't', tracer: 7 });

    fn silent(now: Instant) -> Pulse {
        let mut pulse = Pulse::default();
        assert!(pulse.ask(true, now));
        assert!((0..4).all(|_| !pulse.ask(true, now) && !pulse.is_silent()));
        assert_eq!(pulse.treat(STOPPED, now), Treatment::Leave);
        pulse.ask(true, now);
        assert!(pulse.is_silent());
        pulse
    }

    #[test]
    fn a_running_helper_has_half_a_minute() {
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut pulse = silent(now);
        assert_eq!(pulse.treat(RUNS, at(29)), Treatment::Leave);
        assert_eq!(pulse.treat(RUNS, at(30)), Treatment::End);
        pulse.end(at(30));
        assert_eq!((pulse.treat(RUNS, at(31)), pulse.is_ended()), (Treatment::Leave, true));
        assert_eq!([59, 60].map(|s| pulse.after_end(RUNS, at(s))), [AfterEnd::Wait, AfterEnd::GiveUp]);
        let mut pulse = silent(now);
        pulse.answered();
        assert_eq!(pulse.treat(RUNS, at(90)), Treatment::Leave);
        assert!(pulse.ask(true, at(90)));
        pulse.one_of_many_answered();
        assert_eq!([90, 91, 92].map(|s| pulse.ask(true, at(s))), [false, false, true]);
        assert!((0..4).all(|_| !pulse.ask(true, now) && !pulse.is_silent()));
        assert!(!pulse.ask(true, at(97)) && pulse.is_silent());
    }

    #[test]
    fn a_stopped_one_is_continued_and_a_traced_one_left_alone() {
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut pulse = silent(now);
        assert_eq!(pulse.treat(TRACED, at(0)), Treatment::Traced(7));
        assert_eq!(pulse.treat(TRACED, at(500)), Treatment::Leave);
        assert_eq!(pulse.treat(STOPPED, at(501)), Treatment::Continue(true));
        assert_eq!(pulse.treat(STOPPED, at(502)), Treatment::Continue(false));
        assert_eq!(pulse.treat(STOPPED, at(530)), Treatment::End);
    }

    #[test]
    fn one_that_waits_in_the_kernel_is_waited_for_ten_minutes_after_its_end() {
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut pulse = silent(now);
        assert_eq!(
            [0, 29, 30].map(|s| pulse.treat(WAITS, at(s))),
            [Treatment::Leave, Treatment::Leave, Treatment::End]
        );
        assert_eq!(pulse.after_end(WAITS, at(500)), AfterEnd::Wait);
        pulse.end(at(30));
        let said = [59, 60, 61, 629, 630].map(|s| pulse.after_end(WAITS, at(s)));
        assert_eq!(said, [AfterEnd::Wait, AfterEnd::InKernel, AfterEnd::Wait, AfterEnd::Wait, AfterEnd::GiveUp]);
        let mut pulse = silent(now);
        pulse.end(at(0));
        assert_eq!([30, 31].map(|s| pulse.after_end(WAITS, at(s))), [AfterEnd::InKernel, AfterEnd::Wait]);
        assert_eq!(
            [32, 60, 61].map(|s| pulse.after_end(RUNS, at(s))),
            [AfterEnd::Wait, AfterEnd::Wait, AfterEnd::GiveUp]
        );
    }

    #[test]
    fn who_did_not_run_itself_has_asked_nothing() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut beat = Beat::new(now);
        assert_eq!(beat.next(), at(1000));
        assert!(beat.beat(at(1100)) && !beat.beat(at(9000)) && beat.beat(at(10_000)));
        let mut pulse = silent(now);
        pulse.ask(false, now);
        assert!(!pulse.is_silent());
        assert!((0..4).all(|_| !pulse.ask(true, now) && !pulse.is_silent()));
    }
}
