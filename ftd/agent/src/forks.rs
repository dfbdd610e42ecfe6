//! Tests that start processes beside tests that watch files.
//!
//! Between `fork` and `exec` a child has open what its parent has open for writing, also what another test is about to close.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static FORKS: RwLock<()> = RwLock::new(());

/// Meanwhile no test starts a process.
pub fn none() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// To be held while a process is started.
pub fn one() -> RwLockWriteGuard<'static, ()> {
    FORKS.write().unwrap_or_else(PoisonError::into_inner)
}
