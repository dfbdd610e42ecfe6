//! What a process has said that nobody has read yet.
//!
//! A process speaks through sockets of its own: its preload's, its PMI. That it has ended its shepherd says, through another. How it
//! ended is judged by what it has said before (it has called `MPI_Init`, it is through with `MPI_Finalize`), and sockets are not
//! read in the order in which they were written to. So the shepherd's word waits until what the process had written by then is in
//! the driver's queue.

use ft_wire::{Rank, World};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::net::UnixStream;
use tokio::sync::watch;

/// How much of a connection has been read, and handed on.
#[derive(Debug)]
pub struct Ear {
    socket: Arc<UnixStream>,
    /// So many bytes.
    read: AtomicU64,
    /// The same, of those that the driver has been given.
    told: watch::Sender<u64>,
}

impl Ear {
    /// Nothing has been read yet.
    pub fn new(socket: Arc<UnixStream>) -> Ear {
        Ear { socket, read: AtomicU64::new(0), told: watch::Sender::new(0) }
    }

    /// So many more bytes were read.
    pub fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Of what was read nothing is left but the beginning of a message.
    pub fn told(&self) {
        self.told.send_replace(self.read.load(Ordering::Relaxed));
    }

    /// Nothing more will be read.
    pub fn over(&self) {
        self.told.send_replace(u64::MAX);
    }

    /// Waits until all that has been written by now is told.
    async fn hear_out(&self) {
        let waiting = rustix::io::ioctl_fionread(&*self.socket).unwrap_or(0);
        let all = self.read.load(Ordering::Relaxed) + waiting;
        let _ = self.told.subscribe().wait_for(|told| *told >= all).await;
    }
}

type OfRank = BTreeMap<(World, Rank), Vec<Weak<Ear>>>;

/// The ears of all processes.
#[derive(Debug, Clone, Default)]
pub struct Ears(Arc<Mutex<OfRank>>);

impl Ears {
    /// This one hears a process of this rank.
    pub fn add(&self, world: World, rank: Rank, ear: &Arc<Ear>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Of older worlds some exits may still be told.
        all.retain(|(other, _), _| other + 1 >= world);
        let of_rank = all.entry((world, rank)).or_default();
        of_rank.retain(|ear| ear.strong_count() > 0);
        of_rank.push(Arc::downgrade(ear));
    }

    /// A process of this rank has ended: waits until all that it has said is told.
    pub async fn hear_out(&self, world: World, rank: Rank) {
        let ears = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(world, rank)).cloned();
        for ear in ears.iter().flatten().filter_map(Weak::upgrade) {
            ear.hear_out().await;
        }
    }
}
