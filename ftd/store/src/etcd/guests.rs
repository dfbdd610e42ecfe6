//! Who asks over a connection that is another's: guests, who are users. What they find of a member moves nothing; it has the connection looked
//! at ([`Line::doubt`]), with a question that is no guest's. And they have places there, each user and all of them together, so
//! that there is always room beside them.
//!
//! [`Line::doubt`]: super::line::Line::doubt

use super::Etcd;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Questions of all guests that may be under way, and watches that they may have, together well below what etcd takes on a connection (250, see
/// [`super::options`]): the daemon has watches of its own. Who has no place for a watch reads now and then …
const OF_ALL: (usize, usize) = (64, 120);
/// … and those of one user.
const OF_ONE: (usize, usize) = (16, 80);

/// A connection to etcd, and who else may ask over it.
#[derive(Debug)]
pub struct Guests {
    etcd: Etcd,
    attempt: Duration,
    key: Arc<str>,
    all: Arc<Room>,
    /// As long as anybody is one of that user's: who comes again finds the places as they are.
    users: Mutex<HashMap<u32, Weak<Room>>>,
}

/// How many places there are, of each kind.
#[derive(Debug)]
struct Room {
    questions: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

/// What a guest wants a place for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Question,
    Watch,
}

/// A guest.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    own: Arc<Room>,
    all: Arc<Room>,
    /// See [`Etcd::guests`].
    pub key: Arc<str>,
}

/// What is held by who asks. Of a question it is kept until the question may have been answered, also when nobody waits for that any more: etcd
/// has it still.
#[derive(Debug, Default)]
pub(super) struct Place {
    held: Option<[OwnedSemaphorePermit; 2]>,
    until: Option<Instant>,
}

impl Place {
    /// A question is asked now, and has so much time; until when.
    pub fn until(&mut self, attempt: Duration) -> Instant {
        *self.until.insert(Instant::now() + attempt)
    }

    /// The question was answered, or is waited for no longer.
    pub fn leave(mut self, answered: bool) {
        if answered {
            self.until = None;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (Some(held), Some(until)) = (self.held.take(), self.until) else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep_until(until).await;
                drop(held);
            });
        }
    }
}

impl Room {
    fn new((questions, watches): (usize, usize)) -> Arc<Room> {
        let room = |most| Arc::new(Semaphore::new(most));
        Arc::new(Room { questions: room(questions), watches: room(watches) })
    }

    fn of(&self, kind: Kind) -> Arc<Semaphore> {
        match kind {
            Kind::Question => self.questions.clone(),
            Kind::Watch => self.watches.clone(),
        }
    }
}

impl Guests {
    pub(super) fn new(etcd: Etcd, attempt: Duration, key: &str) -> Guests {
        Guests { etcd, attempt, key: key.into(), all: Room::new(OF_ALL), users: Mutex::default() }
    }

    /// The store, for somebody of this user's.
    pub fn of(&self, uid: u32) -> Etcd {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, room| room.strong_count() > 0);
        let own = users.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| Room::new(OF_ONE));
        users.insert(uid, Arc::downgrade(&own));
        let attempt = self.etcd.attempt.min(self.attempt);
        Etcd {
            line: self.etcd.line.clone(),
            attempt,
            guest: Some(Guest { own, all: self.all.clone(), key: self.key.clone() }),
        }
    }
}

impl Guest {
    /// A place for one thing, of the user's own first: who waits for that holds up nobody else.
    pub async fn place(&self, kind: Kind, until: Instant) -> Option<Place> {
        let (own, all) = (self.own.of(kind), self.all.of(kind));
        let both = async { Some([own.acquire_owned().await.ok()?, all.acquire_owned().await.ok()?]) };
        let held = timeout_at(until, both).await.ok().flatten()?;
        Some(Place { held: Some(held), until: None })
    }
}

/// Why a guest's question was not asked.
pub(super) fn full() -> String {
    let (questions, watches) = OF_ONE;
    format!(
        "the user has {questions} questions under way or {watches} watches already, or all users together have too many"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EtcdOptions;

    async fn place(guest: &Guest, kind: Kind) -> Option<Place> {
        guest.place(kind, Instant::now() + Duration::from_millis(20)).await
    }

    async fn fill(guest: &Guest, kind: Kind) -> Vec<Place> {
        let mut places = Vec::new();
        while let Some(one) = place(guest, kind).await {
            places.push(one);
        }
        places
    }

    #[tokio::test]
    async fn a_user_has_so_many_places_however_often_he_comes_and_all_have_fewer_than_etcd_takes() {
        let etcd = crate::Etcd::new(&EtcdOptions::plain(["http://198.18.0.1:2379".to_string()])).unwrap();
        let guests = etcd.guests(Duration::from_secs(1), "k");
        let guest = |uid| guests.of(uid).guest.unwrap();
        let (one, again) = (guest(1), guest(1));
        let questions = fill(&one, Kind::Question).await;
        assert_eq!(questions.len(), OF_ONE.0);
        // Another one of his waits for the same places, and he has others for what lasts.
        assert!(place(&again, Kind::Question).await.is_none() && place(&again, Kind::Watch).await.is_some());
        drop(one);
        assert!(place(&guest(1), Kind::Question).await.is_none(), "he has others when he comes again");
        // Who waits in vain for his own has none of all.
        let rest = fill(&guest(2), Kind::Question).await;
        assert_eq!(rest.len(), OF_ONE.0, "it depends on what another user has");
        drop(questions);
        assert!(place(&again, Kind::Question).await.is_some());
        drop((again, rest));
        assert!(place(&guest(1), Kind::Question).await.is_some());
        let watches = (fill(&guest(1), Kind::Watch).await, fill(&guest(2), Kind::Watch).await);
        assert_eq!((watches.0.len(), watches.1.len()), (OF_ONE.1, OF_ALL.1 - OF_ONE.1));
        assert!(OF_ALL.0 + OF_ALL.1 + 64 <= 250);
    }

    #[tokio::test]
    async fn a_question_that_nobody_waits_for_has_its_place_until_it_may_be_answered() {
        let room = Room::new((1, 1));
        let guest = Guest { own: room.clone(), all: Room::new((1, 1)), key: "k".into() };
        let mut left = place(&guest, Kind::Question).await.unwrap();
        left.until(Duration::from_secs(60));
        drop(left);
        assert!(place(&guest, Kind::Question).await.is_none());
        assert_eq!(room.of(Kind::Question).available_permits(), 0);
        // One that was answered, and one whose time is over.
        let guest = Guest { own: Room::new((1, 1)), all: Room::new((1, 1)), key: "k".into() };
        for (attempt, answered) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
            let mut one = place(&guest, Kind::Question).await.unwrap();
            one.until(attempt);
            one.leave(answered);
            assert!(place(&guest, Kind::Question).await.is_some(), "{answered}");
        }
    }
}
