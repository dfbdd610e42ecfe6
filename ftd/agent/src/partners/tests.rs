//! What a partner does with words of an epoch that is over.

#![allow(clippy::unwrap_used)]

use super::Partners;
use super::kinds::{Back, Fetching, Keeping, Queue, Sending, Stay, Use, Way, Ways};
use crate::arenas::Arenas;
use crate::job::Job;
use crate::link::{Incoming, Link};
use crate::outlet::Outlet;
use crate::wish::Wish;
use ft_arena::Description;
use ft_wire::cluster::{Cluster, ClusterNode, Hidden, StoreAddress};
use ft_wire::copies::{CopyFacts, CopyName, CopyWord};
use ft_wire::launcher::JobSpec;
use ft_wire::ship::{Target, Window};
use ft_wire::{Epoch, Preamble, Role};
use ftd_core::record::Strategy;
use ftd_core::{
    EpochId, EpochRecord, FailureSet, Micros, Mode, NodeId, Placement, SlotEntry, SlotId, SlotState, Slots, Terms,
    WorldId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const OWNER: NodeId = NodeId(0);
const WINDOW: Window = 9;
const TARGET: Target = Target { base: 0, key: 0, bytes: FACTS.bytes };
const FACTS: CopyFacts = CopyFacts { bytes: 4096, regions: 1, table_check: 0, checksum: 0 };

/// Node 1 of two that have a rank each, and no `ft-ship`.
struct Partner {
    job: Job,
    arenas: Arenas,
    partners: Partners,
    _launcher: (UnixStream, Incoming),
}

fn cluster() -> Cluster {
    let node = |number: u32| ClusterNode {
        name: format!("host{number}"),
        host: format!("host{number}"),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        port: 1,
        slots: 1,
        first_slot: number,
        spare: false,
        domain: format!("host{number}"),
        lease: None,
    };
    Cluster {
        me: 1,
        nodes: (0..2).map(node).collect(),
        first: 2,
        secret: Hidden([7; 32]),
        store: StoreAddress { socket: PathBuf::new(), prefix: String::new() },
        heartbeat_ms: 500,
        heartbeat_period_ms: None,
        wait_ms: 0,
        oversubscribe: false,
        path_ms: 60_000,
    }
}

fn spec() -> JobSpec {
    JobSpec {
        fabric: None,
        job: "job".into(),
        world_size: 2,
        mode: "reinit".into(),
        programs: Vec::new(),
        env: Vec::new(),
        job_dir: PathBuf::new(),
        max_failures: 3,
        grace_ms: 0,
        recover_aborts: false,
        mpi: "auto".into(),
        preload: PathBuf::new(),
        ft_pmix: PathBuf::new(),
        ft_ship: "/no/ft-ship".into(),
        expect_pmix: false,
        copy_rate: 0,
        verbose: false,
        nice: None,
        summary: false,
        binding: None,
        injections: Vec::new(),
        node: None,
        cluster: Some(cluster()),
    }
}

fn record(epoch: Epoch) -> EpochRecord {
    let slot = |number: u32| SlotEntry { slot: SlotId(number), node: NodeId(number), state: SlotState::Active };
    EpochRecord {
        epoch: EpochId(epoch),
        began: Micros(0),
        mode: Mode::Reinit,
        terms: Terms::default(),
        world: WorldId(epoch),
        world_size: 2,
        placement: Placement::from_slots((0..2).map(SlotId)),
        slots: Slots::of((0..2).map(slot)),
        nodes: ftd_core::Members::of((0..2).map(NodeId)),
        joined: BTreeSet::new(),
        failures: FailureSet::new(),
        agreed_after: Micros(0),
        strategy: Strategy::Fresh,
        streaks: Vec::new(),
        history: Vec::new(),
        outcome: None,
    }
}

/// Version 4 of rank 0, committed in epoch 1, as somebody speaks of it in an epoch.
fn spoken_of_in(epoch: Epoch) -> CopyName {
    CopyName { epoch, rank: 0, version: 4, committed: 1, turn: 0 }
}

async fn launcher() -> (Link, (UnixStream, Incoming)) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&Preamble::ours(Role::Launcher).to_bytes()).unwrap();
    let (_, link, incoming) = Incoming::open(ours).await.unwrap();
    (link, (theirs, incoming))
}

impl Partner {
    /// In epoch 1, of which it is known what that restores.
    async fn new() -> Partner {
        let (link, launcher) = launcher().await;
        let job = Job::new(spec(), link, Default::default());
        let partners = Partners::new(&job, Outlet::new(|_, _| true)).unwrap();
        let mut partner =
            Partner { job, arenas: Arenas::new(2, Outlet::new(|_, _| true)), partners, _launcher: launcher };
        partner.partners.freeze(record(1));
        partner.partners.begin(record(1));
        partner
    }

    /// What it answers to a word of the owner's.
    fn hears(&mut self, word: CopyWord) -> Vec<CopyWord> {
        self.answers(word, (OWNER, false))
    }

    /// What it answers when there is no straight way to the owner.
    fn hears_round(&mut self, word: CopyWord) -> Vec<CopyWord> {
        self.answers(word, (OWNER, true))
    }

    fn answers(&mut self, word: CopyWord, from: (NodeId, bool)) -> Vec<CopyWord> {
        self.partners.hear(&mut self.job, &mut self.arenas, from, word);
        let said = std::iter::from_fn(|| self.job.next_wish());
        said.filter_map(|(_, wish)| if let Wish::Copy { word, .. } = wish { Some(word) } else { None }).collect()
    }

    /// Rank 0's version is on its way here, into a window that is open.
    fn is_being_sent(&mut self, copy: CopyName) {
        let (arena, place) = self.arenas.place_for_copy(0, |_| false, false).unwrap().unwrap();
        let sequence = arena.begin_copy(place, FACTS.bytes);
        let stay = Stay::Open(TARGET);
        self.partners.windows.insert(WINDOW, Use::Keeping(0));
        let keeping = Keeping { from: OWNER, copy, facts: FACTS, place, sequence, window: WINDOW, stay };
        self.partners.keeping.insert(0, keeping);
    }

    /// The version is here, whole.
    fn has(&mut self, copy: CopyName) {
        let (arena, place) = self.arenas.place_for_copy(0, |_| false, false).unwrap().unwrap();
        let sequence = arena.begin_copy(place, FACTS.bytes);
        let CopyFacts { bytes, regions, table_check, checksum } = FACTS;
        let (version, epoch) = (copy.version, copy.committed);
        arena.finish_copy(place, sequence, &Description { version, epoch, bytes, regions, table_check, checksum });
    }

    fn keeps_nothing(&self) -> bool {
        self.partners.keeping.is_empty() && self.partners.later.is_empty() && self.partners.windows.is_empty()
    }
}

#[tokio::test]
async fn an_offer_of_an_epoch_that_is_over_has_no_answer_and_no_window() {
    let mut partner = Partner::new().await;
    let offer = |epoch| CopyWord::Offer { copy: spoken_of_in(epoch), facts: FACTS };
    let answer = partner.hears(offer(1));
    assert!(matches!(answer[..], [CopyWord::NotKept { .. }]), "where there is no ft-ship: {answer:?}");
    partner.partners.freeze(record(2));
    assert_eq!(partner.hears(offer(1)), [], "while the ranks are gone");
    assert_eq!(partner.hears(offer(2)), [], "before it is known what is restored");
    partner.partners.begin(record(2));
    assert_eq!(partner.hears(offer(1)), []);
    assert_eq!(partner.hears(offer(3)), [], "of one that nobody has agreed");
    assert!(partner.keeps_nothing() && partner.arenas.ranks().is_empty(), "{:?}", partner.partners);
    // Nor is it told that what it has is kept.
    partner.has(spoken_of_in(1));
    assert_eq!(partner.hears(offer(1)), []);
    assert_eq!(partner.hears(offer(2)), [CopyWord::Kept { copy: spoken_of_in(2) }]);
}

#[tokio::test]
async fn that_a_version_is_written_is_not_heard_of_an_epoch_that_is_over() {
    let mut partner = Partner::new().await;
    let written = |epoch| CopyWord::Written { copy: spoken_of_in(epoch) };
    partner.has(spoken_of_in(1));
    assert_eq!(partner.hears(written(1)), [CopyWord::Kept { copy: spoken_of_in(1) }]);
    partner.partners.freeze(record(2));
    assert_eq!(partner.hears(written(1)), [], "while the ranks are gone");
    assert_eq!(partner.hears(written(2)), [], "before it is known what is restored");
    partner.partners.begin(record(2));
    assert_eq!(partner.hears(written(1)), []);
    // One that comes in this epoch is not ended by what was said of it in the one before.
    partner.is_being_sent(spoken_of_in(2));
    assert_eq!(partner.hears(written(1)), []);
    assert!(matches!(partner.partners.keeping[&0].stay, Stay::Open(_)), "{:?}", partner.partners.keeping);
    assert_eq!(partner.hears(written(2)), []);
    assert_eq!(partner.partners.keeping[&0].stay, Stay::Closing);
}

#[tokio::test]
async fn what_was_on_its_way_when_the_epoch_ended_does_not_become_whole() {
    let mut partner = Partner::new().await;
    partner.is_being_sent(spoken_of_in(1));
    partner.partners.freeze(record(2));
    assert_eq!(partner.hears(CopyWord::Written { copy: spoken_of_in(1) }), []);
    assert!(partner.partners.keeping.is_empty() && !partner.partners.is_still(), "its window is being closed");
    partner.partners.is_closed(&mut partner.arenas, 0, WINDOW);
    assert!(partner.arenas.describe(0, (4, 1)).is_none());
}

#[tokio::test]
async fn a_copy_is_had_from_a_third_node_for_the_node_of_its_rank_alone() {
    let mut partner = Partner::new().await;
    let through = |copy| CopyWord::WantThrough { copy, holder: 2 };
    let answer = partner.hears(through(spoken_of_in(1)));
    let refused = matches!(&answer[..], [CopyWord::NotReadable { copy, .. }] if *copy == spoken_of_in(1));
    assert!(refused && partner.partners.fetching.is_empty(), "where there is no ft-ship: {answer:?}");
    assert_eq!(partner.hears(through(CopyName { rank: 1, ..spoken_of_in(1) })), [], "of a rank that is elsewhere");
    assert_eq!(partner.hears(through(spoken_of_in(2))), [], "of an epoch that is not");
    partner.partners.freeze(record(2));
    assert_eq!(partner.hears(through(spoken_of_in(1))), []);
}

#[tokio::test]
async fn a_node_to_which_nothing_came_is_asked_last_for_the_next_version() {
    let mut partner = Partner::new().await;
    partner.partners.add_node("host2".into());
    let three = EpochRecord { nodes: ftd_core::Members::of((0..3).map(NodeId)), ..record(1) };
    partner.partners.begin(three);
    let before = partner.partners.in_turn();
    partner.partners.does_not_reach(&mut partner.job, before[0], "nothing has moved");
    assert_eq!(partner.partners.in_turn(), [before[1], before[0]]);
    partner.partners.freeze(record(2));
    assert!(partner.partners.unreached.contains_key(&before[0]), "nor in the next epoch");
}

#[tokio::test]
async fn what_could_not_be_read_straight_is_had_through_a_third_node_at_once() {
    let mut partner = Partner::new().await;
    partner.partners.add_node("host2".into());
    partner.partners.begin(EpochRecord { nodes: ftd_core::Members::of((0..3).map(NodeId)), ..record(1) });
    let copy = CopyName { rank: 1, ..spoken_of_in(1) };
    let fetching = |ways: Ways| {
        let (now, from) = (Instant::now(), ways.holder);
        Fetching { copy, from, ways, since: now, back: Back::Asked(now), facts: None, into: None }
    };
    let readable = CopyWord::Readable { copy, facts: FACTS, target: TARGET, address: Vec::new() };
    partner.partners.fetching.insert(1, fetching(Ways::from(OWNER)));
    let next = CopyName { turn: 1, ..copy };
    let said = partner.hears_round(readable.clone());
    assert_eq!(said, [CopyWord::Read { copy }, CopyWord::WantThrough { copy: next, holder: OWNER.0 }]);
    assert_eq!(partner.partners.fetching[&1].from, NodeId(2));
    // For another node nothing is had by a way that does not go straight.
    let behalf = Some((NodeId(2), next));
    partner.partners.fetching.insert(1, fetching(Ways { behalf, ..Ways::from(OWNER) }));
    let said = partner.hears_round(readable);
    let refused = matches!(&said[..], [CopyWord::Read { .. }, CopyWord::NotReadable { copy, .. }] if *copy == next);
    assert!(refused && partner.partners.fetching.is_empty(), "{said:?}");
}

#[tokio::test]
async fn a_version_goes_to_whom_it_can_reach_straight_and_is_tried_elsewhere_when_nobody_else_has_room() {
    const OTHER: NodeId = NodeId(2);
    let mut partner = Partner::new().await;
    partner.partners.add_node("host2".into());
    partner.partners.begin(EpochRecord { nodes: ftd_core::Members::of((0..3).map(NodeId)), ..record(1) });
    let turn = |turn| CopyName { turn, ..spoken_of_in(1) };
    let offer = |at| vec![CopyWord::Offer { copy: turn(at), facts: FACTS }];
    let room = |at| CopyWord::Room { copy: turn(at), target: TARGET, address: Vec::new() };
    let not_kept = |at| CopyWord::NotKept { copy: turn(at), reason: "no memory".into(), again: false };
    let offered = |partner: &mut Partner, to| {
        let now = Instant::now();
        let sending = Sending {
            copy: turn(0),
            facts: FACTS,
            place: 0,
            to,
            way: Way::Offered(now),
            since: now,
            began: now,
            failures: 0,
            moved: 0,
            refused: BTreeMap::new(),
            round: BTreeSet::new(),
            straight: false,
        };
        partner.partners.queues.insert(0, Queue { now: Some(sending), ..Queue::default() });
    };
    offered(&mut partner, OWNER);
    assert_eq!(partner.hears_round(room(0)), offer(1));
    assert_eq!(partner.partners.queues[&0].now.as_ref().unwrap().to, OTHER);
    assert_eq!(partner.partners.in_turn(), [OTHER, OWNER]);
    assert_eq!(partner.answers(not_kept(1), (OTHER, false)), offer(2));
    assert_eq!(partner.partners.queues[&0].now.as_ref().unwrap().to, OWNER);
    let passed_over = partner.partners.has_no_way_to(&mut partner.job, &partner.arenas, OWNER, turn(2));
    assert!(!passed_over && partner.partners.queues[&0].now.is_some(), "it has room, and nobody else has");
    // Where that was in vain, the next version stays here at once, and the node comes last for as long as it would.
    partner.partners.does_not_reach(&mut partner.job, OWNER, "nothing has moved");
    offered(&mut partner, OTHER);
    assert_eq!(partner.answers(not_kept(0), (OTHER, false)), offer(1));
    assert_eq!(partner.hears_round(room(1)), []);
    assert!(partner.partners.queues[&0].now.is_none());
    let of_late = partner.partners.unreached[&OWNER];
    assert!(of_late.tried && of_late.until > Instant::now() + Duration::from_secs(60), "{of_late:?}");
}
