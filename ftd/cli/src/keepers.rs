//! Who keeps the arenas, as far as `ftrun` can tell: whether one of them may be ended without being the last.
//!
//! Each arena is kept by the agent and by three shepherds (docs/decisions/keepers-of-arenas.md); which three they are the
//! agent alone knows. So the worst is assumed: that all who are out of reach kept the same one.

use ft_wire::Slot;
use std::collections::BTreeSet;

/// Shepherds that keep a duplicate of each arena beside the agent; all of them when there are fewer.
const SHEPHERDS: usize = 3;

/// Who can be reached.
#[derive(Debug, Default)]
pub struct Keepers {
    /// Shepherds that the job has.
    pub shepherds: usize,
    /// Of those, how many have died since the agent knew them all: their successors keep nothing yet.
    pub died: usize,
    /// Those that do not answer.
    pub silent: BTreeSet<Slot>,
    /// Those that have not dialled in to the agent, which therefore may lack what they keep.
    pub absent: BTreeSet<Slot>,
    /// Those that have never told an agent who they are: they keep nothing.
    pub unborn: BTreeSet<Slot>,
    /// The agent answers, and has answered since a helper was replaced last.
    pub agent: bool,
    /// There are arenas.
    pub arenas: bool,
    /// That agent has the arenas of all ranks.
    pub complete: bool,
}

impl Keepers {
    /// Whether each arena is kept by a shepherd that is none of these.
    fn others_suffice(&self, out_of_reach: &BTreeSet<Slot>) -> bool {
        let keepers = out_of_reach.difference(&self.unborn).count();
        self.died + keepers < SHEPHERDS.min(self.shepherds)
    }

    /// Whether the agent may be ended.
    pub fn may_end_agent(&self) -> bool {
        !self.arenas || self.others_suffice(&self.silent)
    }

    /// Whether this shepherd may be ended.
    pub fn may_end_shepherd(&self, slot: Slot) -> bool {
        if !self.arenas || self.unborn.contains(&slot) {
            return true;
        }
        let known = !self.absent.contains(&slot);
        self.agent && (self.complete || known || self.others_suffice(&(&self.silent | &self.absent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepers(shepherds: usize, died: usize, silent: &[Slot], absent: &[Slot]) -> Keepers {
        let set = |slots: &[Slot]| slots.iter().copied().collect();
        let (silent, absent, unborn) = (set(silent), set(absent), BTreeSet::new());
        Keepers { shepherds, died, silent, absent, unborn, agent: true, arenas: true, complete: false }
    }

    #[test]
    fn the_agent_is_not_ended_while_all_keepers_may_be_out_of_reach() {
        assert!(keepers(8, 0, &[], &[]).may_end_agent());
        assert!(keepers(8, 0, &[1, 2], &[]).may_end_agent());
        assert!(!keepers(8, 0, &[1, 2, 3], &[]).may_end_agent());
        assert!(!keepers(8, 1, &[1, 2], &[]).may_end_agent(), "a successor keeps nothing yet");
        assert!(keepers(1, 0, &[], &[]).may_end_agent() && !keepers(1, 0, &[0], &[]).may_end_agent());
        assert!(!keepers(2, 1, &[0], &[]).may_end_agent());
    }

    #[test]
    fn a_shepherd_is_ended_when_an_agent_has_what_it_keeps() {
        assert!(keepers(4, 0, &[0, 1, 2, 3], &[]).may_end_shepherd(0), "the agent has dealt with all of them");
        let silent_agent = Keepers { agent: false, ..keepers(4, 0, &[0], &[]) };
        assert!(!silent_agent.may_end_shepherd(0));
        assert!(keepers(4, 0, &[0], &[0]).may_end_shepherd(0), "two others keep what it keeps");
        assert!(!keepers(4, 0, &[0, 1, 2], &[0, 1, 2]).may_end_shepherd(0), "a new agent may lack all that they keep");
        assert!(!keepers(1, 0, &[0], &[0]).may_end_shepherd(0));
        let complete = Keepers { complete: true, ..keepers(1, 0, &[0], &[0]) };
        assert!(complete.may_end_shepherd(0), "the new agent lacks nothing");
    }

    #[test]
    fn who_never_dialled_in_keeps_nothing() {
        let unborn = |agent| {
            let unborn = [0].into_iter().collect();
            Keepers { unborn, agent, ..keepers(1, 0, &[0], &[0]) }
        };
        assert!(unborn(true).may_end_shepherd(0) && unborn(false).may_end_shepherd(0));
        let successor = Keepers { unborn: [3].into_iter().collect(), ..keepers(3, 1, &[3], &[3]) };
        assert!(successor.may_end_agent(), "two others keep what the dead one kept");
        let two = Keepers { unborn: [2].into_iter().collect(), ..keepers(2, 1, &[0, 2], &[]) };
        assert!(!two.may_end_agent() && two.may_end_shepherd(0));
    }

    #[test]
    fn without_arenas_there_is_nothing_to_keep() {
        let none = Keepers { arenas: false, agent: false, ..keepers(1, 1, &[0], &[0]) };
        assert!(none.may_end_agent() && none.may_end_shepherd(0));
    }
}
