//! Who has dialled and not yet shown who it is: so many at a time, and so many from one address, so that nobody keeps the others out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of all.
const MOST: usize = 1024;
/// Of one address: a node that starts many jobs at once is done with each in milliseconds.
const MOST_FROM_ONE: usize = 64;

/// All of them.
#[derive(Debug)]
pub struct Strangers {
    room: Arc<Semaphore>,
    from: Mutex<HashMap<IpAddr, usize>>,
}

/// One of them, as long as it is one.
#[derive(Debug)]
pub struct Stranger {
    all: Arc<Strangers>,
    from: IpAddr,
    _room: Option<OwnedSemaphorePermit>,
}

impl Strangers {
    /// Nobody yet.
    pub fn new() -> Arc<Strangers> {
        Arc::new(Strangers { room: Arc::new(Semaphore::new(MOST)), from: Mutex::default() })
    }

    /// Room for one more, when there is.
    pub async fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().acquire_owned().await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; `None` when there are too many from there.
    pub fn enter(self: &Arc<Strangers>, from: IpAddr, room: Option<OwnedSemaphorePermit>) -> Option<Stranger> {
        let mut addresses = self.lock();
        let own = addresses.entry(from).or_default();
        if *own >= MOST_FROM_ONE {
            return None;
        }
        *own += 1;
        Some(Stranger { all: self.clone(), from, _room: room })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut addresses = self.all.lock();
        if let Some(own) = addresses.get_mut(&self.from) {
            *own -= 1;
            if *own == 0 {
                addresses.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_keeps_no_other_out() {
        let all = Strangers::new();
        let from = |last| IpAddr::from([198, 18, 0, last]);
        let mine: Vec<_> = std::iter::from_fn(|| all.enter(from(1), None)).collect();
        assert_eq!(mine.len(), MOST_FROM_ONE);
        assert!(all.enter(from(2), None).is_some());
        drop(mine);
        assert!(all.enter(from(1), None).is_some() && all.lock().is_empty());
    }
}
