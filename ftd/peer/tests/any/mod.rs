//! Any message that an agent can say.

use ft_peer::codec;
use ftd_core::due::Asked;
use ftd_core::fence::Beat;
use ftd_core::holdings::{Held, Holdings, Restoration};
use ftd_core::joined::Joined;
use ftd_core::ranks::RankSet;
use ftd_core::tree::Direction;
use ftd_core::word::{Decree, Left, NodeWord};
use ftd_core::*;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use std::sync::Arc;

pub fn ranks() -> impl Strategy<Value = RankSet> {
    vec((any::<u32>(), 0u32..1000), 0..6).prop_map(|runs| {
        runs.into_iter().fold(RankSet::new(), |mut all, (first, length)| {
            all.extend(&RankSet::run(Rank(first), Rank(first.saturating_add(length))));
            all
        })
    })
}

fn process() -> impl Strategy<Value = Process> {
    (any::<u64>(), any::<u32>(), any::<bool>(), any::<u32>()).prop_map(|(world, rank, replica, incarnation)| Process {
        world: WorldId(world),
        rank: Rank(rank),
        role: if replica { Role::Replica } else { Role::Primary },
        incarnation,
    })
}

fn stamp() -> impl Strategy<Value = Stamp> {
    any::<(u64, u64)>().prop_map(|(version, epoch)| Stamp { version: Version(version), epoch: EpochId(epoch) })
}

fn own_end() -> impl Strategy<Value = OwnEnd> {
    prop_oneof![
        any::<i32>().prop_map(OwnEnd::Abort),
        any::<i32>().prop_map(OwnEnd::ExitCode),
        Just(OwnEnd::NoFinalize),
        any::<i32>().prop_map(OwnEnd::Script)
    ]
}

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        any::<i32>().prop_map(Cause::Signal),
        proptest::sample::select(vec![
            Cause::OutOfMemory,
            Cause::CpuLimit,
            Cause::Unknown,
            Cause::SlotLost,
            Cause::AgentLost,
            Cause::WorldServerLost,
            Cause::NodeSilent,
            Cause::Fenced,
            Cause::NeverJoined,
        ]),
        stamp().prop_map(Cause::NotFetched),
        own_end().prop_map(Cause::Own),
    ]
}

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        process().prop_map(Subject::Process),
        any::<u32>().prop_map(|slot| Subject::Slot(SlotId(slot))),
        any::<u32>().prop_map(|node| Subject::Node(NodeId(node))),
    ]
}

fn failures() -> impl Strategy<Value = FailureSet> {
    let failure = (subject(), cause(), any::<u32>());
    (vec(failure, 0..5), vec((process(), own_end()), 0..4), any::<u32>()).prop_map(|(failures, collateral, others)| {
        let mut set = FailureSet::new();
        for (subject, cause, node) in failures {
            set.insert(Failure { subject, cause, node: NodeId(node) });
        }
        collateral.into_iter().for_each(|(process, end)| set.insert_collateral(Collateral { process, end }));
        set.with_others(others)
    })
}

fn slots() -> impl Strategy<Value = Slots> {
    let state = proptest::sample::select(vec![SlotState::Active, SlotState::Parked, SlotState::Lost]);
    vec((1u32..4, 0u32..9, state), 0..12).prop_map(|entries| {
        let mut slot = 0;
        Slots::of(entries.into_iter().map(|(gap, node, state)| {
            slot += gap;
            SlotEntry { slot: SlotId(slot), node: NodeId(node), state }
        }))
    })
}

fn members() -> impl Strategy<Value = Members> {
    btree_set(0u32..5000, 0..20).prop_map(|nodes| Members::of(nodes.into_iter().map(NodeId)))
}

fn record() -> impl Strategy<Value = EpochRecord> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    let placed = btree_set(0u32..500, 0..12);
    let streak = prop_oneof![
        Just(record::Suspect::Program),
        any::<u32>().prop_map(|rank| record::Suspect::Rank(Rank(rank))),
        any::<u32>().prop_map(|rank| record::Suspect::ShepherdOf(Rank(rank))),
        any::<u32>().prop_map(|node| record::Suspect::ServerOf(NodeId(node))),
        Just(record::Suspect::Nodes),
    ];
    let streaks = vec((streak, any::<u32>()), 0..3);
    let entry = (any::<u64>(), failures(), any::<u64>(), btree_map(any::<u32>(), any::<u64>(), 0..3));
    let outcome = option::of((any::<i32>(), option::of(".*")));
    let strategy = proptest::sample::select(vec![
        record::Strategy::Fresh,
        record::Strategy::StandbyExec,
        record::Strategy::StandbyInit,
    ]);
    let rest = (placed, streaks, vec(entry, 0..3), outcome, strategy, btree_set(any::<u32>(), 0..4));
    (numbers, slots(), members(), failures(), rest).prop_map(|(numbers, slots, nodes, failures, rest)| {
        let (placed, streaks, history, outcome, strategy, joined) = rest;
        EpochRecord {
            epoch: EpochId(numbers.0),
            began: Micros(numbers.1),
            mode: if numbers.0 % 2 == 0 { Mode::Reinit } else { Mode::None },
            terms: Terms::default(),
            world: WorldId(numbers.2),
            world_size: numbers.3,
            placement: Placement::from_slots(placed.into_iter().map(SlotId)),
            slots,
            nodes,
            joined: joined.into_iter().map(NodeId).collect(),
            failures,
            agreed_after: Micros(numbers.1 / 2),
            strategy,
            streaks: streaks.into_iter().map(|(suspect, deaths)| Streak { suspect, deaths }).collect(),
            history: history
                .into_iter()
                .map(|(epoch, failures, at, restored)| HistoryEntry {
                    epoch: EpochId(epoch),
                    failures,
                    at: Micros(at),
                    restored: restored.into_iter().map(|(group, version)| (GroupId(group), Version(version))).collect(),
                })
                .collect(),
            outcome: outcome.map(|(status, reason)| Outcome { status, reason }),
        }
    })
}

fn level() -> impl Strategy<Value = Level> {
    proptest::sample::select(Level::ALL.to_vec())
}

fn joined() -> impl Strategy<Value = Joined> {
    let family = proptest::sample::select(vec![Family::OpenMpi, Family::Mpich]);
    vec((family, process()), 0..4).prop_map(|all| all.into_iter().collect())
}

fn left() -> impl Strategy<Value = Option<Left>> {
    option::of(any::<(bool, i32)>().prop_map(|(killed, status)| Left { killed, status }))
}

fn causes() -> impl Strategy<Value = std::collections::BTreeMap<Process, Cause>> {
    btree_map(process(), cause(), 0..4)
}

fn slot_ids() -> impl Strategy<Value = std::collections::BTreeSet<SlotId>> {
    btree_set(any::<u32>().prop_map(SlotId), 0..6)
}

fn joiners() -> impl Strategy<Value = word::Joiners> {
    btree_map(any::<u32>().prop_map(NodeId), slot_ids(), 0..4)
}

fn word() -> impl Strategy<Value = NodeWord> {
    let versions = btree_set(any::<u64>().prop_map(Version), 0..4);
    let committed = option::of(btree_map((any::<u32>().prop_map(GroupId), level()), versions, 0..4));
    let facts = (any::<[bool; 8]>(), joined(), left(), any::<[u64; 5]>(), option::of((process(), any::<i32>())));
    (facts, holdings(), committed, causes(), joiners()).prop_map(|(facts, holdings, committed, causes, joiners)| {
        let ([ready, offered, chosen, initialized, restored, finished, reading, early], joined, left, numbers, dead) =
            facts;
        let [questions, taken, cost, wanted, surveyed] = numbers;
        let due = Asked { questions, taken, cost: Micros(cost) };
        let (dead, answered) = dead.unzip();
        NodeWord {
            ready,
            holdings,
            offered,
            chosen,
            initialized,
            restored,
            joined,
            finished,
            left,
            committed,
            due,
            wanted,
            surveyed,
            dead,
            answered,
            causes,
            joiners,
            reading,
            early,
        }
    })
}

fn restoration() -> impl Strategy<Value = Restoration> {
    let group = || any::<u32>().prop_map(GroupId);
    (btree_map(group(), option::of(stamp()), 0..4), btree_map(group(), stamp(), 0..4))
        .prop_map(|(choice, safe)| Restoration { choice, safe })
}

fn decree() -> impl Strategy<Value = Decree> {
    let complete = btree_map((any::<u32>().prop_map(GroupId), level()), any::<u64>().prop_map(Version), 0..4);
    let facts = (any::<[bool; 7]>(), joined(), left(), any::<[u64; 2]>(), option::of((process(), any::<i32>())));
    (facts, option::of(restoration()), complete, causes(), joiners(), granted()).prop_map(
        |(facts, restoration, complete, causes, joiners, due)| {
            let ([release, offered, chosen, initialized, restored, finished, reading], joined, left, numbers, dead) =
                facts;
            let [survey, surveyed] = numbers;
            let (dead, answered) = dead.unzip();
            Decree {
                release,
                restoration,
                offered,
                chosen,
                initialized,
                restored,
                joined,
                finished,
                left,
                complete,
                due,
                survey,
                surveyed,
                dead,
                answered,
                causes,
                joiners,
                reading,
            }
        },
    )
}

fn holdings() -> impl Strategy<Value = Option<Holdings>> {
    let stamps = || btree_set(stamp(), 0..5);
    let held = (stamps(), stamps()).prop_map(|(somewhere, elsewhere)| Held { somewhere, elsewhere });
    option::of(vec((any::<u32>().prop_map(GroupId), held), 0..5).prop_map(|groups| groups.into_iter().collect()))
}

fn granted() -> impl Strategy<Value = due::Granted> {
    let yes = btree_set(0u64..100_000, 0..20).prop_map(|yes| yes.into_iter().collect::<Vec<_>>());
    (yes, 0u64..100)
        .prop_filter_map("answers", |(yes, more)| due::Granted::of(yes.last().map_or(0, |last| last + 1) + more, yes))
}

fn beat() -> impl Strategy<Value = Beat> {
    any::<(u64, u64)>().prop_map(|(incarnation, sequence)| Beat { incarnation, sequence })
}

fn straight() -> impl Strategy<Value = PeerMessage> {
    let epoch = || any::<u64>().prop_map(EpochId);
    let beats = prop_oneof![
        (beat(), epoch(), any::<bool>()).prop_map(|(beat, epoch, unheard)| PeerMessage::Heartbeat {
            beat,
            epoch,
            unheard
        }),
        (beat(), epoch(), any::<bool>()).prop_map(|(beat, epoch, still)| PeerMessage::Acknowledge {
            beat,
            epoch,
            still
        }),
        epoch().prop_map(|epoch| PeerMessage::Heard { epoch }),
    ];
    let direction = proptest::sample::select(vec![Direction::Up, Direction::Down]);
    let accused = btree_set(any::<u32>().prop_map(NodeId), 0..6);
    let others = prop_oneof![
        epoch().prop_map(|epoch| PeerMessage::AskForRecord { epoch }),
        (any::<u64>(), record())
            .prop_map(|(at, record)| PeerMessage::Record { revision: Revision(at), record: Arc::new(record) }),
        (epoch(), any::<u64>(), accused).prop_map(|(epoch, revision, accused)| PeerMessage::Accuse {
            epoch,
            revision: Revision(revision),
            accused
        }),
        (epoch(), any::<u64>(), word()).prop_map(|(epoch, number, word)| PeerMessage::Up {
            epoch,
            number,
            word: Box::new(word)
        }),
        (epoch(), any::<u64>(), decree()).prop_map(|(epoch, number, decree)| PeerMessage::Down {
            epoch,
            number,
            decree: Box::new(decree)
        }),
        (epoch(), direction, any::<u64>()).prop_map(|(epoch, direction, number)| PeerMessage::Received {
            epoch,
            direction,
            number
        }),
        (epoch(), btree_map(stamp(), ranks(), 0..4)).prop_map(|(epoch, copies)| PeerMessage::Offer { epoch, copies }),
        (epoch(), option::of(any::<u64>())).prop_map(|(epoch, copies)| PeerMessage::OfferNoted { epoch, copies }),
        (members(), slots()).prop_map(|(nodes, slots)| PeerMessage::Slots { nodes, slots }),
        any::<u32>().prop_map(|nodes| PeerMessage::SlotsNoted { nodes }),
        (epoch(), any::<u64>()).prop_map(|(epoch, ago)| PeerMessage::StoreMissed { epoch, ago: Micros(ago) }),
        (epoch(), slot_ids()).prop_map(|(epoch, slots)| PeerMessage::Join { epoch, slots }),
    ];
    prop_oneof![1 => beats, 5 => others]
}

/// Any message.
pub fn message() -> impl Strategy<Value = PeerMessage> {
    let relay = (any::<u32>(), any::<u32>(), straight()).prop_map(|(origin, to, message)| PeerMessage::Relay {
        origin: NodeId(origin),
        to: NodeId(to),
        message: Box::new(message),
    });
    prop_oneof![9 => straight(), 1 => relay]
}

/// Its bytes.
pub fn bytes(message: &PeerMessage) -> Vec<u8> {
    codec::encode(message).unwrap_or_else(|error| panic!("{error}: {message:?}"))
}
