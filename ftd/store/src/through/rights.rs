//! What somebody may ask for.

use super::wire::{Question, ToFtd};
use crate::store::Scope;
use crate::swap::Write;

/// What somebody may ask for: anything below some keys, and to see others.
#[derive(Debug, Clone)]
pub struct Rights {
    /// What the names of keys begin with that it may read, watch, compare and write.
    pub own: String,
    /// What those begin with that it may read, watch and compare.
    pub seen: Option<String>,
    /// Whether it may have leases.
    pub leases: bool,
}

impl Rights {
    /// Why it may not ask this.
    pub fn forbid(&self, asked: &ToFtd) -> Option<String> {
        match asked {
            ToFtd::Question { question, .. } => self.forbid_question(question),
            ToFtd::Watch { scope, .. } => self.hides(scope),
            ToFtd::Unwatch { .. } | ToFtd::Copied(_) => None,
        }
    }

    fn forbid_question(&self, question: &Question) -> Option<String> {
        match question {
            Question::Read(scope) => self.hides(scope),
            Question::Swap(swap) => {
                let unseen = swap.demands().iter().find(|(key, _)| !self.may_see(key));
                let read = unseen.map(|(key, _)| format!("{key} is none of the keys that it may compare"));
                let kept = |(key, write): &&(String, Write)| {
                    let leased = matches!(write, Write::Put { lease: Some(_), .. });
                    !key.starts_with(&self.own) || leased && !self.leases
                };
                let written = || swap.writes().iter().find(kept);
                read.or_else(|| written().map(|(key, _)| format!("{key} is none of the keys that it may write so")))
            }
            Question::Grant(_) | Question::KeepAlive(_) | Question::Adopt(_) | Question::Revoke(_) => {
                (!self.leases).then(|| "it may have no leases".into())
            }
        }
    }

    fn hides(&self, scope: &Scope) -> Option<String> {
        (!self.may_see(scope.name())).then(|| format!("{scope} is nothing that it may read"))
    }

    fn may_see(&self, name: &str) -> bool {
        name.starts_with(&self.own) || self.seen.as_ref().is_some_and(|seen| name.starts_with(seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expected, LeaseId, Swap};
    use std::time::Duration;

    #[test]
    fn a_job_has_its_own_keys_sees_the_nodes_and_has_nothing_else() {
        let rights = Rights { own: "/ftd/jobs/a/".into(), seen: Some("/ftd/nodes/".into()), leases: false };
        let forbids =
            |question| rights.forbid(&ToFtd::Question { number: 1, within: Duration::ZERO, question }).is_some();
        let (own, other, node) = ("/ftd/jobs/a/epoch", "/ftd/jobs/ab/epoch", "/ftd/nodes/n");
        for scope in [Scope::Key, Scope::Prefix] {
            assert!(!forbids(Question::Read(scope(own.into()))) && !forbids(Question::Read(scope(node.into()))));
            assert!(forbids(Question::Read(scope(other.into()))) && forbids(Question::Read(scope("/ftd/".into()))));
            let watch = |scope| rights.forbid(&ToFtd::Watch { number: 1, scope, from: 1 }).is_some();
            assert!(!watch(scope(own.into())) && watch(scope(other.into())));
        }
        let swap = |compared: &str, written: &str| {
            Question::Swap(Swap::on(compared, Expected::Present).put(written, Vec::new()))
        };
        assert!(!forbids(swap(own, own)) && !forbids(swap(node, own)));
        assert!(forbids(swap(other, own)) && forbids(swap(own, other)) && forbids(swap(own, node)));
        assert!(forbids(Question::Swap(Swap::on(own, Expected::Absent).delete(node))));
        let leased = Swap::on(own, Expected::Absent).put_leased(own, Vec::new(), LeaseId(1));
        assert!(forbids(Question::Swap(leased)) && forbids(Question::Grant(Duration::ZERO)));
        let lease = LeaseId(1);
        let leases = [Question::KeepAlive(lease), Question::Adopt(lease), Question::Revoke(lease)];
        assert!(leases.into_iter().all(forbids));
    }
}
