//! Work for one checkpoint that panics is an error of that one alone.

use ft_arena::ArenaError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What goes wrong with one copy says nothing of the others, and who waits for the result has one. `what`: what is done.
///
/// # Errors
/// One sentence: the work's own error, or that it panicked.
pub fn or_panicked<T>(what: &str, work: impl FnOnce() -> Result<T, ArenaError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("{what} panicked, an internal error")),
    }
}
