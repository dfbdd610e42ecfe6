//! Whether another end that is asked again and again answers.

use ft_wire::part::{PULSE, SILENT};
use std::time::Instant;

/// So many looks in a row may find nothing.
const MOST: u32 = (SILENT.as_secs() / PULSE.as_secs()) as u32;

/// Looks at one such end, one every [`PULSE`].
#[derive(Debug)]
pub struct Looks {
    last: Instant,
    begun: bool,
    in_vain: u32,
}

impl Looks {
    /// From now on; nothing has been heard yet.
    pub fn new(now: Instant) -> Looks {
        Looks { last: now, begun: false, in_vain: 0 }
    }

    /// Whether it was heard ever: from then on it owes answers.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// A look. True: it has owed an answer for too long. When this process itself did not run, for it was stopped or the machine slept,
    /// nobody owes it one.
    pub fn look(&mut self, now: Instant, heard: bool) -> bool {
        let late = now.duration_since(self.last) > PULSE + PULSE / 2;
        self.last = now;
        self.begun |= heard;
        self.in_vain = if heard || late || !self.begun { 0 } else { self.in_vain + 1 };
        self.in_vain >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_owes_an_answer_has_fifteen_seconds_in_which_the_other_end_runs() {
        let begun = Instant::now();
        let at = |s| begun + Duration::from_secs(s);
        let mut looks = Looks::new(begun);
        assert!((1..20).all(|n| !looks.look(at(5 * n), false)), "it has never been heard");
        assert!(!looks.begun() && !looks.look(at(100), true) && looks.begun());
        assert!(!looks.look(at(105), false) && !looks.look(at(110), false));
        assert!(!looks.look(at(115), true), "it has answered");
        assert!(!looks.look(at(120), false) && !looks.look(at(125), false));
        assert!(!looks.look(at(900), false), "nobody has asked it meanwhile");
        assert!(!looks.look(at(905), false) && !looks.look(at(910), false) && looks.look(at(915), false));
    }
}
