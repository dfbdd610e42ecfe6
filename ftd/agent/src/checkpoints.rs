//! The checkpoints of this node's ranks: what lies in their arenas, who keeps duplicates of those, and what
//! people must hear of versions that will never count.

use crate::arenas::{self, Arenas, Commit, Verified};
use crate::commits::Hashed;
use crate::full_places::FullPlaces;
use crate::job::Job;
use crate::link::ConnectionId;
use crate::outlet::Outlet;
use crate::partners::{self, Partners};
use crate::shepherds::Shepherds;
use crate::versions::Versions;
use crate::worlds::Worlds;
use ft_arena::{ArenaError, Doom};
use ft_store::through::Copied;
use ft_sys::job_time;
use ft_wire::copies::CopyWord;
use ft_wire::shepherd::ToShepherd;
use ft_wire::{Epoch, Rank, Version};
use ftd_core::ranks::RankSet;
use ftd_core::{EpochId, EpochRecord, Event, Holding, Inventory, Level, NodeId, Stamp};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A rank whose places are all full for so long is waiting for somebody: long against any checksum and any step, short
/// against the minute after which `ft_checkpoint` gives up.
const FULL_FOR: Duration = Duration::from_secs(10);

/// What is heard from behind.
#[derive(Debug)]
pub enum News {
    /// Of the arenas.
    Arenas(arenas::News),
    /// Of copies in other nodes' memory.
    Partners(partners::News),
    /// It is time to look whether ranks whose places were full still wait.
    PlacesFull,
}

/// All that this node has of them.
#[derive(Debug)]
pub struct Checkpoints {
    arenas: Arenas,
    /// Copies on other nodes, where there are others.
    partners: Option<Partners>,
    /// What is told of when nobody can write to an arena any more.
    inventory: Option<Event>,
    /// The newest epoch of which was told what was verified by then.
    listed: Option<Epoch>,
    /// What the ranks of an epoch take back, once that is known.
    restore: Option<(Epoch, Option<Commit>)>,
    /// Ranks of that epoch whose copies are not here: they wait.
    away: RankSet,
    versions: Versions,
    full_places: FullPlaces,
    /// The newest version that is complete, and since when that is known.
    newest: Option<(Version, Option<Instant>)>,
    /// No other node holds any.
    alone: bool,
    news: Outlet<News>,
}

impl Checkpoints {
    /// None yet, in a job of so many nodes. `newest`: the version of which the agent before this one knew that it was complete.
    pub fn new(job: &Job, nodes: usize, newest: Option<(Version, Option<Instant>)>, news: Outlet<News>) -> Checkpoints {
        Checkpoints {
            arenas: Arenas::new(job.spec.world_size, news.of(News::Arenas)),
            partners: Partners::new(job, news.of(News::Partners)),
            inventory: None,
            listed: None,
            restore: None,
            away: RankSet::new(),
            versions: Versions::default(),
            full_places: FullPlaces::default(),
            newest,
            alone: nodes < 2,
            news,
        }
    }

    /// What the checkpoint cost that a rank has taken since this was asked last, if it took one.
    pub fn fresh_cost(&mut self, rank: Rank) -> Option<Duration> {
        self.arenas.fresh_cost(rank)
    }

    /// The newest version that is complete, and since when that is known.
    pub fn newest(&self) -> Option<(Version, Option<Instant>)> {
        self.newest
    }

    /// What a rank has checkpointed here.
    pub fn of_rank(&self, rank: Rank, epoch: Epoch) -> Option<ft_wire::ask::Checkpoints> {
        let (tally, copy, memory) = self.arenas.tally(rank)?;
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Some(ft_wire::ask::Checkpoints {
            number: tally.commits,
            bytes: tally.bytes,
            spent_us: us(tally.spent),
            copy_us: us(copy),
            newest: self.last(rank, epoch),
            memory,
        })
    }

    /// Memory that holds copies of others than these ranks.
    pub fn memory_of_others(&self, own: &BTreeSet<Rank>) -> u64 {
        let others = self.arenas.ranks().into_iter().filter(|rank| !own.contains(rank));
        others.filter_map(|rank| self.arenas.tally(rank)).map(|(.., memory)| memory).sum()
    }

    /// A rank is to die when its library comes to this place next.
    pub fn doom(&self, rank: Rank, place: Doom) {
        self.arenas.doom(rank, place);
    }

    /// Where a rank's library is to have it die.
    pub fn doomed(&self, rank: Rank) -> Option<Doom> {
        self.arenas.doomed(rank)
    }

    /// The ranks whose arenas are here.
    pub fn ranks(&self) -> Vec<Rank> {
        self.arenas.ranks()
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.arenas.ranks().is_empty()
    }

    /// Whether the arenas of these ranks are here.
    pub fn has_all(&self, ranks: &[Rank]) -> bool {
        let here = self.arenas.ranks();
        ranks.iter().all(|rank| here.contains(rank))
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
            News::Partners(news) => {
                if let Some(partners) = &mut self.partners {
                    partners.take(job, &mut self.arenas, news);
                }
                self.tell_inventory(job);
            }
            News::PlacesFull => self.places_full(job, worlds),
        }
    }

    fn hashed(&mut self, job: &mut Job, worlds: &Worlds, hashed: &Hashed) {
        let Some((version, epoch)) = self.arenas.hashed(hashed) else { return };
        let of_epoch = worlds.of_epoch(epoch).and_then(|world| world.members.get(&hashed.rank));
        if let Some(process) = of_epoch.map(|member| member.process) {
            job.report(Event::Committed { process, version: ftd_core::Version(version), level: Level::Own });
            if let Some(partners) = &mut self.partners {
                partners.send(job, &self.arenas, hashed.rank, (version, epoch));
            }
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
            && self.full_places.note((epoch, rank, newest), job_time::now())
        {
            self.look_at_full_places_in(ft_sys::timescale::scaled(FULL_FOR));
        }
    }

    /// Who is missing, for a rank that has given up waiting. What lies in the places counts, with or without its checksum.
    pub fn waits_for(&self, job: &Job, epoch: Epoch, rank: Rank, ranks: &[Rank]) -> String {
        let held = |rank| self.arenas.versions(rank, epoch);
        let missing = self.versions.missing(epoch, &held(rank), ranks, held);
        let on_way = || self.partners.as_ref().and_then(|partners| partners.waits_for(job, rank));
        missing.or_else(on_way).unwrap_or_else(|| {
            if ranks.len() < job.spec.world_size as usize {
                return "no rank of this node is missing: the checkpoint of one on another node is waited for".into();
            }
            "no rank is missing, but the agent has not yet read what they all wrote, for its checksums".into()
        })
    }

    fn look_at_full_places_in(&self, wait: Duration) {
        let news = self.news.clone();
        tokio::spawn(async move {
            crate::wait::passed(wait).await;
            news.send(News::PlacesFull);
        });
    }

    fn places_full(&mut self, job: &Job, worlds: &Worlds) {
        let (due, next) = self.full_places.due(ft_sys::timescale::scaled(FULL_FOR), job_time::now());
        if let Some(next) = next {
            self.look_at_full_places_in(next);
        }
        for (epoch, rank, newest) in due.into_iter().filter(|(_, rank, _)| self.arenas.is_full(*rank)) {
            let patience = format!("{} s", FULL_FOR.as_secs());
            let Some(world) = worlds.of_epoch(epoch) else { continue };
            let said = self.versions.still_waiting(epoch, rank, newest, world.layout.local(), &patience);
            if let Some(sentence) = said {
                job.notice(sentence);
            }
        }
    }

    /// An epoch begins, and the ranks of the one before it are gone: nothing is committed any more, and what there is is read.
    pub fn freeze(&mut self, epoch: Epoch, record: Option<&EpochRecord>) {
        self.inventory = None;
        if let (Some(partners), Some(record)) = (&mut self.partners, record) {
            partners.freeze(record.clone());
        }
        self.arenas.freeze(epoch, self.alone);
    }

    /// A node comes into the job, behind those that there are; it is in this failure domain.
    pub fn add_node(&mut self, domain: String) {
        if let Some(partners) = &mut self.partners {
            partners.add_node(domain);
        }
    }

    fn verified(&mut self, job: &mut Job, epoch: Epoch, verified: Verified) {
        if !self.arenas.reads(epoch) {
            return tracing::info!(epoch, "checkpoints were verified too late to be restored");
        }
        say_damaged(job, &verified);
        let inventory = self.note(verified);
        self.inventory = Some(Event::InventoryTaken { epoch: EpochId(epoch), inventory });
        self.tell_inventory(job);
    }

    /// What is not verified by now is to be left out, for the time being.
    pub fn list_verified(&mut self, job: &mut Job, epoch: Epoch) {
        // If it is there, all is verified.
        let so_far = self.arenas.so_far(epoch).filter(|_| self.inventory.is_none());
        let Some((verified, unread)) = so_far else { return };
        say_damaged(job, &verified);
        // The others are told once, and only of what they are told of anything may be restored.
        let inventory =
            if self.listed.replace(epoch) == Some(epoch) { self.inventory_of(verified) } else { self.note(verified) };
        self.inventory = Some(Event::InventorySoFar { epoch: EpochId(epoch), inventory, unread });
        self.tell_inventory(job);
    }

    /// Notes where the verified copies are, and what ftd-core is to know of them.
    fn note(&mut self, verified: Verified) -> Inventory {
        self.arenas.note(&verified);
        self.inventory_of(verified)
    }

    /// What ftd-core is to know of them.
    fn inventory_of(&self, verified: Verified) -> Inventory {
        let here = self.partners.as_ref().map(Partners::ranks_here);
        let level = |rank: Rank| match &here {
            Some(here) if !here.contains(&rank) => Level::Partner,
            _ => Level::Own,
        };
        let holding = |(rank, (version, epoch), _): (Rank, Commit, u32)| Holding {
            owner: ftd_core::Rank(rank),
            stamp: stamp(version, epoch),
            level: level(rank),
        };
        Inventory { holdings: verified.copies.into_iter().map(holding).collect() }
    }

    /// What was read is told of when it cannot change any more.
    fn tell_inventory(&mut self, job: &mut Job) {
        if self.partners.as_ref().is_none_or(Partners::is_still) {
            self.inventory.take().into_iter().for_each(|event| job.report(event));
        }
    }

    /// This is what the ranks of an epoch take back.
    pub fn restore(
        &mut self,
        job: &mut Job,
        (epoch, record): (Epoch, Option<&EpochRecord>),
        commit: Option<Commit>,
        away: RankSet,
    ) {
        (self.restore, self.away) = (Some((epoch, commit)), away);
        let restored = commit.map(|(version, _)| version);
        if self.newest.map(|(newest, _)| newest) != restored {
            self.newest = restored.map(|version| (version, None));
        }
        self.arenas.begin_epoch(commit);
        let Some((partners, record)) = self.partners.as_mut().zip(record) else { return };
        partners.begin(record.clone());
        // The partner may be gone: what is restored is sent again, and what has been committed since.
        for rank in partners.ranks_here() {
            let restored = commit.filter(|_| !self.away.contains(ftd_core::Rank(rank)));
            let since = self.arenas.versions(rank, epoch).into_iter().map(|version| (version, epoch));
            for commit in restored.into_iter().chain(since) {
                partners.send(job, &self.arenas, rank, commit);
            }
        }
    }

    /// The copy of a rank of this node is to be brought from there.
    pub fn fetch(&mut self, job: &mut Job, epoch: EpochId, rank: ftd_core::Rank, commit: Commit, from: NodeId) {
        match &mut self.partners {
            Some(partners) => partners.fetch(job, rank.0, commit, from),
            None => job.report(Event::NotFetched { epoch, rank, from }),
        }
    }

    /// Another node says something of a copy.
    pub fn hear(&mut self, job: &mut Job, from: (NodeId, bool), word: CopyWord) {
        if let Some(partners) = &mut self.partners {
            partners.hear(job, &mut self.arenas, from, word);
        }
    }

    /// The ranks whose copies have come since this was asked last, and in which epoch.
    pub fn take_fetched(&mut self) -> Vec<(Epoch, Rank)> {
        let fetched = self.partners.as_mut().map(Partners::take_fetched).unwrap_or_default();
        fetched.iter().for_each(|rank| self.away = self.away.without(&RankSet::from_iter([ftd_core::Rank(*rank)])));
        let epoch = self.restore.map_or(0, |(epoch, _)| epoch);
        fetched.into_iter().map(|rank| (epoch, rank)).collect()
    }

    /// What was copied to other nodes so far, and how much is not yet.
    pub fn copied(&self) -> Option<Copied> {
        self.partners.as_ref().map(Partners::copied)
    }

    /// `ft-ship` is to be asked whether it is there.
    pub fn ask(&mut self, job: &Job) {
        let said = self.partners.as_mut().and_then(Partners::ask);
        said.into_iter().for_each(|line| job.notice(line));
    }

    /// The job is over: nothing is sent any more.
    pub fn kill(&mut self) -> Option<JoinHandle<()>> {
        self.partners.as_mut().and_then(Partners::kill)
    }

    /// What a rank takes back in an epoch, and where it lies; nothing at all while that is not known.
    pub fn found(&self, epoch: Epoch, rank: Rank) -> Option<Option<(Version, u32)>> {
        match self.restore {
            Some((known, _)) if known == epoch && self.away.contains(ftd_core::Rank(rank)) => None,
            Some((known, commit)) if known == epoch => {
                Some(commit.and_then(|commit| self.arenas.place(rank, commit).map(|place| (commit.0, place))))
            }
            _ if epoch == 1 => Some(None),
            _ => None,
        }
    }

    /// Every agent has what is restored: of what was there before the epoch only these are needed any more.
    pub fn keep(&mut self, job: &mut Job, commits: &[Commit]) {
        if let Some((version, _)) = commits.iter().max() {
            self.versions.completed(*version);
        }
        self.arenas.keep(commits);
        if let Some(partners) = &mut self.partners {
            partners.keep(commits);
            partners.go_on(job, &mut self.arenas);
        }
    }

    /// This version is complete: what is older is needed no more.
    pub fn complete(&mut self, job: &mut Job, version: Version) {
        if self.newest.is_none_or(|(newest, _)| newest < version) {
            self.newest = Some((version, Some(job_time::now())));
            job.events.completed(version);
        }
        self.versions.completed(version);
        self.arenas.retire(version);
        if let Some(partners) = &mut self.partners {
            partners.retire(job, version);
            partners.go_on(job, &mut self.arenas);
            self.arenas.give_back(version, |rank| partners.is_through_with(rank));
        }
    }
}

fn say_damaged(job: &mut Job, verified: &Verified) {
    for sentence in &verified.damaged {
        job.notice(format!("a checkpoint is damaged and not used: {sentence}"));
    }
}

fn stamp(version: Version, epoch: Epoch) -> Stamp {
    Stamp { version: ftd_core::Version(version), epoch: EpochId(epoch) }
}
