//! Whether another end that is asked again and again answers.

use ft_wire::part::SILENT;
use std::time::{Duration, Instant};

/// A look that comes so much later than it should says that this process did not run.
const LATE: Duration = Duration::from_millis(2500);

/// Looks at one such end.
#[derive(Debug)]
pub struct Looks {
    last: Instant,
    often: Duration,
    begun: bool,
    in_vain: u32,
}

impl Looks {
    /// From now on, so often; `begun`: it was heard before.
    pub fn new(now: Instant, often: Duration, begun: bool) -> Looks {
        Looks { last: now, often, begun, in_vain: 0 }
    }

    /// So many looks in a row have found nothing.
    pub fn in_vain(&self) -> u32 {
        self.in_vain
    }

    /// Whether it was heard ever: from then on it owes answers.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// A look. True: it has owed an answer for too long. When this process itself did not run, for it was stopped or the machine slept,
    /// nobody owes it one.
    pub fn look(&mut self, now: Instant, heard: bool) -> bool {
        let late = now.duration_since(self.last) > self.often + LATE;
        self.last = now;
        self.begun |= heard;
        self.in_vain = if heard || late || !self.begun { 0 } else { self.in_vain + 1 };
        self.often * self.in_vain >= SILENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::part::PULSE;

    #[test]
    fn who_owes_an_answer_has_fifteen_seconds_in_which_the_other_end_runs() {
        let begun = Instant::now();
        let at = |s| begun + Duration::from_secs(s);
        let mut looks = Looks::new(begun, PULSE, false);
        assert!((1..20).all(|n| !looks.look(at(5 * n), false)), "it has never been heard");
        assert!(!looks.begun() && !looks.look(at(100), true) && looks.begun());
        assert!(!looks.look(at(105), false) && !looks.look(at(110), false));
        assert!(!looks.look(at(115), true), "it has answered");
        assert!(!looks.look(at(120), false) && !looks.look(at(125), false));
        assert!(!looks.look(at(900), false), "nobody has asked it meanwhile");
        assert!(!looks.look(at(905), false) && !looks.look(at(910), false) && looks.look(at(915), false));
    }
}
