//! What the agents of a job have said of its failures, those to come that somebody has asked for among them, for the next agent, and for the end if there is none.

use ft_wire::Epoch;
use ft_wire::ask::Event;
use ft_wire::history::History;
use ft_wire::injection::Pending;
use ft_wire::toll::Toll;
use std::collections::BTreeSet;
use std::time::Instant;

/// All that counts of it.
#[derive(Debug, Default)]
pub struct Tolls {
    /// What failures had cost when an agent said so last, and when that was.
    last: Option<(Toll, Instant)>,
    unreported: Option<Unreported>,
    /// The failures that somebody has asked for and that have not come about, and when an agent said so.
    pending: Option<(Vec<Pending>, Instant)>,
    /// What has happened.
    history: History,
    /// What no agent is to say again.
    said: BTreeSet<String>,
}

/// A recovery that is over, and of which people are told when its agent says so, or dies.
#[derive(Debug)]
struct Unreported {
    epoch: Epoch,
    block: Option<String>,
    toll: (Toll, Instant),
}

impl Tolls {
    /// An agent says what they have cost so far.
    pub fn told(&mut self, toll: Toll, now: Instant) {
        self.last = Some((toll, now));
    }

    /// An agent says what it will say of an epoch in a while, and what failures have cost with that.
    pub fn unreported(&mut self, epoch: Epoch, block: Option<String>, toll: Toll, now: Instant) {
        self.unreported = Some(Unreported { epoch, block, toll: (toll, now) });
    }

    /// Nothing more comes from the agent: what it had not said of a recovery that is over, to be said in its place.
    pub fn take_unreported(&mut self) -> Option<(Epoch, String)> {
        let over = self.last.as_ref().map_or(0, |(toll, _)| toll.sums.over);
        let Unreported { epoch, block, toll } = self.unreported.take().filter(|known| known.epoch > over)?;
        self.last = Some(toll);
        Some((epoch, block?))
    }

    /// An agent says which failures it is still to bring about.
    pub fn asked_for(&mut self, pending: Vec<Pending>, now: Instant) {
        self.pending = Some((pending, now));
    }

    /// Those, and how long it is until then from now on; nothing when no agent has said so.
    pub fn pending(&self, now: Instant) -> Option<Vec<Pending>> {
        let (pending, told) = self.pending.clone()?;
        let age = now.saturating_duration_since(told);
        Some(pending.into_iter().map(|one| one.later(age)).collect())
    }

    /// An agent says what has happened.
    pub fn happened(&mut self, event: Event) {
        self.history.add(event);
    }

    /// An agent has said this, once for all.
    pub fn said_once(&mut self, text: String) {
        self.said.insert(text);
    }

    /// All of both.
    pub fn past(&self) -> (History, BTreeSet<String>) {
        (self.history.clone(), self.said.clone())
    }

    /// What they have cost, by the ages of now.
    pub fn now(&self, now: Instant) -> Toll {
        let last = self.last.clone();
        last.map(|(toll, told)| toll.later(now.saturating_duration_since(told))).unwrap_or_default()
    }

    /// For the job's end, where no agent has said it; `asked`: also when nothing was survived.
    pub fn sentence(&self, asked: bool) -> Option<String> {
        let sums = self.last.as_ref().map(|(toll, _)| &toll.sums);
        sums.filter(|sums| !sums.said)?.sentence(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::injection::Injection;
    use ft_wire::toll::Sums;
    use std::time::Duration;

    fn toll(over: Epoch, said: bool) -> Toll {
        Toll { sums: Sums { over, survived: over.saturating_sub(1), said, ..Sums::default() }, ..Toll::default() }
    }

    #[test]
    fn what_was_asked_for_comes_when_it_was_to_come() {
        let (mut tolls, begun) = (Tolls::default(), Instant::now());
        assert_eq!(tolls.pending(begun), None);
        let one =
            |after_ms| vec![Pending { injection: Injection { rank: 1, after_ms, at: None }, by: "somebody".into() }];
        tolls.asked_for(one(3000), begun);
        assert_eq!(tolls.pending(begun + Duration::from_secs(2)), Some(one(1000)));
        assert_eq!(tolls.pending(begun + Duration::from_secs(4)), Some(one(0)), "its time has come");
    }

    #[test]
    fn what_a_dead_agent_had_not_said_is_said_once_and_counts() {
        let (mut tolls, begun) = (Tolls::default(), Instant::now());
        assert_eq!((tolls.take_unreported(), tolls.sentence(false)), (None, None));
        tolls.told(Toll { computed: Some(Duration::from_secs(1)), ..toll(1, false) }, begun);
        assert_eq!(tolls.now(begun + Duration::from_secs(2)).computed, Some(Duration::from_secs(3)));
        tolls.unreported(2, Some("block".into()), toll(2, false), begun);
        assert_eq!(tolls.take_unreported(), Some((2, "block".into())));
        assert_eq!((tolls.now(begun).sums.over, tolls.take_unreported()), (2, None));
        assert!(tolls.sentence(false).is_some_and(|sentence| sentence.starts_with("1 failure was survived")));
        tolls.unreported(3, Some("block".into()), toll(3, false), begun);
        tolls.told(toll(3, true), begun);
        assert_eq!((tolls.take_unreported(), tolls.sentence(false)), (None, None), "the agent has said both");
        tolls.unreported(4, None, toll(4, false), begun);
        assert_eq!((tolls.take_unreported(), tolls.now(begun).sums.over), (None, 4), "another node's agent says it");
    }
}
