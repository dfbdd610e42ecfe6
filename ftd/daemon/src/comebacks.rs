//! Nodes that come back: when the part of a job on a node is lost, or was left out of the job, another one is started there as soon as
//! the node is to be reached again. It is a new node of the job, with a number and slots of its own, and spare.

use crate::frames::{self, within};
use crate::members::{Ears, Parts, connect};
use crate::orders::Orders;
use crate::peers;
use crate::places::{Places, Prepared, address, prepare};
use ft_wire::cluster::{Cluster, ClusterNode};
use ft_wire::part::{FromJobs, Host, Order, Share, Start, ToPart};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

/// A node is looked for so soon after it was lost, then after twice that, and so on …
const SOON: Duration = Duration::from_millis(500);
/// … but so often at the least. One that is lost again and again is looked for as seldom at last.
const SELDOM: Duration = Duration::from_secs(10);
/// A part that is ready is told at once that it may start.
const TOLD: Duration = Duration::from_secs(5);

/// What it takes to start a part of a job once more.
pub struct Team {
    /// Where nodes are looked up.
    pub places: Places,
    /// What all parts have.
    pub image: Arc<peers::Sent>,
    /// What a part is asked for with, but for whose it is.
    pub any: Start,
    /// As it was at the beginning.
    pub cluster: Cluster,
}

/// Brings nodes back.
pub struct Comebacks(Arc<Team>);

/// A part that may come in, and what there is to know of its node.
struct Found {
    part: Prepared,
    node: ClusterNode,
}

impl Comebacks {
    /// Into this job.
    pub fn new(team: Team) -> Comebacks {
        Comebacks(Arc::new(team))
    }

    /// Looks for each node that is lost, for as long as the job runs.
    pub async fn run(self, parts: Parts, mut losses: UnboundedReceiver<u32>, ears: Ears) {
        let mut tasks = JoinSet::new();
        let mut times: BTreeMap<String, u32> = BTreeMap::new();
        let (found, mut comers) = tokio::sync::mpsc::unbounded_channel();
        loop {
            tokio::select! {
                Some(lost) = losses.recv() => {
                    let Some(host) = parts.lock().hosts.get(lost as usize).cloned() else { continue };
                    let times = times.entry(host.name.clone()).or_default();
                    let pause = SOON.saturating_mul(1 << (*times).min(16)).min(SELDOM);
                    *times += 1;
                    let (team, parts, found) = (self.0.clone(), parts.clone(), found.clone());
                    tasks.spawn(async move {
                        if let Some(comes) = team.look(&host, pause, &parts).await {
                            let _ = found.send((host, comes));
                        }
                    });
                }
                Some((host, comes)) = comers.recv() => self.0.take_in(&mut tasks, host, comes, &parts, &ears).await,
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}

impl Team {
    /// Until a part is ready there, or nobody wants it any more.
    async fn look(&self, host: &Host, first: Duration, parts: &Parts) -> Option<Found> {
        let mut pause = first;
        loop {
            tokio::time::sleep(pause).await;
            if !parts.lock().has_room() {
                return None;
            }
            match self.ask(host).await {
                Ok(found) => return Some(found),
                Err(why) => tracing::debug!(job = self.any.share.job, node = host.name, "not back: {why}"),
            }
            pause = pause.saturating_mul(2).min(SELDOM);
        }
    }

    async fn ask(&self, host: &Host) -> Result<Found, String> {
        let state = self.places.state();
        let record = self.places.find(&host.name).await?;
        let address = address(&host.name, &record)?.ip();
        let share = Share { slots: host.slots, bind: Some(address), ..self.any.share.clone() };
        let start = Start { to: host.name.clone(), share, ..self.any.clone() };
        let part = prepare(start, self.image.clone(), record.clone(), state.clone()).await;
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
            domain: record.label,
            lease: Some(format!("{}/nodes/{}", state.config().prefix(), host.name)),
        };
        Ok(Found { part, node })
    }

    /// All others hear of the node before it says anything.
    async fn take_in(&self, tasks: &mut JoinSet<()>, host: Host, found: Found, parts: &Parts, ears: &Ears) {
        // Who is told nothing more has a job that is over.
        let Some(said) = ears.said.upgrade() else { return };
        let Found { mut part, mut node } = found;
        let (name, orders) = (host.name.clone(), Orders::new());
        let cluster = {
            let mut parts = parts.lock();
            if !parts.has_room() {
                return;
            }
            let me = parts.nodes.len() as u32;
            node.first_slot = self.cluster.late_slot(me);
            for others in &parts.orders {
                // One that has too much before it is given up by who tells it the next thing.
                let _ = others.give(Order::Joins(Box::new(node.clone())));
            }
            parts.nodes.push(node);
            parts.hosts.push(host);
            parts.orders.push(orders.clone());
            Cluster { me, nodes: parts.nodes.clone(), ..self.cluster.clone() }
        };
        let node = cluster.me;
        if said.send(FromJobs::Joined { node, name }).await.is_err() {
            return;
        }
        // One that does not hear it says nothing either, and is lost once more.
        let _ = within(TOLD, frames::send(&mut part.stream, &ToPart::Go { cluster: Some(Box::new(cluster)) })).await;
        connect(tasks, part.stream, node, orders, said, ears.lost.clone());
    }
}
