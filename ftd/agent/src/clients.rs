//! The ranks' checkpoint libraries: who of them is there, waits for what, and has been told what.

use crate::link::Link;
use ft_wire::client::ToClient;
use ft_wire::{Rank, Version, World as WorldNumber};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who does not read what it is told of others for so long is not waited for.
const TELLING: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Client {
    link: Link,
    /// It waits for the version to restore.
    awaits_restore: bool,
}

/// Ranks that take no more checkpoints: their last version, and what they did.
type Left = BTreeMap<Rank, (Option<Version>, &'static str)>;

/// Those of all worlds.
#[derive(Debug, Default)]
pub struct Clients {
    here: BTreeMap<(WorldNumber, Rank), Client>,
    left: BTreeMap<WorldNumber, Left>,
}

impl Clients {
    /// The connection of a rank's library.
    pub fn link(&self, number: WorldNumber, rank: Rank) -> Option<&Link> {
        self.here.get(&(number, rank)).map(|client| &client.link)
    }

    /// A rank's library is there; it is told who has left before it came.
    pub fn admit(&mut self, number: WorldNumber, rank: Rank, link: Link) {
        for (other, (last, how)) in self.left.get(&number).into_iter().flatten() {
            link.send(&ToClient::Left { rank: *other, last: *last, how: (*how).into() });
        }
        self.here.insert((number, rank), Client { link, awaits_restore: false });
    }

    /// Its connection has ended.
    pub fn gone(&mut self, number: WorldNumber, rank: Rank) {
        self.here.remove(&(number, rank));
    }

    /// Nobody is left of this world.
    pub fn forget(&mut self, number: WorldNumber) {
        self.here.retain(|(world, _), _| *world != number);
        self.left.remove(&number);
    }

    fn others(&self, number: WorldNumber, rank: Rank) -> impl Iterator<Item = &Link> {
        let of_world = self.here.range((number, 0)..=(number, Rank::MAX));
        of_world.filter(move |((_, other), _)| *other != rank).map(|(_, client)| &client.link)
    }

    /// A rank takes no more checkpoints, and the others' later ones are in vain: they are told. False when they have been.
    pub fn rank_leaves(&mut self, number: WorldNumber, rank: Rank, last: Option<Version>, how: &'static str) -> bool {
        let left = self.left.entry(number).or_default();
        if left.contains_key(&rank) {
            return false;
        }
        left.insert(rank, (last, how));
        self.others(number, rank).for_each(|link| link.send(&ToClient::Left { rank, last, how: how.into() }));
        true
    }

    /// What the others checkpoint after this rank's ft_finalize has returned is refused: the word on it is in their sockets.
    pub fn answer_finalized(&self, number: WorldNumber, rank: Rank) {
        let Some(link) = self.link(number, rank).cloned() else { return };
        let told: Vec<_> = self.others(number, rank).map(Link::written).collect();
        tokio::spawn(async move {
            let all = async {
                for one in told {
                    one.await;
                }
            };
            let _ = crate::wait::within(TELLING, all).await;
            link.send(&ToClient::Finalized);
        });
    }

    /// A rank waits for its state.
    pub fn awaits_restore(&mut self, number: WorldNumber, rank: Rank) {
        if let Some(client) = self.here.get_mut(&(number, rank)) {
            client.awaits_restore = true;
        }
    }

    /// Who waits for its state.
    pub fn awaiting(&self, number: WorldNumber) -> Vec<Rank> {
        let of_world = self.here.range((number, 0)..=(number, Rank::MAX));
        of_world.filter(|(_, client)| client.awaits_restore).map(|((_, rank), _)| *rank).collect()
    }

    /// Tells a rank that waits for its state which version that is, and where it lies.
    pub fn answer_restore(&mut self, number: WorldNumber, rank: Rank, found: Option<(Version, u32)>) {
        if let Some(client) = self.here.get_mut(&(number, rank))
            && std::mem::take(&mut client.awaits_restore)
        {
            client.link.send(&ToClient::Restore { found });
        }
    }
}
