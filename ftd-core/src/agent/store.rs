//! The agent's view of the store: what was asked and not answered yet.

use crate::ids::{EpochId, Micros, NodeId, Revision};
use crate::record::EpochRecord;
use std::sync::Arc;

/// What the store was asked last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Asked {
    #[default]
    Nothing,
    Read(Micros),
    Write(Micros, Arc<EpochRecord>),
}

/// A node knows a newer epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rumour {
    from: NodeId,
    epoch: EpochId,
    /// When this node heard of it first.
    at: Micros,
}

/// This agent's view of the store.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    /// The newest revision that is known.
    pub revision: Revision,
    asked: Asked,
    wanted: bool,
    /// An epoch whose record has not come yet.
    rumour: Option<Rumour>,
    /// A linearizable read was answered: what the key was when this agent began is known.
    pub began: bool,
    /// What the first linearizable read that was answered has shown.
    first_read: Option<Revision>,
    /// When the first record was known.
    known_at: Option<Micros>,
    /// When the newest linearizable read that was answered had been asked for.
    pub read_at: Micros,
    /// It does not do what it is asked for, since then. One that answers reads and takes no write is as little use as none.
    pub down: Option<Micros>,
    /// That is so because a write was not answered, and none has been since.
    unwritten: bool,
    /// This node has told nobody that it is away.
    pub quiet: bool,
    /// When it was reached again after that.
    pub back: Micros,
    retry_at: Micros,
}

impl Store {
    /// Whether the key may have been like this before this agent began: the first read that was answered had not seen less.
    pub fn is_first_read(&self, revision: Revision) -> bool {
        self.first_read.is_none_or(|first| revision <= first)
    }

    /// The record is to be read.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// A node knows this epoch, which is newer than this node's.
    pub fn hears_of(&mut self, epoch: EpochId, from: NodeId, now: Micros) {
        self.rumour.get_or_insert(Rumour { from, epoch, at: now });
    }

    /// The record of this epoch has come.
    pub fn has(&mut self, epoch: EpochId) {
        self.rumour.take_if(|rumour| rumour.epoch <= epoch);
    }

    /// Who is to be asked for the record of an epoch, which has not come within this time after it was heard of.
    pub fn asks(&mut self, patience: Micros, now: Micros) -> Option<NodeId> {
        self.rumour.take_if(|rumour| now.since(rumour.at) >= patience).map(|rumour| rumour.from)
    }

    /// When that is to be.
    pub fn asks_at(&self, patience: Micros) -> Option<Micros> {
        self.rumour.map(|rumour| rumour.at.after(patience))
    }

    /// Whether it is to be read now.
    pub fn reads(&mut self, now: Micros) -> bool {
        let reads = self.wanted && self.asked == Asked::Nothing && now >= self.retry_at;
        if reads {
            self.wanted = false;
            self.asked = Asked::Read(now);
        }
        reads
    }

    /// There is a record of this revision.
    pub fn knows(&mut self, revision: Revision, now: Micros) {
        self.revision = revision;
        self.known_at.get_or_insert(now);
    }

    /// Who asked at `asked` was told that the key is not there. Whether it has been removed; then it is written anew.
    pub fn is_removed(&mut self, asked: Micros) -> bool {
        let removed = self.known_at.is_none_or(|known| known <= asked);
        if removed {
            self.revision = Revision(0);
        }
        removed
    }

    /// Whether something can be written now.
    pub fn is_idle(&self, now: Micros) -> bool {
        self.asked == Asked::Nothing && !self.wanted && now >= self.retry_at
    }

    /// This is being written.
    pub fn writes(&mut self, record: Arc<EpochRecord>, now: Micros) {
        self.asked = Asked::Write(now, record);
    }

    /// An answer came; whether the store had been unreachable.
    pub fn answered(&mut self, now: Micros) -> bool {
        let news = !self.unwritten && self.down.take().is_some();
        if news {
            self.back = now;
        }
        news && !std::mem::take(&mut self.quiet)
    }

    /// A write was not answered, and none has been since.
    pub fn is_unwritten(&self) -> bool {
        self.unwritten
    }

    /// There is nothing to write any more: that a write was not answered does not matter. Whether the store is there again for who
    /// asks so little.
    pub fn is_content(&mut self, now: Micros) -> bool {
        self.unwritten && self.is_idle(now) && {
            self.unwritten = false;
            self.answered(now)
        }
    }

    /// The read was answered: when it had been asked for.
    pub fn read(&mut self, revision: Revision) -> Option<Micros> {
        self.began = true;
        self.first_read.get_or_insert(revision);
        match std::mem::take(&mut self.asked) {
            Asked::Read(at) => {
                self.read_at = at;
                Some(at)
            }
            other => {
                self.asked = other;
                None
            }
        }
    }

    /// The write was answered, one way or the other: what was to be written, and since when.
    pub fn written(&mut self) -> Option<(Micros, Arc<EpochRecord>)> {
        match std::mem::take(&mut self.asked) {
            Asked::Write(at, record) => {
                self.unwritten = false;
                Some((at, record))
            }
            other => {
                self.asked = other;
                None
            }
        }
    }

    /// No answer came. A write may have happened, or happen yet; it is asked again in a while. Whether this is news.
    pub fn unavailable(&mut self, now: Micros, retry: Micros) -> bool {
        self.unwritten |= matches!(std::mem::take(&mut self.asked), Asked::Write(..));
        self.wanted = true;
        self.retry_at = now.after(retry);
        let news = self.down.is_none();
        self.down.get_or_insert(now);
        news
    }

    /// When something wanted may be asked for.
    pub fn deadline(&self) -> Option<Micros> {
        self.wanted.then_some(self.retry_at)
    }
}
