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
    /// The agent answers, and has answered since a helper was replaced last.
    pub agent: bool,
}

impl Keepers {
    /// Whether each arena is kept by a shepherd that is in reach.
    fn shepherds_suffice(&self, out_of_reach: usize) -> bool {
        self.died + out_of_reach < SHEPHERDS.min(self.shepherds)
    }

    /// Whether the agent may be ended.
    pub fn may_end_agent(&self) -> bool {
        self.shepherds_suffice(self.silent.len())
    }

    /// Whether this shepherd may be ended.
    pub fn may_end_shepherd(&self, slot: Slot) -> bool {
        let known = !self.absent.contains(&slot);
        self.agent && (known || self.shepherds_suffice(self.silent.union(&self.absent).count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepers(shepherds: usize, died: usize, silent: &[Slot], absent: &[Slot]) -> Keepers {
        let set = |slots: &[Slot]| slots.iter().copied().collect();
        Keepers { shepherds, died, silent: set(silent), absent: set(absent), agent: true }
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
    }
}
