//! Nodes that come back: when the part of a job on a node is lost, or was left out of the job, another one is made ready there as soon as
//! the node is to be reached again. It is a new node of the job, with a number and slots of its own, and spare.

use crate::peers;
use crate::places::{Places, Prepared, address, prepare};
use ft_wire::cluster::ClusterNode;
use ft_wire::part::{Host, Share, Start};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// A node is looked for so soon after it was lost, then after twice that, and so on …
const SOON: Duration = Duration::from_millis(500);
/// … but so often at the least. One that is lost again and again is looked for as seldom at last.
const SELDOM: Duration = Duration::from_secs(10);

/// So many nodes are asked at a time.
const AT_A_TIME: usize = 64;

/// What it takes to start a part of a job once more.
pub struct Team {
    /// Where nodes are looked up.
    pub places: Places,
    /// What all parts have.
    pub image: Arc<peers::Sent>,
    /// What a part is asked for with, but for whose it is.
    pub any: Start,
}

/// Looks for nodes that are lost.
pub struct Comebacks {
    team: Arc<Team>,
    times: BTreeMap<String, u32>,
    looks: JoinSet<Found>,
    /// Nodes that are looked for.
    sought: BTreeSet<String>,
    room: Arc<Semaphore>,
}

/// A part that may come in, and what there is to know of its node.
pub struct Found {
    /// The node as the user names it.
    pub host: Host,
    /// The part.
    pub part: Prepared,
    /// The node as others are to know it; its first slot is not known yet.
    pub node: ClusterNode,
}

impl Comebacks {
    /// Of this job.
    pub fn new(team: Team) -> Comebacks {
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        Comebacks { team: Arc::new(team), times: BTreeMap::new(), looks: JoinSet::new(), sought: BTreeSet::new(), room }
    }

    /// Looks for a node until a part is ready there, or nobody wants it any more.
    pub fn look_for(&mut self, host: Host) {
        if !self.sought.insert(host.name.clone()) {
            return;
        }
        let times = self.times.entry(host.name.clone()).or_default();
        let pause = SOON.saturating_mul(1 << (*times).min(16)).min(SELDOM);
        *times += 1;
        let (team, room) = (self.team.clone(), self.room.clone());
        self.looks.spawn(async move { team.look(host, pause, &room).await });
    }

    /// The next that is found.
    pub async fn next(&mut self) -> Found {
        loop {
            match self.looks.join_next().await {
                Some(Ok(found)) => {
                    self.sought.remove(&found.host.name);
                    return found;
                }
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Nobody comes in any more.
    pub fn end(&mut self) {
        self.looks = JoinSet::new();
    }
}

impl Team {
    async fn look(&self, host: Host, first: Duration, room: &Semaphore) -> Found {
        let mut pause = first;
        loop {
            tokio::time::sleep(pause).await;
            let place = room.acquire().await;
            let asked = self.ask(&host).await;
            drop(place);
            match asked {
                Ok((part, node)) => return Found { host, part, node },
                Err(why) => tracing::debug!(job = self.any.share.job, node = host.name, "not back: {why}"),
            }
            pause = pause.saturating_mul(2).min(SELDOM);
        }
    }

    async fn ask(&self, host: &Host) -> Result<(Prepared, ClusterNode), String> {
        let state = self.places.state();
        let record = self.places.find(&host.name).await?;
        let address = address(&host.name, &record)?.ip();
        let share = Share { slots: host.slots, bind: Some(address), ..self.any.share.clone() };
        let start = Start { to: host.name.clone(), share, ..self.any.clone() };
        let domain = record.label.clone();
        let part = prepare(start, &self.image, record, state).await;
        let part = part.map_err(|refusal| refusal.sentence)?;
        let node = ClusterNode {
            // It is another one than that which had the name.
            name: format!("{} (again)", host.name),
            host: part.host.clone(),
            address,
            port: part.port,
            slots: host.slots,
            first_slot: 0,
            spare: true,
            domain,
            lease: Some(format!("{}/nodes/{}", state.config().prefix(), host.name)),
        };
        Ok((part, node))
    }
}
