//! What goes up and what comes down the tree.

use super::{CodecError, held, parts, record};
use ft_proto::v1;
use ftd_core::due::Asked;
use ftd_core::holdings::Restoration;
use ftd_core::inventory::Committed;
use ftd_core::joined::Joined;
use ftd_core::word::{Decree, Joiners, Left, NodeWord};
use ftd_core::{Cause, Family, GroupId, Level, Micros, NodeId, Process, Rank, SlotId, Version, WorldId};
use std::collections::BTreeMap;

pub fn word_out(word: &NodeWord) -> v1::NodeWord {
    v1::NodeWord {
        ready: word.ready,
        holdings: word.holdings.as_ref().map(held::holdings_out),
        offered: word.offered,
        chosen: word.chosen,
        initialized: word.initialized,
        restored: word.restored,
        joined: joined_out(&word.joined),
        finished: word.finished,
        left: word.left.map(left_out),
        committed: word.committed.as_ref().map(committed_out),
        due: Some(v1::Asked { questions: word.due.questions, taken: word.due.taken, cost: word.due.cost.0 }),
        wanted: word.wanted,
        surveyed: word.surveyed,
        dead: word.dead.map(record::process_out),
        answered: word.answered,
        causes: causes_out(&word.causes),
        joiners: joiners_out(&word.joiners),
        reading: word.reading,
        early: word.early,
    }
}

pub fn word_in(word: v1::NodeWord) -> Result<NodeWord, CodecError> {
    let v1::Asked { questions, taken, cost } = word.due.unwrap_or_default();
    Ok(NodeWord {
        ready: word.ready,
        holdings: word.holdings.map(held::holdings_in),
        offered: word.offered,
        chosen: word.chosen,
        initialized: word.initialized,
        restored: word.restored,
        joined: joined_in(word.joined)?,
        finished: word.finished,
        left: word.left.map(left_in),
        committed: word.committed.map(committed_in).transpose()?,
        due: Asked { questions, taken, cost: Micros(cost) },
        wanted: word.wanted,
        surveyed: word.surveyed,
        dead: word.dead.map(record::process_in),
        answered: word.answered,
        causes: causes_in(word.causes)?,
        joiners: joiners_in(word.joiners),
        reading: word.reading,
        early: word.early,
    })
}

pub fn decree_out(decree: &Decree) -> v1::Decree {
    let complete = |((group, level), version): (&(GroupId, Level), &Version)| v1::Complete {
        group: group.0,
        level: parts::level_out(*level) as i32,
        version: version.0,
    };
    v1::Decree {
        release: decree.release,
        restoration: decree.restoration.as_ref().map(restoration_out),
        offered: decree.offered,
        chosen: decree.chosen,
        initialized: decree.initialized,
        restored: decree.restored,
        joined: joined_out(&decree.joined),
        finished: decree.finished,
        left: decree.left.map(left_out),
        complete: decree.complete.iter().map(complete).collect(),
        due: Some(held::granted_out(&decree.due)),
        survey: decree.survey,
        surveyed: decree.surveyed,
        dead: decree.dead.map(record::process_out),
        answered: decree.answered,
        causes: causes_out(&decree.causes),
        joiners: joiners_out(&decree.joiners),
        reading: decree.reading,
    }
}

pub fn decree_in(decree: v1::Decree) -> Result<Decree, CodecError> {
    let complete = |at: v1::Complete| Ok(((GroupId(at.group), parts::level_in(at.level())?), Version(at.version)));
    Ok(Decree {
        release: decree.release,
        restoration: decree.restoration.map(restoration_in).transpose()?,
        offered: decree.offered,
        chosen: decree.chosen,
        initialized: decree.initialized,
        restored: decree.restored,
        joined: joined_in(decree.joined)?,
        finished: decree.finished,
        left: decree.left.map(left_in),
        complete: decree.complete.into_iter().map(complete).collect::<Result<_, CodecError>>()?,
        due: held::granted_in(decree.due.unwrap_or_default())?,
        survey: decree.survey,
        surveyed: decree.surveyed,
        dead: decree.dead.map(record::process_in),
        answered: decree.answered,
        causes: causes_in(decree.causes)?,
        joiners: joiners_in(decree.joiners),
        reading: decree.reading,
    })
}

fn restoration_out(restoration: &Restoration) -> v1::Restoration {
    v1::Restoration {
        choice: restoration.choice.iter().map(|(group, stamp)| parts::chosen_out(*group, *stamp)).collect(),
        safe: restoration.safe.iter().map(|(group, stamp)| parts::chosen_out(*group, Some(*stamp))).collect(),
    }
}

fn restoration_in(restoration: v1::Restoration) -> Result<Restoration, CodecError> {
    let safe = |chosen: v1::Chosen| {
        let stamp = chosen.stamp.map(parts::stamp_in).ok_or(CodecError::Missing("safe version"))?;
        Ok((GroupId(chosen.group), stamp))
    };
    let choice = restoration.choice.into_iter();
    Ok(Restoration {
        choice: choice.map(|chosen| (GroupId(chosen.group), chosen.stamp.map(parts::stamp_in))).collect(),
        safe: restoration.safe.into_iter().map(safe).collect::<Result<_, CodecError>>()?,
    })
}

fn left_out(left: Left) -> v1::Left {
    v1::Left { killed: left.killed, status: left.status }
}

fn left_in(left: v1::Left) -> Left {
    Left { killed: left.killed, status: left.status }
}

fn committed_out(committed: &Committed) -> v1::Committed {
    let at = committed.iter().map(|((group, level), versions)| v1::CommittedAt {
        group: group.0,
        level: parts::level_out(*level) as i32,
        versions: versions.iter().map(|version| version.0).collect(),
    });
    v1::Committed { at: at.collect() }
}

fn committed_in(committed: v1::Committed) -> Result<Committed, CodecError> {
    let at = committed.at.into_iter().map(|at| {
        let level = parts::level_in(at.level())?;
        Ok(((GroupId(at.group), level), at.versions.into_iter().map(Version).collect()))
    });
    at.collect()
}

fn family_out(family: Family) -> v1::Family {
    match family {
        Family::OpenMpi => v1::Family::OpenMpi,
        Family::Mpich => v1::Family::Mpich,
    }
}

/// Who has joined. [`Joined::mixed`] names everybody as soon as there are two families: the one that is not there is stood in for by a
/// process that no job has.
fn joined_out(joined: &Joined) -> Vec<v1::Joined> {
    let nobody = Process { world: WorldId(u64::MAX), rank: Rank(u32::MAX), ..Process::default() };
    let nobody = Process { incarnation: u32::MAX, role: ftd_core::Role::Replica, ..nobody };
    let mut all = joined.clone();
    all.insert(Family::OpenMpi, nobody);
    all.insert(Family::Mpich, nobody);
    let named = all.mixed().unwrap_or_default().into_iter().filter(|(process, _)| *process != nobody);
    named
        .map(|(process, family)| v1::Joined {
            family: family_out(family) as i32,
            process: Some(record::process_out(process)),
        })
        .collect()
}

fn joined_in(joined: Vec<v1::Joined>) -> Result<Joined, CodecError> {
    let one = |joined: v1::Joined| {
        let family = match joined.family() {
            v1::Family::OpenMpi => Family::OpenMpi,
            v1::Family::Mpich => Family::Mpich,
            v1::Family::Unspecified => return Err(CodecError::Missing("MPI")),
        };
        Ok((family, parts::process_in(joined.process)?))
    };
    joined.into_iter().map(one).collect()
}

fn causes_out(causes: &BTreeMap<Process, Cause>) -> Vec<v1::KnownCause> {
    let known = causes.iter().map(|(process, cause)| v1::KnownCause {
        process: Some(record::process_out(*process)),
        cause: Some(record::cause_out(*cause)),
    });
    known.collect()
}

fn causes_in(causes: Vec<v1::KnownCause>) -> Result<BTreeMap<Process, Cause>, CodecError> {
    let known = causes.into_iter().map(|known| {
        let cause = known.cause.ok_or(CodecError::Missing("cause"))?;
        Ok((parts::process_in(known.process)?, record::cause_in(cause)?))
    });
    known.collect()
}

fn joiners_out(joiners: &Joiners) -> Vec<v1::Joiner> {
    let joiner = joiners
        .iter()
        .map(|(node, slots)| v1::Joiner { node: node.0, slots: slots.iter().map(|slot| slot.0).collect() });
    joiner.collect()
}

fn joiners_in(joiners: Vec<v1::Joiner>) -> Joiners {
    joiners.into_iter().map(|one| (NodeId(one.node), one.slots.into_iter().map(SlotId).collect())).collect()
}
