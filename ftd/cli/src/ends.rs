//! How a job has ended, as the agents of its nodes say.

/// An exit status, and why, when it is not a clean end.
pub type End = (i32, Option<String>);

/// Whose end it is that an agent tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The job's.
    Job,
    /// That of a node which is not in it any more.
    LeftOut,
    /// This node's; nobody knows what the others do, for the store is away.
    Unrecorded,
}

impl Says {
    /// As it is on the wire.
    pub fn read(left_out: bool, unrecorded: bool) -> Says {
        match (left_out, unrecorded) {
            (_, true) => Says::Unrecorded,
            (true, false) => Says::LeftOut,
            (false, false) => Says::Job,
        }
    }
}

/// What has been said of it.
#[derive(Debug, Default)]
pub struct Ends {
    agreed: Option<End>,
    /// Of agents that ended without the store, which was away.
    unrecorded: Option<End>,
    /// One of these says that all ranks of the job have ended, and well. Then that is how it has ended, whatever others do who do not know it.
    done: Option<End>,
}

impl Ends {
    /// An agent has ended with this.
    pub fn said(&mut self, status: i32, reason: Option<String>, unrecorded: bool) {
        if unrecorded && status == 0 {
            self.done.get_or_insert_with(|| (0, reason.clone()));
        }
        let end = if unrecorded { &mut self.unrecorded } else { &mut self.agreed };
        let end = end.get_or_insert((0, None));
        end.0 = if end.0 == 0 { status } else { end.0 };
        end.1 = end.1.take().or(reason);
    }

    /// The job is over for all: agents have agreed on its end, or all is done.
    pub fn are_agreed(&self) -> bool {
        self.agreed.is_some() || self.done.is_some()
    }

    /// All ranks of the job have ended, and well, and there may be nodes that do not know it.
    pub fn are_done(&self) -> bool {
        self.done.is_some()
    }

    /// Nobody has said anything.
    pub fn are_unknown(&self) -> bool {
        self.agreed.is_none() && self.unrecorded.is_none()
    }

    /// How it has ended: what agents have agreed on is worth more than what one has come to alone.
    pub fn take(&mut self) -> Option<End> {
        let Ends { agreed, unrecorded, done } = std::mem::take(self);
        done.or(agreed).or(unrecorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: &[(i32, &str, bool)]) -> Option<End> {
        let mut ends = Ends::default();
        for (status, reason, unrecorded) in said {
            ends.said(*status, (!reason.is_empty()).then(|| (*reason).to_string()), *unrecorded);
        }
        assert_eq!(ends.are_unknown(), said.is_empty());
        assert_eq!(ends.are_agreed(), said.iter().any(|(status, _, unrecorded)| !unrecorded || *status == 0));
        ends.take()
    }

    #[test]
    fn what_was_agreed_counts_and_else_the_first_that_is_not_well() {
        let end = |status, reason: &str| Some((status, Some(reason.to_string())));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(0, "", false), (0, "", false)]), Some((0, None)));
        assert_eq!(of(&[(1, "no store", true), (0, "", false)]), Some((0, None)));
        assert_eq!(of(&[(3, "exit", true), (1, "no store", true)]), end(3, "exit"));
        assert_eq!(of(&[(0, "", false), (1, "late", false), (1, "no store", true)]), end(1, "late"));
    }

    #[test]
    fn who_does_not_know_that_all_is_done_changes_nothing() {
        assert_eq!(of(&[(0, "", true), (0, "", true)]), Some((0, None)));
        assert_eq!(of(&[(0, "", true), (1, "no slot", false)]), Some((0, None)));
        assert_eq!(of(&[(1, "no store", true), (0, "", true)]), Some((0, None)));
        let told = (0, Some("cancelled, and its ranks ended by themselves".to_string()));
        assert_eq!(
            of(&[(0, "cancelled, and its ranks ended by themselves", true), (143, "cancelled", true)]),
            Some(told)
        );
    }

    #[test]
    fn what_is_left_out_for_others_is_unrecorded_here() {
        assert_eq!(Says::read(false, false), Says::Job);
        assert_eq!(Says::read(true, false), Says::LeftOut);
        assert_eq!(Says::read(true, true), Says::Unrecorded);
    }
}
