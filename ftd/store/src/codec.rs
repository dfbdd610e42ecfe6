//! What agents agree on as bytes (protobuf), and back: the record, and the parts of it that they also tell each other.

use ft_proto::v1;
use ftd_core::members::NodeRun;
use ftd_core::placement::Run;
use ftd_core::slots::{Home, StateRun};
use ftd_core::{
    Cause, Collateral, EpochId, EpochRecord, Failure, FailureSet, GroupId, HistoryEntry, Members, Micros, Mode, NodeId,
    Outcome, OwnEnd, Placement, Process, Rank, Role, SlotId, SlotState, Slots, Stamp, Strategy, Streak, Subject,
    Suspect, Terms, Version, WorldId,
};
use prost::Message;

/// Why bytes are no record.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// No protobuf.
    #[error("the record is damaged: {0}")]
    Damaged(#[from] prost::DecodeError),
    /// Written by another release.
    #[error("the record has format {0}, this release reads format {FORMAT}", FORMAT = v1::FORMAT)]
    Format(u32),
    /// A field that must be there is not, or says what cannot be.
    #[error("the record has no valid {0}")]
    Missing(&'static str),
}

/// The record as bytes.
pub fn encode_record(record: &EpochRecord) -> Vec<u8> {
    v1::EpochRecord {
        format: v1::FORMAT,
        epoch: record.epoch.0,
        began: record.began.0,
        agreed_after: record.agreed_after.0,
        mode: match record.mode {
            Mode::None => v1::Mode::None,
            Mode::Reinit => v1::Mode::Reinit,
        } as i32,
        terms: Some(terms_out(record.terms)),
        world: record.world.0,
        world_size: record.world_size,
        placement: record.placement.runs().iter().map(|r| v1::Run { slot: r.slot.0, length: r.length }).collect(),
        homes: record.slots.homes().iter().map(home_out).collect(),
        states: record.slots.states().iter().map(states_out).collect(),
        nodes: record.nodes.runs().iter().map(nodes_out).collect(),
        joined: record.joined.iter().map(|node| node.0).collect(),
        failures: Some(set_out(&record.failures)),
        strategy: match record.strategy {
            Strategy::Fresh => v1::Strategy::Fresh,
            Strategy::StandbyExec => v1::Strategy::StandbyExec,
            Strategy::StandbyInit => v1::Strategy::StandbyInit,
        } as i32,
        streaks: record.streaks.iter().map(streak_out).collect(),
        history: record
            .history
            .iter()
            .map(|h| v1::HistoryEntry {
                epoch: h.epoch.0,
                failures: Some(set_out(&h.failures)),
                at: h.at.0,
                restored: h.restored.iter().map(|(group, version)| (group.0, version.0)).collect(),
            })
            .collect(),
        outcome: record.outcome.as_ref().map(|o| v1::Outcome { status: o.status, reason: o.reason.clone() }),
    }
    .encode_to_vec()
}

/// The record from bytes.
///
/// # Errors
/// When the bytes are damaged, or from a newer release.
pub fn decode_record(bytes: &[u8]) -> Result<EpochRecord, CodecError> {
    let record = v1::EpochRecord::decode(bytes)?;
    if record.format != v1::FORMAT {
        return Err(CodecError::Format(record.format));
    }
    let mode = match record.mode() {
        v1::Mode::None => Mode::None,
        v1::Mode::Reinit => Mode::Reinit,
        v1::Mode::Unspecified => return Err(CodecError::Missing("mode")),
    };
    let strategy = match record.strategy() {
        v1::Strategy::Fresh => Strategy::Fresh,
        v1::Strategy::StandbyExec => Strategy::StandbyExec,
        v1::Strategy::StandbyInit => Strategy::StandbyInit,
        v1::Strategy::Unspecified => return Err(CodecError::Missing("strategy")),
    };
    let mut next = 0u32;
    let mut runs = Vec::with_capacity(record.placement.len());
    for run in &record.placement {
        runs.push(Run { rank: Rank(next), slot: SlotId(run.slot), length: run.length });
        next = next.checked_add(run.length).ok_or(CodecError::Missing("placement"))?;
    }
    Ok(EpochRecord {
        epoch: EpochId(record.epoch),
        began: Micros(record.began),
        mode,
        terms: terms_in(record.terms.ok_or(CodecError::Missing("terms"))?)?,
        world: WorldId(record.world),
        world_size: record.world_size,
        placement: Placement::from_runs(runs).ok_or(CodecError::Missing("placement"))?,
        slots: slots_in(&record.homes, &record.states)?,
        nodes: Members::from_runs(record.nodes.iter().map(nodes_in).collect()).ok_or(CodecError::Missing("nodes"))?,
        joined: record.joined.iter().copied().map(NodeId).collect(),
        failures: set_in(record.failures.unwrap_or_default())?,
        agreed_after: Micros(record.agreed_after),
        strategy,
        streaks: record.streaks.iter().map(streak_in).collect::<Result<_, _>>()?,
        history: record
            .history
            .into_iter()
            .map(|h| {
                Ok(HistoryEntry {
                    epoch: EpochId(h.epoch),
                    failures: set_in(h.failures.unwrap_or_default())?,
                    at: Micros(h.at),
                    restored: h.restored.into_iter().map(|(group, v)| (GroupId(group), Version(v))).collect(),
                })
            })
            .collect::<Result<_, CodecError>>()?,
        outcome: record.outcome.map(|o| Outcome { status: o.status, reason: o.reason }),
    })
}

fn terms_out(terms: Terms) -> v1::Terms {
    let Terms { period, timeout, patience, observers, fan_out } = terms;
    v1::Terms { period: period.0, timeout: timeout.0, patience: patience.0, observers, fan_out }
}

fn terms_in(terms: v1::Terms) -> Result<Terms, CodecError> {
    let v1::Terms { period, timeout, patience, observers, fan_out } = terms;
    if period == 0 || timeout == 0 || observers == 0 || fan_out == 0 {
        return Err(CodecError::Missing("terms"));
    }
    let (period, timeout, patience) = (Micros(period), Micros(timeout), Micros(patience));
    Ok(Terms { period, timeout, patience, observers, fan_out })
}

/// Where slots are, as it is written.
pub fn home_out(home: &Home) -> v1::Home {
    v1::Home { slot: home.slot.0, node: home.node.0, nodes: home.nodes, each: home.each }
}

/// The state of slots, as it is written.
pub fn states_out(run: &StateRun) -> v1::StateRun {
    let state = match run.state {
        SlotState::Active => v1::SlotState::Active,
        SlotState::Parked => v1::SlotState::Parked,
        SlotState::Lost => v1::SlotState::Lost,
    };
    v1::StateRun { slot: run.slot.0, length: run.length, state: state as i32 }
}

/// Slots, as they were read.
///
/// # Errors
/// [`CodecError::Missing`].
pub fn slots_in(homes: &[v1::Home], states: &[v1::StateRun]) -> Result<Slots, CodecError> {
    let home =
        |home: &v1::Home| Home { slot: SlotId(home.slot), node: NodeId(home.node), nodes: home.nodes, each: home.each };
    let state = |run: &v1::StateRun| {
        let state = match run.state() {
            v1::SlotState::Active => SlotState::Active,
            v1::SlotState::Parked => SlotState::Parked,
            v1::SlotState::Lost => SlotState::Lost,
            v1::SlotState::Unspecified => return Err(CodecError::Missing("slot state")),
        };
        Ok(StateRun { slot: SlotId(run.slot), length: run.length, state })
    };
    let states = states.iter().map(state).collect::<Result<_, _>>()?;
    Slots::from_runs(homes.iter().map(home).collect(), states).ok_or(CodecError::Missing("slots"))
}

/// A run of nodes, as it is written.
pub fn nodes_out(run: &NodeRun) -> v1::NodeRun {
    v1::NodeRun { node: run.node.0, count: run.count, member: run.member }
}

/// A run of nodes, as it was read.
pub fn nodes_in(run: &v1::NodeRun) -> NodeRun {
    NodeRun { node: NodeId(run.node), count: run.count, member: run.member }
}

/// A process, as it is written.
pub fn process_out(process: Process) -> v1::Process {
    v1::Process {
        world: process.world.0,
        rank: process.rank.0,
        replica: process.role == Role::Replica,
        incarnation: process.incarnation,
    }
}

/// A process, as it was read.
pub fn process_in(process: v1::Process) -> Process {
    Process {
        world: WorldId(process.world),
        rank: Rank(process.rank),
        role: if process.replica { Role::Replica } else { Role::Primary },
        incarnation: process.incarnation,
    }
}

fn own_out(end: OwnEnd) -> v1::OwnEnd {
    use v1::own_end::End;
    v1::OwnEnd {
        end: Some(match end {
            OwnEnd::Abort(code) => End::Abort(code),
            OwnEnd::ExitCode(code) => End::ExitCode(code),
            OwnEnd::NoFinalize => End::NoFinalize(true),
            OwnEnd::Script(signal) => End::Script(signal),
        }),
    }
}

fn own_in(end: v1::OwnEnd) -> Result<OwnEnd, CodecError> {
    use v1::own_end::End;
    Ok(match end.end.ok_or(CodecError::Missing("end"))? {
        End::Abort(code) => OwnEnd::Abort(code),
        End::ExitCode(code) => OwnEnd::ExitCode(code),
        End::NoFinalize(_) => OwnEnd::NoFinalize,
        End::Script(signal) => OwnEnd::Script(signal),
    })
}

/// A cause, as it is written.
pub fn cause_out(cause: Cause) -> v1::Cause {
    use v1::cause::Cause as C;
    v1::Cause {
        cause: Some(match cause {
            Cause::Signal(signal) => C::Signal(signal),
            Cause::OutOfMemory => C::OutOfMemory(true),
            Cause::CpuLimit => C::CpuLimit(true),
            Cause::Unknown => C::Unknown(true),
            Cause::SlotLost => C::SlotLost(true),
            Cause::AgentLost => C::AgentLost(true),
            Cause::WorldServerLost => C::WorldServerLost(true),
            Cause::NodeSilent => C::NodeSilent(true),
            Cause::Fenced => C::Fenced(true),
            Cause::NotFetched(Stamp { version, epoch }) => {
                C::NotFetched(v1::Stamp { version: version.0, epoch: epoch.0 })
            }
            Cause::NeverJoined => C::NeverJoined(true),
            Cause::Own(end) => C::Own(own_out(end)),
        }),
    }
}

/// A cause, as it was read.
///
/// # Errors
/// [`CodecError::Missing`].
pub fn cause_in(cause: v1::Cause) -> Result<Cause, CodecError> {
    use v1::cause::Cause as C;
    Ok(match cause.cause.ok_or(CodecError::Missing("cause"))? {
        C::Signal(signal) => Cause::Signal(signal),
        C::OutOfMemory(_) => Cause::OutOfMemory,
        C::CpuLimit(_) => Cause::CpuLimit,
        C::Unknown(_) => Cause::Unknown,
        C::SlotLost(_) => Cause::SlotLost,
        C::AgentLost(_) => Cause::AgentLost,
        C::WorldServerLost(_) => Cause::WorldServerLost,
        C::NodeSilent(_) => Cause::NodeSilent,
        C::Fenced(_) => Cause::Fenced,
        C::NotFetched(v1::Stamp { version, epoch }) => {
            Cause::NotFetched(Stamp { version: Version(version), epoch: EpochId(epoch) })
        }
        C::NeverJoined(_) => Cause::NeverJoined,
        C::Own(end) => Cause::Own(own_in(end)?),
    })
}

fn set_out(set: &FailureSet) -> v1::FailureSet {
    use v1::failure::Subject as S;
    v1::FailureSet {
        failures: set
            .failures()
            .iter()
            .map(|failure| v1::Failure {
                subject: Some(match failure.subject {
                    Subject::Process(process) => S::Process(process_out(process)),
                    Subject::Slot(slot) => S::Slot(slot.0),
                    Subject::Node(node) => S::OfNode(node.0),
                }),
                cause: Some(cause_out(failure.cause)),
                node: failure.node.0,
            })
            .collect(),
        collateral: set
            .collateral()
            .iter()
            .map(|c| v1::Collateral { process: Some(process_out(c.process)), end: Some(own_out(c.end)) })
            .collect(),
        others: set.others(),
    }
}

fn set_in(set: v1::FailureSet) -> Result<FailureSet, CodecError> {
    use v1::failure::Subject as S;
    let mut out = FailureSet::new();
    for failure in set.failures {
        let subject = match failure.subject.ok_or(CodecError::Missing("subject"))? {
            S::Process(process) => Subject::Process(process_in(process)),
            S::Slot(slot) => Subject::Slot(SlotId(slot)),
            S::OfNode(node) => Subject::Node(NodeId(node)),
        };
        let cause = cause_in(failure.cause.ok_or(CodecError::Missing("cause"))?)?;
        out.insert(Failure { subject, cause, node: NodeId(failure.node) });
    }
    for collateral in set.collateral {
        out.insert_collateral(Collateral {
            process: process_in(collateral.process.ok_or(CodecError::Missing("process"))?),
            end: own_in(collateral.end.ok_or(CodecError::Missing("end"))?)?,
        });
    }
    Ok(out.with_others(set.others))
}

fn streak_out(streak: &Streak) -> v1::Streak {
    use v1::streak::Suspect as S;
    let suspect = match streak.suspect {
        Suspect::Program => S::Program(true),
        Suspect::Rank(rank) => S::Rank(rank.0),
        Suspect::ShepherdOf(rank) => S::ShepherdOf(rank.0),
        Suspect::ServerOf(node) => S::ServerOf(node.0),
        Suspect::Nodes => S::Nodes(true),
    };
    v1::Streak { suspect: Some(suspect), deaths: streak.deaths }
}

fn streak_in(streak: &v1::Streak) -> Result<Streak, CodecError> {
    use v1::streak::Suspect as S;
    let suspect = match streak.suspect.ok_or(CodecError::Missing("suspect"))? {
        S::Program(_) => Suspect::Program,
        S::Rank(rank) => Suspect::Rank(Rank(rank)),
        S::ShepherdOf(rank) => Suspect::ShepherdOf(Rank(rank)),
        S::ServerOf(node) => Suspect::ServerOf(NodeId(node)),
        S::Nodes(_) => Suspect::Nodes,
    };
    Ok(Streak { suspect, deaths: streak.deaths })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::SlotEntry;

    fn record() -> EpochRecord {
        let mut failures = FailureSet::new();
        let process = |rank| Process { world: WorldId(2), rank: Rank(rank), role: Role::Primary, incarnation: 0 };
        let causes = [
            Cause::Signal(9),
            Cause::OutOfMemory,
            Cause::CpuLimit,
            Cause::Unknown,
            Cause::SlotLost,
            Cause::AgentLost,
            Cause::WorldServerLost,
            Cause::NodeSilent,
            Cause::Fenced,
            Cause::NeverJoined,
            Cause::NotFetched(Stamp { version: Version(60), epoch: EpochId(2) }),
            Cause::Own(OwnEnd::Abort(-3)),
        ];
        for (rank, cause) in (0..).zip(causes) {
            failures.insert(Failure { subject: Subject::Process(process(rank)), cause, node: NodeId(1) });
        }
        failures.insert(Failure { subject: Subject::Slot(SlotId(4)), cause: Cause::SlotLost, node: NodeId(0) });
        failures.insert(Failure { subject: Subject::Node(NodeId(7)), cause: Cause::NodeSilent, node: NodeId(7) });
        let ends = (40..).zip([OwnEnd::NoFinalize, OwnEnd::ExitCode(3), OwnEnd::Script(15)]);
        ends.for_each(|(rank, end)| failures.insert_collateral(Collateral { process: process(rank), end }));
        EpochRecord {
            epoch: EpochId(3),
            began: Micros(5),
            mode: Mode::Reinit,
            terms: Terms::default(),
            world: WorldId(3),
            world_size: 3,
            placement: Placement::from_slots([SlotId(5), SlotId(0), SlotId(1)]),
            slots: Slots::of([
                SlotEntry { slot: SlotId(0), node: NodeId(0), state: SlotState::Active },
                SlotEntry { slot: SlotId(2), node: NodeId(0), state: SlotState::Lost },
                SlotEntry { slot: SlotId(9), node: NodeId(1), state: SlotState::Parked },
            ]),
            nodes: {
                let mut nodes = Members::of([NodeId(0), NodeId(1), NodeId(7)]);
                nodes.leave(NodeId(7));
                nodes
            },
            joined: [NodeId(1)].into(),
            failures: failures.clone().with_others(99),
            agreed_after: Micros(7),
            strategy: Strategy::Fresh,
            streaks: vec![
                Streak { suspect: Suspect::Program, deaths: 3 },
                Streak { suspect: Suspect::Rank(Rank(1)), deaths: 2 },
                Streak { suspect: Suspect::ShepherdOf(Rank(1)), deaths: 1 },
                Streak { suspect: Suspect::ServerOf(NodeId(0)), deaths: 4 },
                Streak { suspect: Suspect::Nodes, deaths: 9 },
            ],
            history: vec![HistoryEntry {
                epoch: EpochId(1),
                failures,
                at: Micros(31_000_000),
                restored: [(GroupId(0), Version(7))].into(),
            }],
            outcome: Some(Outcome { status: -1, reason: Some("because".into()) }),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let record = record();
        assert_eq!(decode_record(&encode_record(&record)).unwrap(), record);
    }

    #[test]
    fn ten_thousand_nodes_of_which_hundreds_died_are_a_small_record() {
        let (nodes, each) = (10_000u32, 64u32);
        let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let slots = (0..nodes * each).map(|slot| (SlotId(slot), NodeId(slot / each))).collect();
        let first = ftd_core::plan::first_record(
            Mode::Reinit,
            Terms::default(),
            (nodes - 600) * each,
            &members,
            &slots,
            Micros(0),
        );
        let mut record = first.unwrap();
        assert!(encode_record(&record).len() < 200, "{}", encode_record(&record).len());
        for death in 0..300 {
            let mut failures = FailureSet::new();
            let (node, slot) = (NodeId(death * 29 + 3), SlotId((death * 31 + 5) * each + 9));
            failures.insert(Failure { subject: Subject::Node(node), cause: Cause::NodeSilent, node });
            failures.insert(Failure { subject: Subject::Slot(slot), cause: Cause::SlotLost, node });
            record = ftd_core::plan(&record, &failures, &Default::default(), &Default::default()).unwrap();
        }
        let bytes = encode_record(&record);
        assert!(bytes.len() < 100_000, "{}", bytes.len());
        assert_eq!(decode_record(&bytes).unwrap(), record);
    }

    #[test]
    fn another_format_is_refused_by_number() {
        let mut message = v1::EpochRecord::decode(&*encode_record(&record())).unwrap();
        for format in [1, 3] {
            message.format = format;
            let sentence = decode_record(&message.encode_to_vec()).unwrap_err().to_string();
            assert!(sentence.contains(&format!("format {format}, this release reads format 2")), "{sentence}");
        }
    }

    #[test]
    fn a_record_cut_short_is_damaged_or_has_holes_and_never_panics() {
        let bytes = encode_record(&record());
        for cut in 0..bytes.len() {
            let _ = decode_record(&bytes[..cut]);
        }
        assert!(decode_record(&[]).is_err());
    }
}
