//! The fast path of death detection: threads that wait on the robust futexes of all ranks of this node (DESIGN §5).

use crate::outlet::Outlet;
use ft_sys::death::is_dying;
use ft_sys::individual::Held;
use ft_sys::memory::SharedMap;
use ft_wire::rank::page;
use ft_wire::{Rank, World};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Futexes that one wait covers, next to the thread's own.
const MOST: usize = 127;

/// A rank's robust futex says that it is dying, and the kernel agrees.
#[derive(Debug, Clone, Copy)]
pub struct Dying {
    /// Its world.
    pub world: World,
    /// Its rank.
    pub rank: Rank,
    /// The raw wait status of one below a wrapper, if that is known.
    pub status: Option<i32>,
}

/// One watched process.
#[derive(Debug, Clone)]
struct Watched {
    world: World,
    rank: Rank,
    pid: i32,
    page: Arc<SharedMap>,
    /// Of a rank below a wrapper, which may be waited for and forgotten any moment.
    below: Option<Arc<Held>>,
}

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<Vec<Watched>>,
    /// Changes with `watched`; the thread waits on it as well.
    changes: AtomicU32,
}

/// Handle of the threads, which end with the process.
#[derive(Debug)]
pub struct Watcher {
    deaths: Outlet<Dying>,
    threads: Mutex<Vec<Arc<Shared>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        ft_sys::death::wake(&self.changes);
    }

    /// Takes it in, if there is room.
    fn takes(&self, watched: &Watched) -> bool {
        let mut list = lock(&self.watched);
        let room = list.len() < MOST;
        if room {
            list.push(watched.clone());
            drop(list);
            self.changed();
        }
        room
    }
}

impl Watcher {
    /// Starts the first thread; deaths leave through `deaths`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(deaths: Outlet<Dying>) -> std::io::Result<Watcher> {
        let first = thread(&deaths)?;
        Ok(Watcher { deaths, threads: Mutex::new(vec![first]) })
    }

    /// Watches a process whose page is armed.
    pub fn add(&self, world: World, rank: Rank, pid: i32, page: Arc<SharedMap>, below: Option<Arc<Held>>) {
        let watched = Watched { world, rank, pid, page, below };
        let mut threads = lock(&self.threads);
        if threads.iter().any(|shared| shared.takes(&watched)) {
            return;
        }
        match thread(&self.deaths) {
            Ok(another) => {
                another.takes(&watched);
                threads.push(another);
            }
            // The shepherds' word is truth, if a slower one.
            Err(error) => tracing::info!(%error, rank, "no thread is to be had that would watch a robust futex"),
        }
    }

    /// Forgets the processes of a world.
    pub fn forget(&self, world: World) {
        for shared in lock(&self.threads).iter() {
            lock(&shared.watched).retain(|w| w.world != world);
            shared.changed();
        }
    }
}

fn thread(deaths: &Outlet<Dying>) -> std::io::Result<Arc<Shared>> {
    let shared = Arc::new(Shared::default());
    let (theirs, deaths) = (shared.clone(), deaths.clone());
    std::thread::Builder::new().name("robust-futex".into()).spawn(move || watch(&theirs, &deaths))?;
    Ok(shared)
}

/// A word in another process's page: its address while the page is mapped here.
fn futex(watched: &Watched) -> &AtomicU32 {
    watched.page.u32_at(page::MUTEX)
}

fn watch(shared: &Shared, deaths: &Outlet<Dying>) {
    loop {
        let seen = shared.changes.load(Ordering::SeqCst);
        let list = lock(&shared.watched).clone();
        let mut words = vec![(&shared.changes, seen)];
        let mut ended = Vec::new();
        for watched in &list {
            match ft_sys::death::watch_robust(futex(watched)) {
                Some(value) => words.push((futex(watched), value)),
                None => ended.push(watched),
            }
        }
        if ended.is_empty() {
            if let Err(error) = ft_sys::death::wait_any(&words) {
                // Before Linux 5.16: the shepherds' word is truth, if a slower one.
                tracing::info!(%error, "robust futexes cannot be watched here");
                return;
            }
            continue;
        }
        for watched in &ended {
            // A thread that ended, or an exec, fires as well; then this process is not watched any longer.
            if !is_dying(watched.pid).unwrap_or(false) {
                continue;
            }
            let status = watched.below.as_ref().and_then(|held| ft_sys::post_mortem::status(held));
            if !deaths.send(Dying { world: watched.world, rank: watched.rank, status }) {
                return;
            }
        }
        let is_ended = |w: &Watched| ended.iter().any(|e| e.world == w.world && e.rank == w.rank && e.pid == w.pid);
        lock(&shared.watched).retain(|w| !is_ended(w));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    /// What the kernel does at a death is done here by hand.
    #[test]
    fn the_death_of_any_of_many_ranks_is_noticed() {
        let (say, said) = mpsc::channel();
        let watcher = Watcher::start(Outlet::new(move |dying: Dying, _| say.send(dying.rank).is_ok())).unwrap();
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let (gone, alive) = (gone.id() as i32, std::process::id() as i32);
        let page = || {
            let memory = ft_sys::memory::create_memfd("page", page::SIZE as u64).unwrap();
            Arc::new(SharedMap::map(&memory, 0, page::SIZE).unwrap())
        };
        let ends = |page: &SharedMap| {
            page.u32_at(page::MUTEX).fetch_or(ft_sys::death::OWNER_DIED, Ordering::SeqCst);
            ft_sys::death::wake(page.u32_at(page::MUTEX));
        };
        let dead = [0, 126, 127, 129, 299];
        let pages: Vec<_> = (0..300).map(|_| page()).collect();
        for (rank, page) in (0..).zip(&pages) {
            watcher.add(1, rank, if dead.contains(&rank) { gone } else { alive }, page.clone(), None);
        }
        for rank in dead {
            ends(&pages[rank as usize]);
            assert_eq!(said.recv_timeout(Duration::from_secs(20)), Ok(rank));
        }
        // A thread of it has ended, or it is another program now: it lives.
        ends(&pages[200]);
        watcher.forget(1);
        let again = page();
        watcher.add(2, 7, gone, again.clone(), None);
        ends(&again);
        assert_eq!(said.recv_timeout(Duration::from_secs(20)), Ok(7));
        assert_eq!(lock(&watcher.threads).len(), 3);
    }
}
