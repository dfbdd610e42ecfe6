//! Failures that the job's user has asked for, until they are brought about.

use crate::outlet::Outlet;
use ft_wire::Rank;
use ft_wire::injection::{Injection, Pending, Place};
use std::collections::BTreeMap;
use std::sync::Once;
use std::time::{Duration, Instant};

/// What is heard of them.
#[derive(Debug, Clone)]
pub enum News {
    /// It is time for the one of this number.
    Due(u64),
    /// The agent was at a place, with this rank if it is one's own.
    At(Place, Option<Rank>),
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What.
    pub injection: Injection,
    /// Who has asked for it.
    pub by: String,
    /// How often there was nobody to kill.
    pub tries: u32,
}

/// Those that wait: for their time, and then for a rank to come to a place.
#[derive(Debug)]
pub struct Injections {
    timed: BTreeMap<u64, (Wanted, Instant)>,
    armed: Vec<Wanted>,
    /// An agent of this node has them, from the first on.
    begun: bool,
    next: u64,
    news: Outlet<News>,
}

impl Injections {
    /// None yet.
    pub fn new(news: Outlet<News>) -> Injections {
        Injections { timed: BTreeMap::new(), armed: Vec::new(), begun: false, next: 0, news }
    }

    /// One is wanted, so much later.
    pub fn want(&mut self, wanted: Wanted, after: Duration) {
        let (news, number) = (self.news.clone(), self.next);
        self.next += 1;
        self.timed.insert(number, (wanted, Instant::now() + after));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            news.send(News::Due(number));
        });
    }

    /// It is time for this one.
    pub fn due(&mut self, number: u64) -> Option<Wanted> {
        self.timed.remove(&number).map(|(wanted, _)| wanted)
    }

    /// Whether those that the job was begun with are still to be wanted: they are now.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    /// Those that have not been brought about, for the agent that would come after this one; nothing before they have begun.
    pub fn pending(&self, now: Instant) -> Option<Vec<Pending>> {
        let left =
            |until: &Instant| u64::try_from(until.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX);
        let pending = |wanted: &Wanted, after_ms| Pending {
            injection: Injection { after_ms, ..wanted.injection },
            by: wanted.by.clone(),
        };
        let timed = self.timed.values().map(|(wanted, until)| pending(wanted, left(until)));
        self.begun.then(|| timed.chain(self.armed.iter().map(|wanted| pending(wanted, 0))).collect())
    }

    /// One waits from now on for its rank to come to its place.
    pub fn arm(&mut self, wanted: Wanted) {
        static LISTENS: Once = Once::new();
        let news = self.news.clone();
        LISTENS.call_once(|| {
            ft_sys::gate::listen(move |name, rank| {
                if let Some(place) = Place::named(name) {
                    news.send(News::At(place, rank));
                }
            });
        });
        self.armed.push(wanted);
    }

    /// Those that wait for this place, and do not any more.
    pub fn at(&mut self, place: Place, rank: Option<Rank>) -> Vec<Wanted> {
        let here = |wanted: &mut Wanted| {
            let Injection { rank: victim, at, .. } = wanted.injection;
            at == Some(place) && (!place.is_of_one_rank() || rank == Some(victim))
        };
        self.armed.extract_if(.., here).collect()
    }

    /// Those of a rank whose checkpoint library sees by itself where it is, and is there only now.
    pub fn of_library(&mut self, rank: Rank) -> Vec<Wanted> {
        let of_rank =
            |wanted: &mut Wanted| wanted.injection.rank == rank && wanted.injection.at.is_some_and(Place::is_in_rank);
        self.armed.extract_if(.., of_rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(rank: Rank, at: Place) -> Wanted {
        let injection = Injection { rank, after_ms: 0, at: Some(at) };
        Wanted { injection, by: "somebody".into(), tries: 0 }
    }

    #[tokio::test]
    async fn what_has_not_come_about_is_for_the_next_agent() {
        let (mut injections, now) = (Injections::new(Outlet::new(|_, _| true)), Instant::now());
        assert_eq!(injections.pending(now), None);
        assert!(injections.begin() && !injections.begin());
        let timed = Wanted { injection: Injection { rank: 1, after_ms: 9000, at: None }, ..wanted(1, Place::Released) };
        injections.want(timed.clone(), Duration::from_secs(9));
        injections.arm(wanted(2, Place::Copied));
        let left = |injections: &Injections, now| {
            let pending = injections.pending(now).unwrap_or_default().into_iter();
            pending.map(|one| (one.injection.rank, one.injection.after_ms.div_ceil(1000))).collect::<Vec<_>>()
        };
        assert_eq!(left(&injections, now + Duration::from_secs(4)), [(1, 5), (2, 0)]);
        assert_eq!(injections.due(0), Some(timed));
        assert_eq!((injections.due(0), left(&injections, now)), (None, vec![(2, 0)]));
        injections.at(Place::Copied, Some(2));
        assert_eq!(left(&injections, now), []);
    }

    #[test]
    fn each_waits_for_its_own_place_and_once() {
        let mut injections = Injections::new(Outlet::new(|_, _| true));
        let all = [wanted(1, Place::Released), wanted(1, Place::AsksForState), wanted(2, Place::Copied)];
        all.iter().for_each(|one| injections.arm(one.clone()));
        assert_eq!(injections.at(Place::AsksForState, Some(2)), []);
        assert_eq!(injections.at(Place::Released, None), [all[0].clone()]);
        assert_eq!(injections.at(Place::Released, None), []);
        assert_eq!(injections.at(Place::AsksForState, Some(1)), [all[1].clone()]);
        assert_eq!(injections.of_library(1), []);
        assert_eq!(injections.of_library(2), [all[2].clone()]);
        assert_eq!(injections.of_library(2), []);
    }
}
