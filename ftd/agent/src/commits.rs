//! Sees the ranks' commits in their arenas and has their checksums made, behind the copy.
//!
//! A commit is a word in shared memory and a futex, not a message: `ft_checkpoint` has nothing to wait for, and the threads
//! here run behind the ranks, so that no wake-up of theirs pushes aside a rank that is still in the call.

use crate::outlet::Outlet;
use crate::panicked::or_panicked;
use ft_arena::{AgentArena, PlaceInfo, PlaceState};
use ft_sys::behind::Behind;
use ft_sys::death::{wait_any, wake};
use ft_wire::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Arenas that one thread waits for, next to its own word.
const MOST: u32 = 127;
/// How often a kernel before 5.16, which cannot wait for several futexes, has the arenas looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The checksum of one committed place.
#[derive(Debug)]
pub struct Hashed {
    /// Whose arena.
    pub rank: Rank,
    /// The commit and its checksum, or what is wrong with the place.
    pub result: Result<(PlaceInfo, u64), String>,
}

#[derive(Debug, Default)]
struct Shared {
    arenas: Mutex<BTreeMap<Rank, Arc<AgentArena>>>,
    /// Changes with `arenas`; the thread waits on it as well.
    changes: AtomicU32,
}

/// Handle of the threads, which end with the process.
#[derive(Debug)]
pub struct Commits {
    hashed: Outlet<Hashed>,
    threads: BTreeMap<u32, Arc<Shared>>,
}

fn lock(shared: &Shared) -> MutexGuard<'_, BTreeMap<Rank, Arc<AgentArena>>> {
    shared.arenas.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commits {
    /// No arenas yet. Checksums leave through `hashed`.
    pub fn new(hashed: Outlet<Hashed>) -> Self {
        Commits { hashed, threads: BTreeMap::new() }
    }

    /// Watches an arena, from now on and for ever; one that is watched already is no error. To be called on a thread of
    /// the runtime.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn add(&mut self, rank: Rank, arena: Arc<AgentArena>) -> std::io::Result<()> {
        if let Some(shared) = self.threads.get(&(rank / MOST)) {
            lock(shared).insert(rank, arena);
            shared.changes.fetch_add(1, Ordering::SeqCst);
            wake(&shared.changes);
            return Ok(());
        }
        let shared = Arc::new(Shared { arenas: Mutex::new([(rank, arena)].into()), ..Shared::default() });
        let (theirs, hashed, pool) = (shared.clone(), self.hashed.clone(), tokio::runtime::Handle::current());
        std::thread::Builder::new().name("commits".into()).spawn(move || watch(&theirs, &hashed, &pool))?;
        self.threads.insert(rank / MOST, shared);
        Ok(())
    }
}

fn watch(shared: &Shared, hashed: &Outlet<Hashed>, pool: &tokio::runtime::Handle) {
    ft_sys::priority::put_back();
    let _behind = Behind::begin();
    // The newest commit of each rank whose checksum is made or on its way.
    let mut newest: BTreeMap<Rank, u64> = BTreeMap::new();
    let mut orders: BTreeMap<Rank, Arc<Order>> = BTreeMap::new();
    loop {
        let seen = shared.changes.load(Ordering::SeqCst);
        let arenas = lock(shared).clone();
        let mut words = vec![(&shared.changes, seen)];
        for (rank, arena) in &arenas {
            words.push((arena.commits(), arena.commits().load(Ordering::Acquire)));
            let newest = newest.entry(*rank).or_default();
            let scanned = arena.scan().into_iter();
            let mut fresh: Vec<PlaceInfo> =
                scanned.filter(|info| info.state == PlaceState::Copied && info.sequence > *newest).collect();
            fresh.sort_by_key(|info| info.sequence);
            let mut last = *newest;
            for info in fresh {
                last = info.sequence;
                let order = orders.entry(*rank).or_default();
                order.next.lock().unwrap_or_else(PoisonError::into_inner).push_back(info.place);
                hash(*rank, arena.clone(), order.clone(), hashed.clone(), pool);
            }
            *newest = last;
        }
        if let Err(error) = wait_any(&words) {
            tracing::debug!(%error, "the arenas' futexes cannot be watched together here");
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// In which order a rank's commits have their checksums made: that of the commits, on whichever thread.
#[derive(Debug, Default)]
struct Order {
    /// Held while one is made.
    turn: Mutex<()>,
    /// The places whose turn comes.
    next: Mutex<VecDeque<u32>>,
}

fn hash(rank: Rank, arena: Arc<AgentArena>, order: Arc<Order>, hashed: Outlet<Hashed>, pool: &tokio::runtime::Handle) {
    pool.spawn_blocking(move || {
        let _behind = Behind::begin();
        let _turn = order.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let next = order.next.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(place) = next {
            hashed.send(Hashed { rank, result: or_panicked("its checksum", || arena.hash(place)) });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_arena::{Arena, bytes_for};

    fn commit(rank: &mut Arena, version: u64, bytes: usize) {
        let needed = bytes_for([bytes as u64].into_iter()).unwrap();
        if needed > rank.place_bytes() {
            rank.reserve(needed).unwrap();
        }
        let mut writing = rank.begin(version, 1, &[(0, bytes as u64)], Duration::ZERO).unwrap();
        writing.copy(0, &vec![version as u8; bytes]);
        writing.commit(Duration::ZERO);
    }

    #[tokio::test]
    async fn checksums_of_a_rank_come_in_the_order_of_its_commits() {
        let (agent, fd) = AgentArena::create(0, 1).unwrap();
        let mut rank = Arena::open(fd, 0, 1).unwrap();
        // Made at once, the short one's is there first by far.
        commit(&mut rank, 1, 64 << 20);
        commit(&mut rank, 2, 1);
        let (sender, mut hashed) = tokio::sync::mpsc::unbounded_channel();
        let mut commits = Commits::new(Outlet::new(move |news, _| sender.send(news).is_ok()));
        commits.add(0, Arc::new(agent)).unwrap();
        for version in [1, 2] {
            let next: Hashed = tokio::time::timeout(Duration::from_secs(60), hashed.recv()).await.unwrap().unwrap();
            assert_eq!(next.result.unwrap().0.version, version);
        }
    }
}
