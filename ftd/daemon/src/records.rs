//! The record in etcd of a job that is over. Agents that were cut off, and nodes that come back, still have to read that it is, so it is not
//! removed: it goes with a lease that nobody keeps alive.

use crate::agents;
use crate::etcd::Asked;
use crate::state::State;
use ft_store::{Expected, Scope, Store, StoreError, Swap, decode_record};
use ft_sys::timescale::scaled;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The key of a job's record, behind the beginning of its keys.
const RECORD: &str = "epoch";
/// Is there when somebody has seen to it that the record goes.
const GOES: &str = "goes";
/// Who has not heard of the job for so long has ended it long ago: without a lease of its own, and without the record, a node ends what runs
/// there after a minute.
const KEPT: Duration = Duration::from_secs(600);
/// etcd grants no lease that is shorter.
const SHORTEST: Duration = Duration::from_secs(2);
/// An etcd that is away is not waited for for longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A part of a job has ended here: where the job has ended with it, its record goes a while later.
pub async fn let_go(state: &Arc<State>, job: &str) {
    let config = state.config();
    let store = match config.etcd().map(|options| ft_store::Etcd::new(&options)) {
        Ok(Ok(store)) => store,
        // It was said when this began.
        Ok(Err(_)) | Err(_) => return,
    };
    let etcd = Asked::new(store, state.clone(), config.etcd_within());
    match timeout(PATIENCE, attempt(&etcd, &agents::keys_of(&config, job))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(%error, job, "the job's record stays in etcd"),
        Err(_) => tracing::info!(job, "the job's record stays in etcd, which does not answer"),
    }
}

async fn attempt<S: Store>(etcd: &Asked<S>, keys: &str) -> Result<(), StoreError> {
    let (record, goes) = (format!("{keys}{RECORD}"), format!("{keys}{GOES}"));
    loop {
        let found = etcd.read(&Scope::Prefix(keys.into())).await?.found;
        let Some(versioned) = found.get(&record).filter(|_| !found.contains_key(&goes)) else { return Ok(()) };
        // One that goes on elsewhere is over there.
        if !decode_record(&versioned.value).is_ok_and(|record| record.outcome.is_some()) {
            return Ok(());
        }
        let lease = etcd.grant(scaled(KEPT).max(SHORTEST)).await?.id;
        let swap = Swap::on(&record, Expected::Revision(versioned.revision)).and_on(&goes, Expected::Absent);
        let swap = swap.put_leased(&record, versioned.value.clone(), lease).put_leased(&goes, Vec::new(), lease);
        match etcd.swap(swap).await {
            // Another node's was first, or an agent has written it once more.
            Err(StoreError::Lost { .. }) => etcd.revoke(lease).await?,
            written => return written.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use ft_store::Embedded;
    use ftd_core::record::Strategy;
    use ftd_core::{
        EpochId, EpochRecord, FailureSet, Members, Micros, Mode, Outcome, Placement, Slots, Terms, WorldId,
    };
    use std::collections::BTreeSet;

    const WITHIN: Duration = Duration::from_secs(1);

    fn running() -> EpochRecord {
        EpochRecord {
            epoch: EpochId(1),
            began: Micros(0),
            mode: Mode::Reinit,
            terms: Terms::default(),
            world: WorldId(1),
            world_size: 0,
            placement: Placement::default(),
            slots: Slots::default(),
            nodes: Members::default(),
            joined: BTreeSet::new(),
            failures: FailureSet::new(),
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
        attempt(&etcd, "/ftd/jobs/j/").await.unwrap();
        let record = |outcome| EpochRecord { outcome, ..running() };
        let running = ft_store::encode_record(&record(None));
        let swap = Swap::on("/ftd/jobs/j/epoch", Expected::Absent).put("/ftd/jobs/j/epoch", running.clone());
        store.compare_and_swap(swap, WITHIN).await.unwrap();
        attempt(&etcd, "/ftd/jobs/j/").await.unwrap();
        let found = read("/ftd/jobs/j/epoch").await.unwrap();
        assert!(found.value == running && read("/ftd/jobs/j/goes").await.is_none());
        let ended = ft_store::encode_record(&record(Some(Outcome::failed(1, "an end"))));
        let swap =
            Swap::on("/ftd/jobs/j/epoch", Expected::Revision(found.revision)).put("/ftd/jobs/j/epoch", ended.clone());
        store.compare_and_swap(swap, WITHIN).await.unwrap();
        attempt(&etcd, "/ftd/jobs/j/").await.unwrap();
        let first = read("/ftd/jobs/j/epoch").await.unwrap();
        assert!(first.value == ended && read("/ftd/jobs/j/goes").await.is_some());
        // The next node's.
        attempt(&etcd, "/ftd/jobs/j/").await.unwrap();
        assert_eq!(read("/ftd/jobs/j/epoch").await.unwrap().revision, first.revision);
    }
}
