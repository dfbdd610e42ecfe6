//! Work that takes long for its many bytes is done on a thread of the pool: the agent's own keeps the lease, sends heartbeats and answers
//! them, and a megabyte of words is milliseconds of it.

use crate::outlet::Outlet;

/// So many bytes are many.
pub const MANY: usize = 64 << 10;

/// What comes of this work, if it is about few bytes; else `news` hears of it.
pub fn work<T: Send + 'static>(bytes: usize, news: &Outlet<T>, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if bytes < MANY {
        return Some(work());
    }
    let news = news.clone();
    tokio::task::spawn_blocking(move || news.send(work()));
    None
}
