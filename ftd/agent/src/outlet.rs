//! How a room hears of what happens behind it: on threads, in tasks, in other processes.

use std::fmt;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

type Way<T> = dyn Fn(T, Option<OwnedSemaphorePermit>) -> bool + Send + Sync;

/// The way of a room's news, in the room's own words, into the driver's queue.
pub struct Outlet<T>(Arc<Way<T>>);

impl<T> Outlet<T> {
    /// `way` returns whether anybody takes it in.
    pub fn new(way: impl Fn(T, Option<OwnedSemaphorePermit>) -> bool + Send + Sync + 'static) -> Self {
        Outlet(Arc::new(way))
    }

    /// Returns whether anybody takes it in.
    pub fn send(&self, news: T) -> bool {
        (self.0)(news, None)
    }

    /// The same way for what is only a part of the room's news.
    pub fn of<U>(&self, whole: impl Fn(U) -> T + Send + Sync + 'static) -> Outlet<U>
    where
        T: 'static,
    {
        let way = self.0.clone();
        Outlet::new(move |part, room| way(whole(part), room))
    }

    /// The same for what a peer said, with the room that it takes in the queue until it has been dealt with.
    pub fn send_metered(&self, news: T, room: OwnedSemaphorePermit) -> bool {
        (self.0)(news, Some(room))
    }
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Outlet(self.0.clone())
    }
}

impl<T> fmt::Debug for Outlet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outlet")
    }
}
