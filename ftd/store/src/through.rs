//! A store through somebody else, who has it: a job's agent, which is a user's and has no credentials of etcd's, asks the node's `ftd`.
//!
//! What is asked is a [`Question`], what comes back an [`Answer`], of which one says what became of it: so a compare-and-swap that was sent
//! and not answered is `Unknown` here as it is at etcd, and nobody repeats it. [`Ftd`] carries both over `ftd`'s socket, where [`serve`]
//! answers; others may carry them otherwise. See docs/decisions/store-through-ftd.md.

mod ftd;
#[cfg(test)]
mod neighbours;
mod rights;
mod serve;
mod watch;
mod wire;

pub use ftd::Ftd;
pub use rights::Rights;
pub use serve::{Note, Seated, serve, take_seat};
pub use watch::FtdWatch;
pub use wire::{Answer, Broken, Copied, Failure, Question, VERSION};

use crate::error::Trouble;
use crate::store::{Lease, LeaseId, Read, Scope, Store, Versioned, Watch};
use crate::{StoreError, Swap};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who has questions answered.
pub trait Answers: Clone + Send + Sync + 'static {
    /// Its watches.
    type Watch: Watch;

    /// Has a question answered within this time, a compare-and-swap at most once.
    fn answer(&self, question: Question, within: Duration) -> impl Future<Output = Answer> + Send;

    /// Watches keys from this revision on.
    fn watch(&self, scope: &Scope, from: u64) -> Self::Watch;
}

/// The store of whoever has questions answered.
#[derive(Debug, Clone)]
pub struct Through<A>(pub A);

impl<A: Answers> Through<A> {
    /// What becomes of a question whose answer is something else than what was asked for.
    async fn ask<T>(
        &self,
        (what, key): (String, &str),
        question: Question,
        within: Duration,
        wanted: impl FnOnce(Answer) -> Option<T> + Send,
    ) -> Result<T, StoreError> {
        match self.0.answer(question, within).await {
            Answer::Failed(failure) => Err(failure.into_error(what, key, within)),
            other => wanted(other).ok_or_else(|| {
                let reason = "the answer is to another question".to_string();
                StoreError::Refused { what, by: vec![Trouble { endpoint: "ftd".into(), reason, lasting: true }] }
            }),
        }
    }
}

fn lease_of(answer: Answer) -> Option<Lease> {
    if let Answer::Lease(lease) = answer { Some(lease) } else { None }
}

fn done(answer: Answer) -> Option<()> {
    matches!(answer, Answer::Done).then_some(())
}

impl<A: Answers> Store for Through<A> {
    type Watch = A::Watch;

    async fn read(&self, scope: &Scope, within: Duration) -> Result<Read<BTreeMap<String, Versioned>>, StoreError> {
        let found = |answer| match answer {
            Answer::Found { at, found } => Some(Read { at, found }),
            _ => None,
        };
        self.ask((format!("read {scope}"), scope.name()), Question::Read(scope.clone()), within, found).await
    }

    async fn compare_and_swap(&self, swap: Swap, within: Duration) -> Result<u64, StoreError> {
        swap.check()?;
        let key = swap.key().to_string();
        let written = |answer| if let Answer::Written(revision) = answer { Some(revision) } else { None };
        self.ask((format!("write what depends on {key}"), &key), Question::Swap(swap), within, written).await
    }

    fn watch(&self, scope: &Scope, from: u64) -> A::Watch {
        self.0.watch(scope, from)
    }

    async fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        self.ask(("grant a lease".into(), ""), Question::Grant(ttl), within, lease_of).await
    }

    async fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        self.ask((format!("keep lease {lease} alive"), ""), Question::KeepAlive(lease), within, done).await
    }

    async fn adopt(&self, lease: LeaseId, within: Duration) -> Result<Lease, StoreError> {
        self.ask((format!("keep lease {lease} alive"), ""), Question::Adopt(lease), within, lease_of).await
    }

    async fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        self.ask((format!("end lease {lease}"), ""), Question::Revoke(lease), within, done).await
    }
}
