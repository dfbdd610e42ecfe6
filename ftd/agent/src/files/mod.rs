//! `$FT_CHECKPOINT_DIR`: a directory in node memory for codes that write their own restart files (DESIGN §7).
//!
//! A world must find there only whole files. Whole is a property of the inode, not of its name: a file is whole when, at a
//! moment when every process of the world was alive, the kernel said that nobody had it open for writing, and nobody has
//! opened it for writing since (docs/decisions/whole-files.md). When a world has ended, every file that is not known to be
//! whole is set aside.

mod aside;
mod directory;
mod helpers;
mod journal;
mod kept;
mod name;
mod queue;
mod writers;

use directory::CheckpointDir;
use ft_sys::process::processor_time;
use helpers::{Helpers, Survey};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use writers::Writers;

pub use name::NAME;

/// How often the processes are looked at while one of them is writing, or has ended and nobody knows how.
const WHILE_OPEN: Duration = Duration::from_millis(50);
/// The same while there are files. Who was killed before a file was made must be known for it then.
const WHILE_QUIET: Duration = Duration::from_secs(1);
/// Of a processor's time such a look, and one after files were opened, takes this part at most.
const PART: u32 = 20;

/// The directory with a thread that takes in what happens there at once: the shorter the time between the closing of a
/// file and the look at it, the fewer whole files are set aside with the torn ones.
#[derive(Debug, Clone)]
pub struct Watch {
    job_dir: PathBuf,
    directory: Arc<Mutex<CheckpointDir>>,
    writers: Arc<Mutex<Writers>>,
    helpers: Arc<Mutex<Helpers>>,
    /// Something was learnt about the writers, or the job is over.
    news: Arc<EventFd>,
    over: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Creates or takes over the directory and starts the thread. `notices` is an inotify instance that outlives the
    /// agents: what happens while there is none waits there for the next. `recovers`: there are worlds after the first.
    ///
    /// # Errors
    /// When the directory cannot be made or watched, or the thread not be started.
    pub fn start(job_dir: &Path, notices: OwnedFd, recovers: bool) -> io::Result<Watch> {
        // The kernel's way to ask for a lease back.
        ft_sys::process::ignore_signal(nix::libc::SIGIO);
        let events = notices.try_clone()?;
        let news = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let watch = Watch {
            directory: Arc::new(Mutex::new(CheckpointDir::open(job_dir, notices, recovers)?)),
            writers: Arc::default(),
            helpers: Arc::new(Mutex::new(Helpers::of(job_dir))),
            job_dir: job_dir.to_path_buf(),
            news: Arc::new(news),
            over: Arc::default(),
        };
        let theirs = watch.clone();
        std::thread::Builder::new().name("checkpoint-files".into()).spawn(move || theirs.attend(&events))?;
        Ok(watch)
    }

    /// Takes in what happens until the job is over.
    fn attend(&self, events: &OwnedFd) {
        ft_sys::priority::put_back();
        let mut timeout = PollTimeout::NONE;
        let opened = lock(&self.directory).opened();
        // Until then it does not matter that files are opened.
        let mut deaf = Instant::now();
        // Who opens a file has its descriptor a moment after the notice, and may be interrupted in between: so it is looked
        // again until then.
        let mut excited = deaf;
        loop {
            let helpers = lock(&self.helpers).descriptors();
            let listened = opened.as_ref().filter(|_| deaf <= Instant::now());
            let descriptors = [Some(events.as_fd()), Some(self.news.as_fd()), listened.map(AsFd::as_fd)];
            let descriptors = descriptors.into_iter().flatten().chain(helpers.iter().map(|helper| helper.as_fd()));
            let mut waited: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            match poll(&mut waited, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return tracing::error!(%errno, "nobody watches the restart files any more"),
            }
            let _ = self.news.read();
            if self.over.load(Ordering::Acquire) {
                return lock(&self.directory).let_go();
            }
            let begun = processor_time();
            let heard = opened.as_ref().is_some_and(queue::hear);
            let mut directory = lock(&self.directory);
            if directory.is_empty() && helpers.is_empty() {
                lock(&self.helpers).rest();
                (timeout, deaf) = (PollTimeout::NONE, Instant::now());
                continue;
            }
            let more = directory.absorb(|| self.survey());
            if heard {
                excited = Instant::now() + WHILE_QUIET;
            }
            let often = directory.is_open() || lock(&self.helpers).is_undecided() || Instant::now() < excited;
            drop(directory);
            let took = processor_time().saturating_sub(begun);
            let mut pause = if often { WHILE_OPEN } else { WHILE_QUIET }.max(took * PART);
            if heard {
                pause = pause.min(took * PART);
                deaf = Instant::now() + pause;
            }
            timeout = if more { PollTimeout::ZERO } else { PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX) };
            // However many files there are, and however often they are opened and closed, this costs half of a processor at
            // most: the steps are short, and after each the thread rests for as long as it has worked.
            std::thread::sleep(took);
        }
    }

    /// Looks at the processes: first at those that the ranks have started, then at the ranks.
    fn survey(&self) -> Survey {
        let (roots, ranks) = {
            let writers = lock(&self.writers);
            (writers.roots(), writers.pids())
        };
        let mut survey = lock(&self.helpers).survey(&roots, &ranks);
        survey.all_alive &= lock(&self.writers).all_alive();
        survey
    }

    fn tell(&self, news: impl FnOnce(&mut Writers)) {
        news(&mut lock(&self.writers));
        let _ = self.news.write(1);
    }

    /// A process of the world that was launched runs.
    pub fn started(&self, pid: i32) {
        self.tell(|writers| writers.started(pid));
    }

    /// Below a started process another one joined as the rank.
    pub fn joined(&self, pid: i32) {
        self.tell(|writers| writers.joined(pid));
    }

    /// A process ended with status 0: what it closed is whole.
    pub fn ended_well(&self, pid: i32) {
        self.tell(|writers| writers.ended_well(pid));
    }

    /// The world is over: what is closed from now on may be torn.
    pub fn world_ends(&self) {
        self.tell(Writers::world_ends);
    }

    /// The job is over: nobody needs its files any more. The kernel takes some milliseconds to forget a watch, and whoever closes
    /// its instance waits for that; here it is at leisure.
    pub fn job_ends(&self) {
        self.over.store(true, Ordering::Release);
        let _ = self.news.write(1);
    }

    /// Before the next world, which has so many processes, starts: sets aside what is not whole. Returns what is to be said.
    ///
    /// # Errors
    /// When a file that may be torn stays, with a sentence that says which and why: the world must not start.
    pub fn next_world(&self, processes: usize) -> Result<Vec<String>, String> {
        let helpers = Helpers::of(&self.job_dir);
        let mut notices = lock(&self.directory).set_aside();
        let complaint = std::mem::replace(&mut *lock(&self.helpers), helpers).complaint();
        if let Ok(said) = &mut notices
            && !said.is_empty()
        {
            said.extend(complaint);
        }
        *lock(&self.writers) = Writers::of_world(processes);
        notices
    }
}
