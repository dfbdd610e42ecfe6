//! A watch through `ftd`, which goes on when the connection is there again.

use super::ftd::{Connection, Ftd, Told};
use super::wire::End;
use crate::store::{Change, Scope, Watch, WatchEnd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

/// After a connection that broke …
const PAUSE: Duration = Duration::from_millis(100);
/// … and after one that could not be made.
const AGAIN: Duration = Duration::from_secs(1);

/// A watch of what `ftd` is asked to watch.
pub struct FtdWatch {
    ftd: Ftd,
    scope: Scope,
    next: u64,
    open: Option<Open>,
}

struct Open {
    connection: Arc<Connection>,
    number: u64,
    told: UnboundedReceiver<Told>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.unwatch(self.number);
    }
}

impl FtdWatch {
    pub(super) fn new(ftd: Ftd, scope: Scope, next: u64) -> FtdWatch {
        FtdWatch { ftd, scope, next, open: None }
    }

    async fn open(&mut self) {
        let connection = self.ftd.connected().await;
        let opened = connection.ok().and_then(|connection| {
            let (number, told) = connection.watch(self.scope.clone(), self.next)?;
            Some(Open { connection, number, told })
        });
        self.open = opened;
    }

    fn ended(&self, end: End) -> WatchEnd {
        match end {
            End::Compacted(from, oldest) => WatchEnd::Compacted { from, oldest },
            End::Failed(failure) => {
                let what = format!("watch {}", self.scope);
                WatchEnd::Failed(failure.into_error(what, self.scope.name(), Duration::ZERO))
            }
        }
    }
}

impl Watch for FtdWatch {
    async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            let Some(open) = self.open.as_mut() else {
                self.open().await;
                if self.open.is_none() {
                    sleep(AGAIN).await;
                }
                continue;
            };
            match open.told.recv().await {
                Some(Told::Changed(changes)) => {
                    let newest = changes.iter().map(|change| change.revision).max().unwrap_or_default();
                    self.next = self.next.max(newest + 1);
                    return Ok(changes);
                }
                Some(Told::Ended(end)) => {
                    self.open = None;
                    return Err(self.ended(end));
                }
                None => {
                    self.open = None;
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
