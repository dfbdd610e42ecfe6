//! Failures that the job's user has asked for, until they are brought about.

use crate::outlet::Outlet;
use ft_wire::Rank;
use ft_wire::injection::{Injection, Place};
use std::sync::Once;
use std::time::Duration;

/// What is heard of them.
#[derive(Debug, Clone)]
pub enum News {
    /// It is time for this one.
    Due(Wanted),
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

/// Those that wait for a rank to come to a place.
#[derive(Debug)]
pub struct Injections {
    armed: Vec<Wanted>,
    news: Outlet<News>,
}

impl Injections {
    /// None yet.
    pub fn new(news: Outlet<News>) -> Injections {
        Injections { armed: Vec::new(), news }
    }

    /// One is wanted, so much later.
    pub fn want(&self, wanted: Wanted, after: Duration) {
        let news = self.news.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            news.send(News::Due(wanted));
        });
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
