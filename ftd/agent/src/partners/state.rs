//! What is known of copies on other nodes, and the few things that everybody here needs.

use super::kinds::{Errand, Fetching, Keeping, Lent, Queue, Sending, Unreached, Use, Way, older};
use super::progress::Progress;
use super::ship::Ship;
use crate::arenas::{Arenas, Commit};
use crate::job::Job;
use crate::outlet::Outlet;
use crate::ship_host;
use crate::wish::Wish;
use ft_store::through::Copied;
use ft_sys::timescale::scaled;
use ft_wire::copies::{CopyFacts, CopyName, CopyWord};
use ft_wire::launcher::ToLauncher;
use ft_wire::ship::{Move, Window};
use ft_wire::{Epoch, Rank, Version};
use ftd_core::{EpochRecord, NodeId, partners};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// What was not answered is said again after so long.
pub const AGAIN: Duration = Duration::from_millis(500);
/// Who has not answered for so long does not.
pub const SILENT: Duration = Duration::from_secs(30);
/// A partner may read for so long before it says whether it keeps a version.
pub const CHECKING: Duration = Duration::from_secs(600);
/// What went wrong so often with one node is not tried again with it.
pub const MOST_FAILURES: u32 = 3;
/// A node to which nothing came is tried after others for so long.
pub const UNREACHED: Duration = Duration::from_secs(300);
/// So many third nodes are asked for a copy that does not come straight from who holds it.
pub const MOST_WAYS: usize = 3;
/// Likewise where no bytes were tried to be moved, since words come by a detour: that may be over soon.
pub const ROUND: Duration = Duration::from_secs(30);
/// Who is to have a copy from another node and to pass it on has so long for that. (Where nothing moves it says so after some seconds.)
pub const PASSING: Duration = Duration::from_secs(600);
/// An `ft-ship` that has not let go of what it writes to for so long is ended.
const STILL: Duration = Duration::from_secs(2);

/// What is heard from behind.
#[derive(Debug)]
pub enum News {
    /// Of the process.
    Ship(ship_host::News),
    /// A copy that came was compared with its checksum.
    Checked {
        /// Which.
        copy: CopyName,
        /// A sentence: it is not what that says.
        result: Result<(), String>,
    },
    /// It is time to look at what was not answered.
    Look,
}

/// The copies of this node's versions on other nodes, and of theirs on this one.
#[derive(Debug)]
pub struct Partners {
    pub(super) me: NodeId,
    domains: Vec<String>,
    pub(super) ship: Ship,
    /// Of the epoch that is begun, or being begun.
    pub(super) record: Option<EpochRecord>,
    /// It is known what it restores; before that nothing is sent or kept.
    pub(super) open: bool,
    /// Since when nothing is to change any more.
    frozen: Option<Instant>,
    pub(super) queues: BTreeMap<Rank, Queue>,
    pub(super) keeping: BTreeMap<Rank, Keeping>,
    /// Offers for which there is no place yet, the newest of each rank.
    pub(super) later: BTreeMap<Rank, (NodeId, CopyName, CopyFacts)>,
    pub(super) fetching: BTreeMap<Rank, Fetching>,
    /// What came, for ranks that may wait for it.
    pub(super) fetched: Vec<Rank>,
    pub(super) lent: BTreeMap<(NodeId, Rank), Lent>,
    pub(super) windows: BTreeMap<Window, Use>,
    pub(super) moves: BTreeMap<Move, Errand>,
    pub(super) progress: Progress,
    pub(super) unreached: BTreeMap<NodeId, Unreached>,
    /// What is older is needed no more, but for these.
    given_up: Option<(Commit, Vec<Commit>)>,
    looks: bool,
    pub(super) news: Outlet<News>,
}

impl Partners {
    /// Of a node of a job over several.
    pub fn new(job: &Job, news: Outlet<News>) -> Option<Partners> {
        let cluster = job.spec.cluster.as_ref().filter(|cluster| cluster.nodes.len() > 1)?;
        Some(Partners {
            me: NodeId(cluster.me),
            domains: cluster.nodes.iter().map(|node| node.domain.clone()).collect(),
            ship: Ship::new(&job.spec, news.of(News::Ship)),
            record: None,
            open: false,
            frozen: None,
            queues: BTreeMap::new(),
            keeping: BTreeMap::new(),
            later: BTreeMap::new(),
            fetching: BTreeMap::new(),
            fetched: Vec::new(),
            lent: BTreeMap::new(),
            windows: BTreeMap::new(),
            moves: BTreeMap::new(),
            progress: Progress::default(),
            unreached: BTreeMap::new(),
            given_up: None,
            looks: false,
            news,
        })
    }

    /// A node comes into the job, behind those that there are.
    pub fn add_node(&mut self, domain: String) {
        self.domains.push(domain);
    }

    /// The newest epoch that is known.
    pub(super) fn epoch(&self) -> Epoch {
        self.record.as_ref().map_or(0, |record| record.epoch.0)
    }

    /// Where a rank is in it.
    pub(super) fn home(&self, rank: Rank) -> Option<NodeId> {
        self.record.as_ref().and_then(|record| record.node_of(ftd_core::Rank(rank)))
    }

    /// The ranks of this node.
    pub fn ranks_here(&self) -> Vec<Rank> {
        let here = self.record.iter().flat_map(|record| record.ranks_on(self.me));
        here.map(|(rank, _)| rank.0).collect()
    }

    /// Who may keep copies for this node, the best first.
    pub(super) fn others(&self) -> Vec<NodeId> {
        let domain = |node: NodeId| self.domains.get(node.0 as usize);
        self.record.iter().flat_map(|record| partners(domain, &record.nodes, self.me, usize::MAX)).collect()
    }

    /// Says something to another node.
    pub(super) fn say(&self, job: &mut Job, to: NodeId, word: CopyWord) {
        let Some(record) = &self.record else { return };
        job.wish(record.world.0, Wish::Copy { to, word });
    }

    /// What a node is called.
    pub(super) fn name(&self, job: &Job, node: NodeId) -> String {
        let cluster = job.spec.cluster.as_ref();
        let known = cluster.and_then(|cluster| cluster.nodes.get(node.0 as usize));
        known.map_or_else(|| format!("node {}", node.0), |node| node.name.clone())
    }

    /// What is not answered is looked at in a while.
    pub(super) fn look_soon(&mut self) {
        if !std::mem::replace(&mut self.looks, true) {
            let news = self.news.clone();
            tokio::spawn(async move {
                tokio::time::sleep(AGAIN).await;
                news.send(News::Look);
            });
        }
    }

    /// The look has begun.
    pub(super) fn looking(&mut self) {
        self.looks = false;
        let due = |since: &Instant| since.elapsed() >= scaled(STILL);
        if self.frozen.as_ref().is_some_and(due) && !self.is_still() {
            self.ship.end();
        }
    }

    /// Whether a place is one that somebody writes to.
    pub(super) fn is_written(&self, rank: Rank, place: u32) -> bool {
        let kept = self.keeping.get(&rank).is_some_and(|keeping| keeping.place == place);
        let back = self.moves.values().any(|errand| *errand == Errand::Back(rank, place));
        let checked =
            self.fetching.get(&rank).is_some_and(|fetching| fetching.into.is_some_and(|into| into.0 == place));
        kept || back || checked || self.windows.values().any(|of| *of == Use::Nothing(Some((rank, place))))
    }

    /// Whether a rank is on another node, and nothing of it is on its way to here or from here.
    pub fn is_through_with(&self, rank: Rank) -> bool {
        let comes =
            self.keeping.contains_key(&rank) || self.later.contains_key(&rank) || self.fetching.contains_key(&rank);
        let goes = self.lent.keys().any(|(_, lent)| *lent == rank);
        let of_rank = |of: &Use| match of {
            Use::Keeping(of) | Use::Lent(_, of) => *of == rank,
            Use::Nothing(place) => place.is_none_or(|(of, _)| of == rank),
        };
        let moves = self.moves.values().any(|errand| matches!(errand, Errand::Back(of, _) if *of == rank));
        let busy = comes || goes || moves || self.windows.values().any(of_rank);
        !busy && self.home(rank).is_some_and(|home| home != self.me)
    }

    /// Lets nobody at a window any more.
    pub(super) fn close(&mut self, window: Window, place: Option<(Rank, u32)>) {
        if let Some(of) = self.windows.get_mut(&window) {
            *of = Use::Nothing(place);
            self.ship.hide(window);
        }
    }

    /// There may be an arena that was not there before: whoever keeps none of it is to.
    pub(super) fn new_arena(&self, job: &Job, arenas: &Arenas) {
        if arenas.ranks().is_empty() {
            job.tell(&ToLauncher::Arenas);
        }
    }

    /// An epoch begins, of this record, and the ranks of the one before it are gone: from now on nothing changes here that was there.
    pub fn freeze(&mut self, record: EpochRecord) {
        let members: Vec<NodeId> = record.members().collect();
        let known = self.record.iter().flat_map(|record| record.members());
        let gone: Vec<NodeId> = known.filter(|node| !members.contains(node)).collect();
        gone.into_iter().for_each(|node| self.ship.gone(node));
        (self.record, self.open, self.frozen) = (Some(record), false, Some(Instant::now()));
        self.queues.clear();
        self.progress.clear();
        self.later.clear();
        self.fetching.clear();
        self.fetched.clear();
        for id in self.moves.keys() {
            self.ship.cancel(*id);
        }
        for (rank, keeping) in std::mem::take(&mut self.keeping) {
            self.close(keeping.window, Some((rank, keeping.place)));
        }
        for lent in std::mem::take(&mut self.lent).into_values() {
            self.close(lent.window, None);
        }
        self.see_to_rate();
        self.look_soon();
    }

    /// What is brought back is waited for by everybody: nothing holds it up. What is sent is to hold up nobody.
    pub(super) fn see_to_rate(&mut self) {
        self.ship.limit(self.fetching.is_empty());
    }

    /// Whether nobody else can write to an arena of this node.
    pub fn is_still(&self) -> bool {
        let written = |errand: &Errand| matches!(errand, Errand::Back(..));
        self.windows.is_empty() && !self.moves.values().any(written)
    }

    /// It is known what the epoch of this record restores.
    pub fn begin(&mut self, record: EpochRecord) {
        self.record = Some(record);
        (self.open, self.frozen, self.given_up) = (true, None, None);
    }

    /// A version that comes for another node is not wanted any more. Its place is free once nobody can write there.
    pub(super) fn forget(&mut self, rank: Rank) {
        if let Some(keeping) = self.keeping.remove(&rank) {
            self.close(keeping.window, Some((rank, keeping.place)));
        }
    }

    /// Whether a copy of this is still needed.
    pub(super) fn needs(&self, commit: Commit) -> bool {
        self.given_up.as_ref().is_none_or(|(newest, kept)| commit >= *newest || kept.contains(&commit))
    }

    /// What came since this was asked last, for ranks that may wait for it.
    pub fn take_fetched(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.fetched)
    }

    /// The process is to be asked whether it is there. Returns what people are to be told.
    pub fn ask(&mut self) -> Option<String> {
        self.ship.ask()
    }

    /// The job is over.
    pub fn kill(&mut self) -> Option<JoinHandle<()>> {
        self.ship.kill()
    }

    /// What was copied so far, and how much is not yet.
    pub fn copied(&self) -> Copied {
        self.progress.copied()
    }

    /// People who want to know more are told how far this node's versions are.
    pub(super) fn say_progress(&mut self, job: &Job) {
        if job.spec.verbose && self.open {
            let (node, ranks) = (self.name(job, self.me), self.ranks_here().len());
            let lines = self.progress.said(&node, ranks, Instant::now());
            lines.into_iter().for_each(|line| job.notice(line));
        }
    }

    /// All ranks' copies of this version are on other nodes, as far as they can be: one node tells people.
    fn say_safe(&mut self, job: &Job, version: Version) {
        let speaks = self.record.as_ref().and_then(|record| record.members().next()) == Some(self.me);
        if job.spec.verbose && speaks && self.progress.says_safe(Instant::now()) {
            job.notice(format!("version {version} is safe: copies of all ranks are on other nodes"));
        }
    }

    /// A node that has sent and kept nothing yet may be the one to which ranks come: that its `ft-ship` has to begin first (libfabric looks
    /// for ways to the network for a while) is not to hold up their recovery.
    fn be_ready(&mut self, job: &Job) {
        if let Err(reason) = self.ship.wake() {
            tracing::debug!(node = self.name(job, self.me), reason, "no ft-ship");
        }
    }

    /// What was there before the epoch is needed no more, but for these.
    pub fn keep(&mut self, commits: &[Commit]) {
        if let Some(newest) = commits.iter().max() {
            self.given_up = Some((*newest, commits.to_vec()));
        }
    }

    /// What is older is needed no more.
    pub fn retire(&mut self, job: &Job, complete: Version) {
        self.say_safe(job, complete);
        self.be_ready(job);
        self.progress.retire(complete);
        self.given_up = Some(((complete, 0), Vec::new()));
        for queue in self.queues.values_mut() {
            queue.next.retain(|(version, _)| *version >= complete);
            if let Some(Sending { way: Way::Moving(id), .. }) =
                queue.now.take_if(|sending| older(sending.copy, complete))
            {
                self.ship.cancel(id);
            }
        }
        self.later.retain(|_, (_, copy, _)| !older(*copy, complete));
        let over: Vec<Rank> =
            self.keeping.iter().filter(|(_, keeping)| older(keeping.copy, complete)).map(|(rank, _)| *rank).collect();
        over.into_iter().for_each(|rank| self.forget(rank));
    }
}
