//! A task that keeps a lease.

use crate::store::{Lease, Store};
use crate::{LeaseId, StoreError};
use std::time::Duration;
use tokio::time::Instant;

/// After a call that failed: another third of its time would be the last.
const SOON: Duration = Duration::from_millis(100);

/// What is known of a lease that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It was held at this time; its whole time runs from then.
    At(Instant),
    /// The store says that it lapsed, or was revoked.
    Gone,
}

/// Keeps a lease alive until it is dropped; the lease lapses then, unless somebody adopts it.
#[derive(Debug)]
pub struct Keeper {
    lease: Lease,
    held: tokio::sync::watch::Receiver<Held>,
    task: tokio::task::JoinHandle<()>,
}

impl Keeper {
    /// Keeps a lease that was just granted or adopted. It asks three times as often as must be.
    pub fn of<S: Store>(store: S, lease: Lease) -> Keeper {
        let (say, held) = tokio::sync::watch::channel(Held::At(Instant::now()));
        let task = tokio::spawn(async move {
            let third = lease.ttl / 3;
            let mut pause = third;
            loop {
                tokio::time::sleep(pause).await;
                pause = third;
                let asked = Instant::now();
                match store.keep_alive(lease.id, third.max(Duration::from_millis(100))).await {
                    Ok(()) => drop(say.send_replace(Held::At(asked))),
                    Err(StoreError::NoLease(_)) => {
                        say.send_replace(Held::Gone);
                        return;
                    }
                    // Whether it is held only the store can say: when it is back it is asked again.
                    Err(error) => {
                        tracing::warn!(%error, lease = %lease.id, "the lease was not kept alive");
                        pause = SOON.min(third);
                    }
                }
            }
        });
        Keeper { lease, held, task }
    }

    /// The lease's name, to be stored for who comes after.
    pub fn id(&self) -> LeaseId {
        self.lease.id
    }

    /// What is known of it now.
    pub fn held(&self) -> Held {
        *self.held.borrow()
    }

    /// Waits until the store says that it is not held any more.
    pub async fn gone(&mut self) {
        // The task ends with that word and with nothing else.
        let _ = self.held.wait_for(|held| *held == Held::Gone).await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
