//! What every room needs to know: what the job is, and whom to tell of what happens in it.

use crate::link::Link;
use ft_wire::launcher::{JobSpec, ToLauncher};
use ftd_core::{Event, Micros};
use std::collections::{BTreeSet, VecDeque};

/// The job, as the launcher described it.
#[derive(Debug)]
pub struct Job {
    /// The description.
    pub spec: JobSpec,
    /// It is over: its processes are being killed.
    pub over: bool,
    /// The ranks were told to end by a signal of the user's.
    pub told: bool,
    launcher: Link,
    events: VecDeque<Event>,
    /// What is said once.
    said: BTreeSet<String>,
    processors: usize,
}

/// Time that ftd-core reckons in; it goes on while the machine is suspended.
pub fn now() -> Micros {
    Micros(ft_sys::process::micros_since_boot())
}

impl Job {
    /// `launcher`: who described it.
    pub fn new(spec: JobSpec, launcher: Link) -> Job {
        let processors = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        Job { spec, over: false, told: false, launcher, events: VecDeque::new(), said: BTreeSet::new(), processors }
    }

    /// ftd-core hears of this when what happens now has been noted everywhere.
    pub fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The next event that ftd-core has not heard of.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Tells the launcher.
    pub fn tell(&self, message: &ToLauncher) {
        self.launcher.send(message);
    }

    /// Tells people.
    pub fn notice(&self, text: String) {
        self.tell(&ToLauncher::Notice(text));
    }

    /// The same, unless it was said before.
    pub fn notice_once(&mut self, text: String) {
        if self.said.insert(text.clone()) {
            self.notice(text);
        }
    }

    /// Whether there are more ranks here than processors.
    pub fn oversubscribed(&self) -> bool {
        self.spec.world_size as usize > self.processors
    }

    /// A setting for the ranks, unless the user made it.
    pub fn unless_set(&self, key: &str, value: impl Into<Vec<u8>>) -> Option<(String, Option<Vec<u8>>)> {
        let set = self.spec.env.iter().any(|(name, _)| name == key.as_bytes());
        (!set).then(|| (key.to_string(), Some(value.into())))
    }

    /// MPI_Comm_spawn was refused; the MPI says so to the program.
    pub fn say_spawn_refused(&self, command: &str) {
        self.notice(format!(
            "MPI_Comm_spawn of {command} was refused: ftd starts the ranks of ftrun -n and no others, with --ft=none as \
             with --ft=reinit"
        ));
    }
}
