//! The checkpoints of this node's ranks: what lies in their arenas, who keeps duplicates of those, and what
//! people must hear of versions that will never count.

use crate::arenas::{self, Arenas, Commit, Verified};
use crate::commits::Hashed;
use crate::full_places::FullPlaces;
use crate::job::Job;
use crate::link::ConnectionId;
use crate::outlet::Outlet;
use crate::shepherds::Shepherds;
use crate::versions::Versions;
use crate::worlds::Worlds;
use ft_arena::ArenaError;
use ft_wire::shepherd::ToShepherd;
use ft_wire::{Epoch, Rank, Version};
use ftd_core::{EpochId, Event, Inventory, Level, Stamp};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A rank whose places are all full for so long is waiting for somebody: long against any checksum and any step, short
/// against the minute after which `ft_checkpoint` gives up.
const FULL_FOR: Duration = Duration::from_secs(10);

/// What is heard from behind.
#[derive(Debug)]
pub enum News {
    /// Of the arenas.
    Arenas(arenas::News),
    /// It is time to look whether ranks whose places were full still wait.
    PlacesFull,
}

/// All that this node has of them.
#[derive(Debug)]
pub struct Checkpoints {
    arenas: Arenas,
    /// What the ranks of an epoch take back, once that is known.
    restore: Option<(Epoch, Option<Commit>)>,
    versions: Versions,
    full_places: FullPlaces,
    /// No other node holds any.
    alone: bool,
    news: Outlet<News>,
}

impl Checkpoints {
    /// None yet, in a job of so many nodes.
    pub fn new(job: &Job, nodes: usize, news: Outlet<News>) -> Checkpoints {
        Checkpoints {
            arenas: Arenas::new(job.spec.world_size, news.of(News::Arenas)),
            restore: None,
            versions: Versions::default(),
            full_places: FullPlaces::default(),
            alone: nodes < 2,
            news,
        }
    }

    /// What the checkpoint cost that a rank has taken since this was asked last, if it took one.
    pub fn fresh_cost(&mut self, rank: Rank) -> Option<Duration> {
        self.arenas.fresh_cost(rank)
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.arenas.ranks().is_empty()
    }

    /// Whether the arenas of so many ranks are here.
    pub fn has_all(&self, world_size: u32) -> bool {
        self.arenas.ranks().len() == world_size as usize
    }

    /// A descriptor of a rank's arena, which is made if it does not exist.
    ///
    /// # Errors
    /// When there is no memory, descriptor or thread left.
    pub fn descriptor(&mut self, rank: Rank) -> Result<OwnedFd, ArenaError> {
        self.arenas.descriptor(rank)
    }

    /// Grants a rank places of this size.
    ///
    /// # Errors
    /// One sentence with the numbers.
    pub fn reserve(&mut self, rank: Rank, place_bytes: u64) -> Result<(), String> {
        self.arenas.reserve(rank, place_bytes)
    }

    /// Takes over what a shepherd kept for an agent before this one.
    pub fn adopt(&mut self, rank: Rank, fd: OwnedFd, connection: ConnectionId) {
        self.arenas.adopt(rank, fd, connection);
    }

    /// A shepherd is gone, and what it kept.
    pub fn forget_keeper(&mut self, connection: ConnectionId) {
        self.arenas.forget_keeper(connection);
    }

    /// Sees to it that enough shepherds keep duplicates of the arenas; each rank's go to the slots from its own number on.
    /// To be called whenever there is a new arena or shepherd, or a shepherd less: how many kills in a row the checkpoints
    /// survive depends on how soon the dead keepers are replaced.
    pub fn spread(&mut self, shepherds: &Shepherds) {
        for rank in self.arenas.lacking_keepers() {
            for (connection, link) in shepherds.from(rank) {
                if !self.arenas.lacks_keepers(rank) {
                    break;
                }
                if let Some(fd) = self.arenas.duplicate_for(rank, connection) {
                    link.send_with(&ToShepherd::KeepArena { rank }, vec![fd]);
                }
            }
        }
    }

    /// The newest version that a rank has committed in an epoch.
    pub fn last(&self, rank: Rank, epoch: Epoch) -> Option<Version> {
        self.arenas.versions(rank, epoch).last().copied()
    }

    /// A rank takes no more of them.
    pub fn rank_leaves(&mut self, job: &Job, epoch: Epoch, rank: Rank, last: Option<Version>, how: &'static str) {
        if let Some(sentence) = self.versions.leave(epoch, rank, last, how) {
            job.notice(sentence);
        }
    }

    /// Something was heard from behind.
    pub fn take(&mut self, job: &mut Job, worlds: &Worlds, news: News) {
        match news {
            News::Arenas(arenas::News::Hashed(hashed)) => self.hashed(job, worlds, &hashed),
            News::Arenas(arenas::News::Verified(epoch, verified)) => self.verified(job, epoch, verified),
            News::PlacesFull => self.places_full(job),
        }
    }

    fn hashed(&mut self, job: &mut Job, worlds: &Worlds, hashed: &Hashed) {
        let Some((version, epoch)) = self.arenas.hashed(hashed) else { return };
        let of_epoch = worlds.of_epoch(epoch).and_then(|world| world.members.get(&hashed.rank));
        if let Some(process) = of_epoch.map(|member| member.process) {
            job.report(Event::Committed { process, version: ftd_core::Version(version), level: Level::Own });
            self.compare_versions(job, epoch, hashed.rank);
        }
    }

    /// Says when ranks checkpoint different versions, and has a rank looked at again whose places are all full.
    fn compare_versions(&mut self, job: &Job, epoch: Epoch, rank: Rank) {
        let held = self.arenas.versions(rank, epoch);
        if let Some(sentence) = self.versions.note(epoch, rank, held) {
            job.notice(sentence);
        }
        if let Some(newest) = self.versions.newest(rank)
            && self.arenas.is_full(rank)
            && self.full_places.note((epoch, rank, newest), Instant::now())
        {
            self.look_at_full_places_in(ft_sys::timescale::scaled(FULL_FOR));
        }
    }

    /// Who is missing, for a rank that has given up waiting. What lies in the places counts, with or without its checksum.
    pub fn waits_for(&self, job: &Job, epoch: Epoch, rank: Rank) -> String {
        let held = |rank| self.arenas.versions(rank, epoch);
        self.versions.missing(epoch, &held(rank), job.spec.world_size, held).unwrap_or_else(|| {
            "no rank is missing, but the agent has not yet read what they all wrote, for its checksums".into()
        })
    }

    fn look_at_full_places_in(&self, wait: Duration) {
        let news = self.news.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            news.send(News::PlacesFull);
        });
    }

    fn places_full(&mut self, job: &Job) {
        let (due, next) = self.full_places.due(ft_sys::timescale::scaled(FULL_FOR), Instant::now());
        if let Some(next) = next {
            self.look_at_full_places_in(next);
        }
        for (epoch, rank, newest) in due.into_iter().filter(|(_, rank, _)| self.arenas.is_full(*rank)) {
            let patience = format!("{} s", FULL_FOR.as_secs());
            let said = self.versions.still_waiting(epoch, rank, newest, job.spec.world_size, &patience);
            if let Some(sentence) = said {
                job.notice(sentence);
            }
        }
    }

    /// An epoch begins, and the ranks of the one before it are gone: nothing is committed any more, and what there is is read.
    pub fn freeze(&mut self, epoch: Epoch) {
        self.arenas.freeze(epoch, self.alone);
    }

    fn verified(&mut self, job: &mut Job, epoch: Epoch, verified: Verified) {
        for sentence in &verified.damaged {
            job.notice(format!("a checkpoint is damaged and not used: {sentence}"));
        }
        self.arenas.note(&verified);
        let copies = verified.copies.into_iter();
        let copies = copies.map(|(rank, (version, epoch), _)| (ftd_core::Rank(rank), stamp(version, epoch)));
        let inventory = Inventory::own(copies);
        job.report(Event::InventoryTaken { epoch: EpochId(epoch), inventory });
    }

    /// This is what the ranks of an epoch take back.
    pub fn restore(&mut self, epoch: Epoch, commit: Option<Commit>) {
        self.restore = Some((epoch, commit));
        self.arenas.begin_epoch(commit);
    }

    /// What a rank takes back in an epoch, and where it lies; nothing at all while that is not known.
    pub fn found(&self, epoch: Epoch, rank: Rank) -> Option<Option<(Version, u32)>> {
        match self.restore {
            Some((known, commit)) if known == epoch => {
                Some(commit.and_then(|commit| self.arenas.place(rank, commit).map(|place| (commit.0, place))))
            }
            _ if epoch == 1 => Some(None),
            _ => None,
        }
    }

    /// This version is complete: what is older is needed no more.
    pub fn complete(&mut self, version: Version) {
        self.versions.completed(version);
        self.arenas.retire(version);
    }
}

fn stamp(version: Version, epoch: Epoch) -> Stamp {
    Stamp { version: ftd_core::Version(version), epoch: EpochId(epoch) }
}
