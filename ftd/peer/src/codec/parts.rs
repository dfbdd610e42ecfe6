//! What messages are made of: ranks, nodes, slots.

use super::{CodecError, record};
use ft_proto::v1;
use ftd_core::ranks::RankSet;
use ftd_core::{GroupId, Level, Members, Process, Rank, Slots, Stamp};

/// A job has no more nodes. Who walks over the nodes of a message walks over no more than these.
const MOST_NODES: u32 = 1 << 20;

pub fn ranks_out(ranks: &RankSet) -> v1::Ranks {
    let mut before = 0;
    let mut runs = Vec::with_capacity(2 * ranks.runs().len());
    for (first, end) in ranks.runs() {
        runs.extend([first - before, end - first]);
        before = *end;
    }
    v1::Ranks { runs }
}

pub fn ranks_in(ranks: &v1::Ranks) -> Result<RankSet, CodecError> {
    const MISSING: CodecError = CodecError::Missing("ranks");
    if !ranks.runs.len().is_multiple_of(2) {
        return Err(MISSING);
    }
    let mut before = 0u32;
    let mut runs = Vec::with_capacity(ranks.runs.len() / 2);
    for (at, pair) in ranks.runs.chunks_exact(2).enumerate() {
        let first = before.checked_add(pair[0]).ok_or(MISSING)?;
        let end = first.checked_add(pair[1]).ok_or(MISSING)?;
        if end == first || (at > 0 && first == before) {
            return Err(MISSING);
        }
        runs.push((Rank(first), Rank(end)));
        before = end;
    }
    Ok(union(&runs))
}

/// By halves: a run at a time would copy all before it, each time.
fn union(runs: &[(Rank, Rank)]) -> RankSet {
    match runs {
        [] => RankSet::new(),
        [(first, end)] => RankSet::run(*first, *end),
        runs => {
            let (left, right) = runs.split_at(runs.len() / 2);
            let mut all = union(left);
            all.extend(&union(right));
            all
        }
    }
}

pub fn gathered_out(nodes: &Members, slots: &Slots) -> v1::GatheredSlots {
    v1::GatheredSlots {
        nodes: nodes.runs().iter().map(record::nodes_out).collect(),
        homes: slots.homes().iter().map(record::home_out).collect(),
        states: slots.states().iter().map(record::states_out).collect(),
    }
}

pub fn gathered_in(gathered: &v1::GatheredSlots) -> Result<(Members, Slots), CodecError> {
    let total = gathered.nodes.iter().try_fold(0u32, |sum, run| sum.checked_add(run.count));
    let homes = gathered.homes.iter().try_fold(0u32, |sum, home| sum.checked_add(home.nodes));
    if [total, homes].iter().any(|all| all.is_none_or(|all| all > MOST_NODES)) {
        return Err(CodecError::Missing("number of nodes"));
    }
    let nodes = Members::from_runs(gathered.nodes.iter().map(record::nodes_in).collect());
    let nodes = nodes.ok_or(CodecError::Missing("nodes"))?;
    Ok((nodes, record::slots_in(&gathered.homes, &gathered.states)?))
}

pub fn process_in(process: Option<v1::Process>) -> Result<Process, CodecError> {
    process.map(record::process_in).ok_or(CodecError::Missing("process"))
}

pub fn stamp_out(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { version: stamp.version.0, epoch: stamp.epoch.0 }
}

pub fn stamp_in(stamp: v1::Stamp) -> Stamp {
    Stamp { version: ftd_core::Version(stamp.version), epoch: ftd_core::EpochId(stamp.epoch) }
}

pub fn level_out(level: Level) -> v1::Level {
    match level {
        Level::Own => v1::Level::Own,
        Level::Partner => v1::Level::Partner,
        Level::Stable => v1::Level::Stable,
    }
}

pub fn level_in(level: v1::Level) -> Result<Level, CodecError> {
    match level {
        v1::Level::Own => Ok(Level::Own),
        v1::Level::Partner => Ok(Level::Partner),
        v1::Level::Stable => Ok(Level::Stable),
        v1::Level::Unspecified => Err(CodecError::Missing("level")),
    }
}

pub fn chosen_out(group: GroupId, stamp: Option<Stamp>) -> v1::Chosen {
    v1::Chosen { group: group.0, stamp: stamp.map(stamp_out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_that_are_none_are_refused() {
        let ranks = |runs: &[u32]| ranks_in(&v1::Ranks { runs: runs.to_vec() });
        assert_eq!(ranks(&[2, 3, 1, 1]).unwrap().runs(), [(2, 5), (6, 7)]);
        for wrong in [&[1u32][..], &[0, 0], &[0, 2, 0, 2], &[5, u32::MAX], &[0, u32::MAX, 1, 1], &[0, 1, u32::MAX, 1]] {
            assert!(ranks(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn all_ranks_there_can_be_are_one_run_and_many_runs_take_no_time() {
        let all = ranks_in(&v1::Ranks { runs: vec![0, u32::MAX] }).unwrap();
        assert_eq!(all.len(), u32::MAX);
        let each_second = ranks_in(&v1::Ranks { runs: vec![1; 1_000_000] }).unwrap();
        assert_eq!(each_second.runs().len(), 500_000);
    }

    #[test]
    fn nodes_that_no_job_has_are_refused() {
        let run = |node, count| v1::NodeRun { node, count, member: true };
        let gathered =
            |nodes: Vec<v1::NodeRun>| gathered_in(&v1::GatheredSlots { nodes, homes: Vec::new(), states: Vec::new() });
        assert!(gathered(vec![run(0, MOST_NODES)]).is_ok());
        assert!(gathered(vec![run(0, MOST_NODES), run(MOST_NODES, 1)]).is_err());
        assert!(gathered(vec![run(0, u32::MAX), run(u32::MAX, 1)]).is_err());
        assert!(gathered(vec![run(5, 2), run(6, 2)]).is_err());
    }

    proptest! {
        #[test]
        fn ranks_come_back(ranks in proptest::collection::btree_set(0u32..200, 0..60)) {
            let ranks: RankSet = ranks.into_iter().map(Rank).collect();
            prop_assert_eq!(ranks_in(&ranks_out(&ranks)).unwrap(), ranks);
        }
    }
}
