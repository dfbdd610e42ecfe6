//! One suite for every store: the embedded one, and a real etcd of one member and of three, of both releases; and what happens when
//! members of etcd die, stand still, or do not let this node in.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)]

mod access;
mod cluster;
mod deaf;
mod faults;
mod proxy;
mod shared;
mod suite;
mod through;

use cluster::{Cluster, LONG, Release, put};
use ft_store::{Embedded, Store};

struct Admin<'a>(&'a Cluster);

impl suite::Forgets for Admin<'_> {
    async fn forget(&self, revision: u64) {
        self.0.client(0).await.compact(revision as i64, None).await.unwrap();
    }
}

/// It remembers so much and no more.
impl suite::Forgets for Embedded {
    async fn forget(&self, _: u64) {
        for n in 0..300u32 {
            put(self, "something else", &n.to_le_bytes()).await;
        }
    }
}

#[tokio::test]
async fn the_embedded_store_holds_the_suite() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    suite::holds(&store, &store).await;
}

async fn three_members(release: Release) {
    let cluster = Cluster::ready(release, 3).await;
    let store = cluster.store();
    suite::holds(&store, &Admin(&cluster)).await;
    assert!(store.get("one/epoch", LONG).await.unwrap().found.is_some());
}

/// With both releases at the same time: most of it is waiting.
async fn with_both<F: Future<Output = ()> + 'static>(test: impl Fn(Release) -> F) {
    // On this thread: the processes end with the one that started them.
    let local = tokio::task::LocalSet::new();
    let (old, new) = (local.spawn_local(test(Release::V34)), local.spawn_local(test(Release::V35)));
    local
        .run_until(async {
            let (old, new) = tokio::join!(old, new);
            old.expect("etcd 3.4");
            new.expect("etcd 3.5");
        })
        .await;
}

macro_rules! of_both_releases {
    ($($name:ident: $test:path;)*) => {
        $(#[tokio::test]
        async fn $name() {
            with_both($test).await;
        })*
    };
}

of_both_releases! {
    etcd_of_one_member_with_certificates_and_a_password_holds_the_suite: access::one_member_holds_the_suite;
    etcd_of_three_members_holds_the_suite: three_members;
    leaders_die_while_many_write: faults::leaders_die_while_many_write;
    a_write_without_an_answer_is_unknown: faults::a_write_without_an_answer_is_unknown;
    a_minority_is_lost: faults::a_minority_is_lost;
    the_majority_is_lost_and_comes_back: faults::the_majority_is_lost_and_comes_back;
    the_leader_is_paused: faults::the_leader_is_paused;
    a_stale_watch_is_noticed: faults::a_stale_watch_is_noticed;
    a_lease_outlives_a_call_without_an_answer: faults::a_lease_outlives_a_call_without_an_answer;
    who_has_little_time_hurries_nobody: shared::who_has_little_time_hurries_nobody;
    who_has_little_time_says_nothing_of_a_member: shared::who_has_little_time_says_nothing_of_a_member;
    another_member_cuts_nothing_off: shared::another_member_cuts_nothing_off;
    guests_move_nothing_that_serves: shared::guests_move_nothing_that_serves;
    a_guest_finds_the_member_that_answers: shared::a_guest_finds_the_member_that_answers;
    guests_wait_for_an_election_and_no_longer: shared::guests_wait_for_an_election_and_no_longer;
    a_guest_has_the_only_member_dialled_again: shared::a_guest_has_the_only_member_dialled_again;
    a_member_that_was_left_is_not_the_next_one: shared::a_member_that_was_left_is_not_the_next_one;
    who_takes_long_to_let_in_is_not_alone_waited_for: shared::who_takes_long_to_let_in_is_not_alone_waited_for;
    a_member_that_is_slow_is_not_left_for_one_that_is_gone: shared::a_member_that_is_slow_is_not_left_for_one_that_is_gone;
    an_answer_that_is_too_long_concerns_who_asked: shared::an_answer_that_is_too_long_concerns_who_asked;
    a_watch_that_is_refused_concerns_who_watches: shared::a_watch_that_is_refused_concerns_who_watches;
    watches_that_nobody_reads_hold_up_nobody: shared::watches_that_nobody_reads_hold_up_nobody;
    who_asks_nothing_any_more_has_no_connection: shared::who_asks_nothing_any_more_has_no_connection;
    certificates_are_checked_both_ways: access::certificates_are_checked_both_ways;
    a_store_through_somebody_holds_the_suite: through::holds_the_suite;
    passwords_and_roles_are_checked: access::passwords_and_roles_are_checked;
}
