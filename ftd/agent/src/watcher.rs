//! The fast path of death detection: one thread that waits on the robust futexes of all ranks of this node (DESIGN §5).

use crate::outlet::Outlet;
use ft_sys::death::is_dying;
use ft_sys::individual::Held;
use ft_sys::memory::SharedMap;
use ft_wire::rank::page;
use ft_wire::{Rank, World};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Futexes that one wait covers, next to the thread's own; on larger nodes the rest is noticed by the shepherds.
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

/// Handle of the thread, which ends with the process.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Vec<Watched>> {
    shared.watched.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Watcher {
    /// Starts the thread; deaths leave through `deaths`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(deaths: Outlet<Dying>) -> std::io::Result<Watcher> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        std::thread::Builder::new().name("robust-futex".into()).spawn(move || watch(&theirs, &deaths))?;
        Ok(Watcher { shared })
    }

    /// Watches a process whose page is armed.
    pub fn add(&self, world: World, rank: Rank, pid: i32, page: Arc<SharedMap>, below: Option<Arc<Held>>) {
        lock(&self.shared).push(Watched { world, rank, pid, page, below });
        self.changed();
    }

    /// Forgets the processes of a world.
    pub fn forget(&self, world: World) {
        lock(&self.shared).retain(|w| w.world != world);
        self.changed();
    }

    fn changed(&self) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
        ft_sys::death::wake(&self.shared.changes);
    }
}

/// A word in another process's page: its address while the page is mapped here.
fn futex(watched: &Watched) -> &AtomicU32 {
    watched.page.u32_at(page::MUTEX)
}

fn watch(shared: &Shared, deaths: &Outlet<Dying>) {
    loop {
        let seen = shared.changes.load(Ordering::SeqCst);
        let list = lock(shared).clone();
        let mut words = vec![(&shared.changes, seen)];
        let mut ended = Vec::new();
        for watched in list.iter().take(MOST) {
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
        lock(shared).retain(|w| !is_ended(w));
    }
}
