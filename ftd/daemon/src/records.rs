//! The record in etcd of a job that is over. Agents that were cut off, and nodes that come back, still have to read that it is, so it is not
//! removed: it goes with a lease that nobody keeps alive. So does that of a job whose agents were all killed, which has no end.

use crate::agents;
use crate::etcd::Asked;
use crate::state::{State, user_of};
use ft_store::{Expected, Store, StoreError, Swap, decode_record};
use ft_sys::timescale::scaled;
use ftd_core::NodeId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The key of a job's record, behind the beginning of its keys.
const RECORD: &str = "epoch";
/// Was written with the record by who has seen to it that that goes. What is written later stays.
const GOES: &str = "goes";
/// Who has not heard of the job for so long has ended it long ago: without a lease of its own, and without the record, a node ends what runs
/// there after a minute.
const KEPT: Duration = Duration::from_secs(600);
/// Others that are there have written a record without a node whose part has ended within this time, or are cut off from etcd …
const OTHERS: Duration = Duration::from_secs(10);
/// … or stand still, and the job may be continued.
const UNENDED: Duration = Duration::from_secs(7 * 24 * 3600);
/// etcd grants no lease that is shorter.
const SHORTEST: Duration = Duration::from_secs(2);
/// An etcd that is away is not waited for for longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The part on this node of a job, where it has this number, has ended: where the job has ended with it, its record goes a while later.
/// Whether that is known: else etcd is away.
pub async fn let_go<S: Store>(state: &Arc<State>, etcd: &Asked<S>, job: &str, me: NodeId) -> bool {
    let config = state.config();
    let keys = agents::keys_of(&config, job);
    let mut done = timeout(PATIENCE, attempt(etcd, &keys, None)).await;
    if matches!(done, Ok(Ok(Found::Running))) {
        tokio::time::sleep(scaled(OTHERS)).await;
        // A node that has come back is in the job for its new part, and that one's end is waited for instead.
        if state.has_part(job) || user_of(&config, job).is_some() {
            return true;
        }
        done = timeout(PATIENCE, attempt(etcd, &keys, Some(me))).await;
    }
    match done {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => tracing::info!(%error, job, "the job's record stays in etcd"),
        Err(_) => tracing::info!(job, "the job's record stays in etcd, which does not answer"),
    }
    false
}

/// What there is to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nothing that stays.
    Nothing,
    /// A record without an end.
    Running,
}

/// `gone`: this node's part has ended, and a record that still has the node in the job is nobody's.
async fn attempt<S: Store>(etcd: &Asked<S>, keys: &str, gone: Option<NodeId>) -> Result<Found, StoreError> {
    let (record, goes) = (format!("{keys}{RECORD}"), format!("{keys}{GOES}"));
    loop {
        // Whatever else a user has written there is not read.
        let told = etcd.get(&goes).await?.found.map_or(0, |goes| goes.revision);
        let Some(versioned) = etcd.get(&record).await?.found else { return Ok(Found::Nothing) };
        if told == versioned.revision {
            return Ok(Found::Nothing);
        }
        let kept = match decode_record(&versioned.value) {
            Ok(record) if record.outcome.is_some() => KEPT,
            Ok(record) if gone.is_some_and(|gone| record.is_member(gone)) => UNENDED,
            // It goes on elsewhere, and is over there.
            Ok(_) => return Ok(Found::Running),
            Err(_) => return Ok(Found::Nothing),
        };
        let lease = etcd.grant(scaled(kept).max(SHORTEST)).await?.id;
        let swap = Swap::on(&record, Expected::Revision(versioned.revision)).and_on(&goes, Expected::at(told));
        let swap = swap.put_leased(&record, versioned.value.clone(), lease).put_leased(&goes, Vec::new(), lease);
        match etcd.swap(swap).await {
            // Another node's was first, or an agent has written it once more.
            Err(StoreError::Lost { .. }) => etcd.revoke(lease).await?,
            written => return written.map(|_| Found::Nothing),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::config::Config;
    use ft_store::Embedded;
    use ftd_core::record::Strategy;
    use ftd_core::{
        EpochId, EpochRecord, FailureSet, Members, Micros, Mode, Outcome, Placement, Slots, Terms, WorldId,
    };
    use std::collections::BTreeSet;

    const WITHIN: Duration = Duration::from_secs(1);

    /// A job's first record.
    pub fn running() -> EpochRecord {
        EpochRecord {
            epoch: EpochId(1),
            began: Micros(0),
            mode: Mode::Reinit,
            terms: Terms::default(),
            world: WorldId(1),
            world_size: 0,
            placement: Placement::default(),
            slots: Slots::default(),
            nodes: Members::of((0..2).map(NodeId)),
            joined: BTreeSet::new(),
            failures: FailureSet::new(),
            agreed_after: Micros(0),
            strategy: Strategy::Fresh,
            streaks: Vec::new(),
            history: Vec::new(),
            outcome: None,
        }
    }

    #[tokio::test]
    async fn only_the_record_of_an_ended_job_goes_and_is_what_it_was_until_then() {
        let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
        let state = Arc::new(State::new(Config::of_text("", "a")));
        let etcd = Asked::new(store.clone(), state, WITHIN);
        let read = async |key: &str| store.get(key, WITHIN).await.unwrap().found;
        // There is none.
        assert_eq!(attempt(&etcd, "/ftd/jobs/j/", Some(NodeId(0))).await.unwrap(), Found::Nothing);
        let record = |outcome| EpochRecord { outcome, ..running() };
        let running = ft_store::encode_record(&record(None));
        let swap = Swap::on("/ftd/jobs/j/epoch", Expected::Absent).put("/ftd/jobs/j/epoch", running.clone());
        store.compare_and_swap(swap, WITHIN).await.unwrap();
        // Another node's part has ended, and one that is in the job no more.
        for gone in [None, Some(NodeId(7))] {
            assert_eq!(attempt(&etcd, "/ftd/jobs/j/", gone).await.unwrap(), Found::Running);
        }
        let found = read("/ftd/jobs/j/epoch").await.unwrap();
        assert!(found.value == running && read("/ftd/jobs/j/goes").await.is_none());
        let ended = ft_store::encode_record(&record(Some(Outcome::failed(1, "an end"))));
        let swap =
            Swap::on("/ftd/jobs/j/epoch", Expected::Revision(found.revision)).put("/ftd/jobs/j/epoch", ended.clone());
        store.compare_and_swap(swap, WITHIN).await.unwrap();
        attempt(&etcd, "/ftd/jobs/j/", None).await.unwrap();
        let first = read("/ftd/jobs/j/epoch").await.unwrap();
        assert!(first.value == ended && read("/ftd/jobs/j/goes").await.is_some());
        // The next node's.
        attempt(&etcd, "/ftd/jobs/j/", None).await.unwrap();
        assert_eq!(read("/ftd/jobs/j/epoch").await.unwrap().revision, first.revision);
    }

    #[tokio::test]
    async fn the_record_of_a_job_that_nobody_ends_goes_unless_it_goes_on() {
        let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
        let state = Arc::new(State::new(Config::of_text("", "a")));
        let etcd = Asked::new(store.clone(), state, WITHIN);
        let read = async |key: &str| store.get(key, WITHIN).await.unwrap().found.map(|found| found.revision);
        let record = ft_store::encode_record(&running());
        let write = async |at| {
            let swap = Swap::on("/ftd/jobs/j/epoch", at).put("/ftd/jobs/j/epoch", record.clone());
            store.compare_and_swap(swap, WITHIN).await.unwrap()
        };
        write(Expected::Absent).await;
        let part_ended = async || attempt(&etcd, "/ftd/jobs/j/", Some(NodeId(1))).await.unwrap();
        assert_eq!(part_ended().await, Found::Nothing);
        let (leased, goes) = (read("/ftd/jobs/j/epoch").await, read("/ftd/jobs/j/goes").await);
        assert_eq!(leased, goes);
        // Another node's.
        assert_eq!(part_ended().await, Found::Nothing);
        assert_eq!(read("/ftd/jobs/j/epoch").await, leased);
        // Somebody was there after all: what is written now stays until that ends as well.
        let again = write(Expected::at(leased.unwrap())).await;
        assert_eq!(part_ended().await, Found::Nothing);
        let goes = read("/ftd/jobs/j/goes").await;
        assert!(goes > Some(again) && goes == read("/ftd/jobs/j/epoch").await);
    }
}
