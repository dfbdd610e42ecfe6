//! The parts of a job that runs: what waits to be told to each, and what becomes of what it says.

use crate::frames::{self, Stream};
use crate::orders::Orders;
use ft_wire::cluster::ClusterNode;
use ft_wire::part::{FromJobs, FromPart, Host, MAX_SAID, MOST_NODES, ToPart};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, WriteHalf};
use tokio::sync::mpsc::{Sender, UnboundedSender, WeakSender};
use tokio::task::JoinSet;

/// The parts of a job, by number: what waits to be told to each, and which node it is on.
#[derive(Clone)]
pub struct Parts(Arc<Mutex<Table>>);

/// See [`Parts`].
pub struct Table {
    /// What waits to be told to each.
    pub orders: Vec<Arc<Orders>>,
    /// Nodes as the user names them.
    pub hosts: Vec<Host>,
    /// Nodes as the agents know them; none where there is but one.
    pub nodes: Vec<ClusterNode>,
    /// The launcher wants the job to end: nobody comes in any more.
    pub ends: bool,
}

/// What becomes of what a part says.
#[derive(Clone)]
pub struct Ears {
    /// It goes to the launcher.
    pub said: WeakSender<FromJobs>,
    /// The number of a part that is gone while the job may go on.
    pub lost: UnboundedSender<u32>,
}

impl Table {
    /// Whether one more may come in.
    pub fn has_room(&self) -> bool {
        !self.ends && self.nodes.len() < MOST_NODES
    }
}

impl Parts {
    /// Those with which the job begins.
    pub fn new(hosts: Vec<Host>, nodes: Vec<ClusterNode>) -> Parts {
        Parts(Arc::new(Mutex::new(Table { orders: Vec::new(), hosts, nodes, ends: false })))
    }

    /// To look at them, or to change them.
    pub fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part is told what waits for it, and heard.
pub fn connect(
    tasks: &mut JoinSet<()>,
    part: Box<dyn Stream>,
    node: u32,
    orders: Arc<Orders>,
    said: Sender<FromJobs>,
    lost: UnboundedSender<u32>,
) {
    let (from_part, to_part) = tokio::io::split(part);
    tasks.spawn(say(to_part, orders));
    tasks.spawn(async move {
        if hear(from_part, node, said).await {
            // Where nobody brings them back nobody listens.
            let _ = lost.send(node);
        }
    });
}

/// A part that is gone is told of by who reads from it.
async fn say(mut to: WriteHalf<Box<dyn Stream>>, orders: Arc<Orders>) {
    while frames::send(&mut to, &ToPart::Order(orders.next().await)).await.is_ok() {}
    orders.end();
}

/// What a part says goes to the launcher; its last word, or that there was none. Whether the job has lost a node with it.
async fn hear(mut from: impl AsyncRead + Unpin, node: u32, said: Sender<FromJobs>) -> bool {
    loop {
        let word = match frames::receive::<FromPart>(&mut from, MAX_SAID).await {
            Ok(word) => word,
            Err(error) => {
                let why = format!("the link to the part of the job there broke ({error}): what ran there is ended");
                return said.send(FromJobs::Lost { node, why }).await.is_ok();
            }
        };
        let lost = match &word {
            // A node comes back through the store, which is away.
            FromPart::Ended { of_job, unrecorded, .. } => Some(!of_job && !unrecorded),
            _ => None,
        };
        if said.send(FromJobs::Said { node, word }).await.is_err() {
            return false;
        }
        if let Some(lost) = lost {
            return lost;
        }
    }
}
