//! The checkpoints of this node's ranks: arenas, checksums behind the copy, the frozen inventory, what is kept and what is
//! given back (DESIGN §7).

use crate::commits::{Commits, Hashed};
use crate::link::ConnectionId;
use crate::outlet::Outlet;
use crate::panicked::or_panicked;
use ft_arena::{AgentArena, ArenaError, Description, Doom, PlaceInfo, PlaceState, Tally};
use ft_wire::{Epoch, Rank, Version};
use ftd_core::inventory::{Holding, to_verify};
use ftd_core::{EpochId, Groups, Inventory, Level, Stamp, size};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinError;

/// Versions that each arena has room for.
const PLACES: u64 = ft_arena::PLACES as u64;

/// Shepherds that keep a duplicate of an arena, so that the agent and all of them but one may die together.
const KEEPERS: usize = 3;

/// A version and the epoch whose process committed it.
pub type Commit = (Version, Epoch);

/// What the ended epoch left, read back and compared with its checksums.
#[derive(Debug, Default)]
pub struct Verified {
    /// Rank, version and the epoch that committed it, place.
    pub copies: Vec<(Rank, Commit, u32)>,
    /// What did not match, one sentence each.
    pub damaged: Vec<String>,
}

/// What is heard from behind: of checksums, and of what they are compared with.
#[derive(Debug)]
pub enum News {
    /// The checksum of a place was computed.
    Hashed(Hashed),
    /// What an ended world left before this epoch is verified.
    Verified(Epoch, Verified),
}

#[derive(Debug)]
struct Held {
    arena: Arc<AgentArena>,
    /// Bytes per place that were granted.
    granted: u64,
    /// Commits of which the cost is known.
    costed: u32,
    /// Shepherds that hold a duplicate.
    kept_by: BTreeSet<ConnectionId>,
}

/// All arenas of this node.
#[derive(Debug)]
pub struct Arenas {
    world_size: u32,
    news: Outlet<News>,
    commits: Commits,
    held: BTreeMap<Rank, Held>,
    /// Set from an epoch's end to the next one's restore: nothing is committed or reused in between.
    frozen: bool,
    /// What is being read for an epoch, until it is known what that restores.
    reading: Option<(Epoch, Arc<Reading>)>,
    verified: BTreeMap<(Rank, Commit), u32>,
}

impl Arenas {
    /// No arenas yet.
    pub fn new(world_size: u32, news: Outlet<News>) -> Self {
        let commits = Commits::new(news.of(News::Hashed));
        Arenas {
            world_size,
            news,
            commits,
            held: BTreeMap::new(),
            frozen: false,
            reading: None,
            verified: BTreeMap::new(),
        }
    }

    /// Takes over an arena from the shepherd at `connection`, if this agent has none of that rank.
    pub fn adopt(&mut self, rank: Rank, fd: OwnedFd, connection: ConnectionId) {
        if rank >= self.world_size {
            return;
        }
        if !self.held.contains_key(&rank) {
            match AgentArena::adopt(fd, rank, self.world_size) {
                Ok(arena) => {
                    let granted = arena.reserved();
                    self.hold(rank, arena, granted);
                }
                Err(error) => return tracing::error!(rank, %error, "an arena could not be adopted"),
            }
        }
        if let Some(held) = self.held.get_mut(&rank) {
            held.kept_by.insert(connection);
        }
    }

    /// `rank`'s arena, which is made if it does not exist: its own, or one for copies while it is on another node.
    ///
    /// # Errors
    /// When there is no memory or descriptor left.
    pub fn arena(&mut self, rank: Rank) -> Result<Arc<AgentArena>, ArenaError> {
        if !self.held.contains_key(&rank) {
            let (arena, _) = AgentArena::create(rank, self.world_size)?;
            self.hold(rank, arena, 0);
        }
        Ok(self.held[&rank].arena.clone())
    }

    /// A descriptor of the arena of a rank of this node, which is made if it does not exist.
    ///
    /// # Errors
    /// When there is no memory, descriptor or thread left.
    pub fn descriptor(&mut self, rank: Rank) -> Result<OwnedFd, ArenaError> {
        self.arena(rank)?;
        let held = &self.held[&rank];
        self.commits.add(rank, held.arena.clone()).map_err(|source| ArenaError::Io {
            rank,
            what: "starting a thread for its checksums",
            source,
        })?;
        held.arena.descriptor()
    }

    fn hold(&mut self, rank: Rank, arena: AgentArena, granted: u64) {
        self.held.insert(rank, Held { arena: Arc::new(arena), granted, costed: 0, kept_by: BTreeSet::new() });
    }

    /// The ranks whose arenas are here.
    pub fn ranks(&self) -> Vec<Rank> {
        self.held.keys().copied().collect()
    }

    /// The ranks of whose arenas too few shepherds hold a duplicate.
    pub fn lacking_keepers(&self) -> Vec<Rank> {
        self.held.iter().filter(|(_, held)| held.kept_by.len() < KEEPERS).map(|(rank, _)| *rank).collect()
    }

    /// Whether `rank`'s arena is one of them.
    pub fn lacks_keepers(&self, rank: Rank) -> bool {
        self.held.get(&rank).is_some_and(|held| held.kept_by.len() < KEEPERS)
    }

    /// A duplicate for the shepherd at `connection`, unless it has one.
    pub fn duplicate_for(&mut self, rank: Rank, connection: ConnectionId) -> Option<OwnedFd> {
        let held = self.held.get_mut(&rank)?;
        if held.kept_by.contains(&connection) {
            return None;
        }
        let fd =
            held.arena.descriptor().map_err(|error| tracing::error!(rank, %error, "no duplicate of an arena")).ok()?;
        held.kept_by.insert(connection);
        Some(fd)
    }

    /// The shepherd at `connection` is gone, and what it kept.
    pub fn forget_keeper(&mut self, connection: ConnectionId) {
        for held in self.held.values_mut() {
            held.kept_by.remove(&connection);
        }
    }

    /// Grants `rank` places of `place_bytes`, if all that was granted fits into memory.
    ///
    /// # Errors
    /// One sentence with the numbers.
    pub fn reserve(&mut self, rank: Rank, place_bytes: u64) -> Result<(), String> {
        let available =
            ft_sys::oom::memory_available().map_err(|error| format!("memory cannot be measured: {error}"))?;
        let outstanding = |held: &Held, granted: u64| {
            granted.saturating_mul(PLACES).saturating_sub(held.arena.allocated().unwrap_or(0))
        };
        let others = self
            .held
            .iter()
            .filter(|(other, _)| **other != rank)
            .fold(0u64, |sum, (_, held)| sum.saturating_add(outstanding(held, held.granted)));
        let Some(held) = self.held.get_mut(&rank) else { return Err("the rank has no arena".into()) };
        let limit = held.arena.place_limit();
        if place_bytes > limit {
            let why = if limit < ft_arena::PLACE_LIMIT { " under this file-size limit (ulimit -f)" } else { "" };
            return Err(format!("a version of {place_bytes} bytes: there is room for {limit} bytes each{why}"));
        }
        let wanted = outstanding(held, place_bytes);
        if others.saturating_add(wanted) > available {
            return Err(format!(
                "three versions of {} take {} more memory, other ranks were promised {}, and {} are available",
                size(place_bytes),
                size(wanted),
                size(others),
                size(available)
            ));
        }
        held.granted = place_bytes;
        Ok(())
    }

    /// The same for copies from elsewhere; what was granted before stays so.
    ///
    /// # Errors
    /// One sentence with the numbers.
    pub fn reserve_more(&mut self, rank: Rank, place_bytes: u64) -> Result<(), String> {
        let granted = self.held.get(&rank).map_or(0, |held| held.granted);
        self.reserve(rank, place_bytes.max(granted))
    }

    /// How long the copy of `rank`'s last checkpoint took, if it took one since it was asked last.
    pub fn fresh_cost(&mut self, rank: Rank) -> Option<Duration> {
        let held = self.held.get_mut(&rank)?;
        let commits = held.arena.commits().load(Ordering::Acquire);
        (std::mem::replace(&mut held.costed, commits) != commits).then(|| held.arena.last_copy())
    }

    /// What `rank` has committed here, how long its last copy took, and the memory that its arena takes.
    pub fn tally(&self, rank: Rank) -> Option<(Tally, Duration, u64)> {
        let arena = &self.held.get(&rank)?.arena;
        Some((arena.tally(), arena.last_copy(), arena.allocated().unwrap_or(0)))
    }

    /// `rank` is to die when its library comes to this place next.
    pub fn doom(&self, rank: Rank, place: Doom) {
        self.held.get(&rank).into_iter().for_each(|held| held.arena.doom(place));
    }

    /// Where `rank`'s library is to have it die.
    pub fn doomed(&self, rank: Rank) -> Option<Doom> {
        self.held.get(&rank)?.arena.doomed()
    }

    /// A checksum is there. Returns the version that counts from now on, and the epoch of the process that committed it.
    pub fn hashed(&mut self, hashed: &Hashed) -> Option<Commit> {
        let held = self.held.get(&hashed.rank)?;
        match &hashed.result {
            Ok((info, checksum)) => {
                held.arena.set_complete(info.place, info.sequence, *checksum);
                (!self.frozen).then_some((info.version, info.epoch))
            }
            Err(error) => {
                // A version that was retired before its checksum was made looks the same as a damaged one.
                tracing::info!(rank = hashed.rank, %error, "a version does not count");
                None
            }
        }
    }

    /// Whether no place of `rank`'s is free.
    pub fn is_full(&self, rank: Rank) -> bool {
        let places = self.held.get(&rank).map(|held| held.arena.scan()).unwrap_or_default();
        !places.is_empty() && places.iter().all(PlaceInfo::is_whole)
    }

    /// The versions of `epoch` that lie whole in `rank`'s places.
    pub fn versions(&self, rank: Rank, epoch: Epoch) -> BTreeSet<Version> {
        let places = self.held.get(&rank).map(|held| held.arena.scan()).unwrap_or_default();
        places.into_iter().filter(|info| info.is_whole() && info.epoch == epoch).map(|info| info.version).collect()
    }

    /// The epoch before `epoch` is over, and its ranks are gone: finishes and verifies checksums on threads of their own;
    /// the result arrives as [`News::Verified`].
    ///
    /// `alone`: nobody else holds any.
    pub fn freeze(&mut self, epoch: Epoch, alone: bool) {
        self.frozen = true;
        self.verified.clear();
        let arenas: BTreeMap<Rank, Arc<AgentArena>> =
            self.held.iter().map(|(rank, h)| (*rank, h.arena.clone())).collect();
        let (world_size, news) = (self.world_size, self.news.clone());
        let reading = Arc::new(Reading::default());
        self.read_no_more();
        self.reading = Some((epoch, reading.clone()));
        let read = reading.clone();
        let work = tokio::task::spawn_blocking(move || verify(&arenas, (world_size, alone), &read, &check_one));
        tokio::spawn(async move {
            let verified = work.await.unwrap_or_else(|failed| reading.ended(&failed));
            news.send(News::Verified(epoch, verified));
        });
    }

    /// Whether what is read for this epoch can still be restored.
    pub fn reads(&self, epoch: Epoch) -> bool {
        self.reading.as_ref().is_some_and(|(of, _)| *of == epoch)
    }

    /// What has been verified for this epoch by now, and what is still to be read. What is damaged is told here or at the end, once.
    pub fn so_far(&self, epoch: Epoch) -> Option<(Verified, Inventory)> {
        let (_, reading) = self.reading.as_ref().filter(|(of, _)| *of == epoch)?;
        let mut so_far = reading.so_far();
        let verified = Verified { copies: so_far.verified.clone(), damaged: std::mem::take(&mut so_far.damaged) };
        Some((verified, Inventory { holdings: so_far.unread.clone() }))
    }

    /// What is not verified by now is not restored.
    fn read_no_more(&mut self) {
        self.reading.take().iter().for_each(|(_, reading)| reading.over.store(true, Ordering::Relaxed));
    }

    /// Notes where the verified copies are.
    pub fn note(&mut self, verified: &Verified) {
        self.verified = verified.copies.iter().map(|(rank, commit, place)| ((*rank, *commit), *place)).collect();
    }

    /// The place in `rank`'s arena that holds the verified `commit`.
    pub fn place(&self, rank: Rank, commit: Commit) -> Option<u32> {
        self.verified.get(&(rank, commit)).copied()
    }

    /// A copy came from elsewhere, and is what its checksum says.
    pub fn found(&mut self, rank: Rank, commit: Commit, place: u32) {
        self.verified.insert((rank, commit), place);
    }

    /// The place in `rank`'s arena where `commit` lies whole, with its checksum, and what it is.
    pub fn describe(&self, rank: Rank, commit: Commit) -> Option<(u32, Description)> {
        let arena = &self.held.get(&rank)?.arena;
        let all = (0..ft_arena::PLACES).filter_map(|place| Some((place, arena.describe(place)?)));
        all.into_iter().find(|(_, found)| (found.version, found.epoch) == commit)
    }

    /// A place of `rank`'s arena for a copy of that many bytes that comes from elsewhere: one that holds nothing that is needed, or else,
    /// when it `must` be had, that of what is oldest. Nothing: all are needed.
    pub fn place_for_copy(
        &mut self,
        rank: Rank,
        written: impl Fn(u32) -> bool,
        must: bool,
    ) -> Result<Option<(Arc<AgentArena>, u32)>, ArenaError> {
        let arena = self.arena(rank)?;
        if let Some(place) = arena.free_place(&written) {
            return Ok(Some((arena, place)));
        }
        let whole = arena.scan().into_iter().filter(|info| info.is_whole() && !written(info.place));
        let oldest = whole.min_by_key(|info| (info.version, info.epoch)).filter(|_| must);
        oldest.iter().for_each(|info| arena.discard(info.place, info.sequence));
        Ok(oldest.map(|info| (arena, info.place)))
    }

    /// The new epoch restores `commit`: what is newer, or damaged, is never to be restored, and may be overwritten.
    pub fn begin_epoch(&mut self, commit: Option<Commit>) {
        self.frozen = false;
        self.read_no_more();
        for (rank, held) in &self.held {
            for info in held.arena.scan_released() {
                let of_place = (info.version, info.epoch);
                let verified = self.verified.get(&(*rank, of_place)) == Some(&info.place);
                if verified && commit.is_some_and(|commit| of_place <= commit) {
                    held.arena.keep(info.place, info.sequence);
                } else {
                    held.arena.discard(info.place, info.sequence);
                }
            }
        }
    }

    /// Of what was there before this epoch only these are needed any more, the newest of which is restored.
    pub fn keep(&self, commits: &[Commit]) {
        let Some(newest) = commits.iter().max() else { return };
        for (arena, info) in
            self.held.values().flat_map(|held| held.arena.scan().into_iter().map(|info| (&held.arena, info)))
        {
            let of_place = (info.version, info.epoch);
            if info.is_whole() && of_place < *newest && !commits.contains(&of_place) {
                arena.release(info.place, info.sequence);
            }
        }
    }

    /// `complete` is whole for the group: what is older may be overwritten. The rank overwrites the oldest first, and what it
    /// has not overwritten when the epoch ends can be restored, should bytes of the complete one turn out to be damaged.
    pub fn retire(&self, complete: Version) {
        for held in self.held.values() {
            for info in held.arena.scan() {
                let damaged = matches!(info.state, PlaceState::Corrupt { .. });
                if damaged || info.is_whole() && info.version < complete {
                    held.arena.release(info.place, info.sequence);
                }
            }
        }
    }

    /// The memory of arenas goes back that hold nothing but what is older than this version, of ranks that are elsewhere: they have other
    /// partners now.
    pub fn give_back(&mut self, complete: Version, is_elsewhere: impl Fn(Rank) -> bool) {
        for (rank, held) in self.held.iter_mut().filter(|(rank, _)| is_elsewhere(**rank)) {
            let places = held.arena.scan();
            if places.iter().any(|info| info.is_whole() && info.version >= complete) {
                continue;
            }
            // What was only released would be read once more at the next epoch, and found damaged.
            places.iter().for_each(|info| held.arena.discard(info.place, info.sequence));
            held.arena.discard_free();
            held.granted = 0;
            self.verified.retain(|(of, _), _| of != rank);
        }
    }
}

/// Whether what lies in a place is what its checksum says.
///
/// # Errors
/// One sentence.
pub fn check(arena: &AgentArena, place: u32) -> Result<(), String> {
    or_panicked("the comparison with its checksum", || arena.verify(place).map(drop))
}

/// How far the reading is, for who cannot wait until it is over.
#[derive(Debug, Default)]
struct Reading {
    so_far: Mutex<SoFar>,
    /// Nobody wants to know any more.
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct SoFar {
    verified: Vec<(Rank, Commit, u32)>,
    unread: BTreeSet<Holding>,
    /// What nobody has been told of yet.
    damaged: Vec<String>,
}

impl Reading {
    fn so_far(&self) -> MutexGuard<'_, SoFar> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This was read: where it lies, if it is what its checksum says, or else what is wrong.
    fn note(&self, holding: &Holding, found: Result<u32, String>) {
        let mut so_far = self.so_far();
        so_far.unread.remove(holding);
        let Stamp { version, epoch } = holding.stamp;
        let (rank, commit) = (holding.owner.0, (version.0, epoch.0));
        match found {
            Ok(place) => so_far.verified.push((rank, commit, place)),
            Err(wrong) => {
                so_far.verified.retain(|(of, known, _)| (*of, *known) != (rank, commit));
                so_far.damaged.push(format!("version {}, rank {rank}: {wrong}", version.0));
            }
        }
    }

    /// It came to no end of its own. Nobody waits for the rest, of which nothing is known to be right.
    fn ended(&self, failed: &JoinError) -> Verified {
        let mut so_far = self.so_far();
        let unread = std::mem::take(&mut so_far.unread).len();
        let unused = match unread {
            // It may not even have come to know what there is.
            0 => "what it had not compared is not used".into(),
            1 => "1 copy is not used".into(),
            _ => format!("{unread} copies are not used"),
        };
        so_far.damaged.push(format!("ftd could not compare all with their checksums: {failed}; {unused}"));
        Verified { copies: so_far.verified.clone(), damaged: std::mem::take(&mut so_far.damaged) }
    }
}

/// Compares what lies in a place with its checksum.
type Check = dyn Fn(&AgentArena, u32) -> Result<(), ArenaError> + Sync;

/// Reads what ftd-core wants to know of, and tells where that lies.
fn verify(
    arenas: &BTreeMap<Rank, Arc<AgentArena>>,
    (world_size, alone): (u32, bool),
    reading: &Reading,
    check: &Check,
) -> Verified {
    let (mut verified, groups) = (Verified::default(), Groups::one());
    let mut places: BTreeMap<Holding, u32> = BTreeMap::new();
    for (rank, arena) in arenas {
        for info in arena.scan_released() {
            if let PlaceState::Corrupt { why } = &info.state {
                reading.so_far().damaged.push(format!("rank {rank}, place {}: {why}", info.place));
            } else if info.is_whole() {
                places.insert(holding(*rank, (info.version, info.epoch)), info.place);
            }
        }
    }
    reading.so_far().unread = places.keys().copied().collect();
    let (mut held, mut read) = (Inventory { holdings: places.keys().copied().collect() }, Inventory::default());
    loop {
        let work = to_verify(&held, &read, &groups, world_size, alone);
        if work.is_empty() {
            break;
        }
        let mut work: Vec<(Holding, u32)> = work.into_iter().map(|holding| (holding, places[&holding])).collect();
        // The newest first: should time run out, these are worth most.
        work.sort_by_key(|(holding, _)| std::cmp::Reverse(holding.stamp));
        read.holdings.extend(work.iter().map(|(holding, _)| *holding));
        for holding in check_all(arenas, &work, reading, check) {
            held.holdings.remove(&holding);
        }
    }
    for holding in read.holdings.intersection(&held.holdings) {
        let Stamp { version, epoch } = holding.stamp;
        verified.copies.push((holding.owner.0, (version.0, epoch.0), places[holding]));
    }
    verified.damaged = std::mem::take(&mut reading.so_far().damaged);
    verified
}

fn holding(rank: Rank, (version, epoch): Commit) -> Holding {
    let stamp = Stamp { version: ftd_core::Version(version), epoch: EpochId(epoch) };
    Holding { owner: ftd_core::Rank(rank), stamp, level: Level::Own }
}

/// Those that are not as they should be.
fn check_all(
    arenas: &BTreeMap<Rank, Arc<AgentArena>>,
    work: &[(Holding, u32)],
    reading: &Reading,
    check: &Check,
) -> Vec<Holding> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(work.len());
    let next = AtomicUsize::new(0);
    let some = || {
        let mut bad = Vec::new();
        while let Some((holding, place)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            if reading.over.load(Ordering::Relaxed) {
                break;
            }
            let rank = holding.owner.0;
            ft_sys::gate::reach("agent.verifies", Some(rank));
            let Some(arena) = arenas.get(&rank) else { continue };
            let checked = or_panicked("the comparison with its checksum", || check(arena, *place)).map(|()| *place);
            bad.extend(checked.is_err().then_some(*holding));
            reading.note(holding, checked);
        }
        bad
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(some)).collect();
        let mut bad = some();
        for helper in helpers {
            bad.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        bad
    })
}

/// A place whose checksum was still to be made gets it now, from the bytes that the rank committed.
fn check_one(arena: &AgentArena, place: u32) -> Result<(), ArenaError> {
    let complete = |info: &PlaceInfo| info.place == place && matches!(info.state, PlaceState::Complete { .. });
    if arena.scan_released().iter().any(complete) {
        arena.verify(place).map(drop)
    } else {
        let (info, checksum) = arena.hash(place)?;
        arena.set_complete(place, info.sequence, checksum);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 0 has versions 3 and 4, as has rank 1, and rank 2 has 4 and 5.
    fn filled() -> Arenas {
        let mut arenas = Arenas::new(3, Outlet::new(|_, _| true));
        let bytes = vec![7u8; 1 << 20];
        for (rank, versions) in [(0, [3, 4]), (1, [3, 4]), (2, [4, 5])] {
            for version in versions {
                let (arena, place) = arenas.place_for_copy(rank, |_| false, false).unwrap().unwrap();
                let sequence = arena.begin_copy(place, bytes.len() as u64);
                let file = std::fs::File::from(arena.descriptor().unwrap());
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, arena.offset(place)).unwrap();
                let (epoch, regions, table_check, checksum, bytes) = (1, 1, 0, 0, bytes.len() as u64);
                arena.finish_copy(
                    place,
                    sequence,
                    &Description { version, epoch, bytes, regions, table_check, checksum },
                );
            }
        }
        arenas
    }

    fn held(arenas: &Arenas) -> BTreeMap<Rank, Arc<AgentArena>> {
        arenas.held.iter().map(|(rank, held)| (*rank, held.arena.clone())).collect()
    }

    #[tokio::test]
    async fn a_comparison_that_panics_costs_its_copy_alone() {
        let (held, reading) = (held(&filled()), Reading::default());
        let panics = Arc::as_ptr(&held[&1]).addr();
        let check = move |arena: &AgentArena, _: u32| {
            assert_ne!(std::ptr::from_ref(arena).addr(), panics, "an error of ftd's own");
            Ok(())
        };
        let verified = verify(&held, (3, false), &reading, &check);
        let mut found: Vec<_> = verified.copies.iter().map(|(rank, (version, _), _)| (*rank, *version)).collect();
        found.sort_unstable();
        assert_eq!(found, [(0, 3), (0, 4), (2, 4), (2, 5)]);
        let said = verified.damaged;
        assert!(said.len() == 2 && said.iter().all(|said| said.contains("rank 1: the comparison")), "{said:?}");
    }

    #[tokio::test]
    async fn a_reading_that_panics_comes_to_an_end_with_what_was_verified_before() {
        let (held, reading) = (held(&filled()), Arc::new(Reading::default()));
        let read = reading.clone();
        let failed = tokio::task::spawn_blocking(move || {
            let check = |_: &AgentArena, _: u32| Ok(());
            verify(&held, (3, false), &read, &check);
            let late = holding(2, (6, 1));
            read.so_far().unread.insert(late);
            panic!("an error of ftd's own");
        });
        let verified = reading.ended(&failed.await.unwrap_err());
        assert_eq!(verified.copies.len(), 6);
        let said = verified.damaged;
        assert!(said.len() == 1 && said[0].starts_with("ftd could not compare all"), "{said:?}");
        assert!(said[0].ends_with("; 1 copy is not used"), "{said:?}");
        assert!(reading.so_far().unread.is_empty());
    }

    #[tokio::test]
    async fn a_reading_that_panics_before_it_knows_what_there_is_says_so() {
        let failed = tokio::task::spawn_blocking(|| panic!("an error of ftd's own")).await.unwrap_err();
        let verified = Reading::default().ended(&failed);
        assert!(verified.copies.is_empty());
        let said = verified.damaged;
        assert!(said.len() == 1 && said[0].starts_with("ftd could not compare all"), "{said:?}");
    }

    #[tokio::test]
    async fn what_has_other_partners_now_takes_no_memory() {
        let mut arenas = filled();
        let taken = |arenas: &Arenas, rank| arenas.held[&rank].arena.allocated().unwrap() >> 20;
        arenas.give_back(5, |rank| rank != 1);
        assert_eq!([0, 1, 2].map(|rank| taken(&arenas, rank)), [0, 2, 2], "what is here, or is needed, stays");
        assert!(arenas.held[&0].arena.scan_released().iter().all(|info| !info.is_whole()), "nobody reads it again");
    }

    #[tokio::test]
    async fn no_size_that_a_rank_may_ask_for_is_granted_by_overflow() {
        let mut arenas = Arenas::new(2, Outlet::new(|_, _| true));
        for rank in 0..2 {
            arenas.descriptor(rank).unwrap();
        }
        arenas.reserve(1, 4096).unwrap();
        for bytes in [1 << 63, u64::MAX, u64::MAX / 3 + 1, (1 << 40) + 1, 1 << 62] {
            let sentence = arenas.reserve(0, bytes).unwrap_err();
            assert!(sentence.contains(&format!("a version of {bytes} bytes")), "{sentence}");
        }
        assert!(arenas.reserve(0, 1 << 40).unwrap_err().contains("three versions of 1024.0 GiB take "));
        arenas.reserve(0, 8192).unwrap();
    }
}
