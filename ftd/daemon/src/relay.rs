//! What the launcher of a job and its parts say to each other, passed on.

use crate::comebacks::Comebacks;
use crate::frames::{self, Broken, Stream};
use crate::members::{Ears, Parts, connect};
use crate::orders::Orders;
use ft_wire::part::{FromJobs, MAX_SAID, Order, PULSE, ToJobs};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, WeakSender, channel, unbounded_channel};
use tokio::task::JoinSet;

/// Messages that may wait for the launcher.
const WAITING: usize = 16;

/// Passes on what both sides say, until the launcher is gone, or has nothing more to hear. The parts' links end with this.
pub async fn relay(stream: UnixStream, parts: Parts, streams: Vec<Box<dyn Stream>>, comebacks: Option<Comebacks>) {
    let (from_launcher, to_launcher) = tokio::io::split(stream);
    let (said, heard) = channel(WAITING);
    let (lost, losses) = unbounded_channel();
    let mut tasks = JoinSet::new();
    let answers = said.downgrade();
    let ears = Ears { said: answers.clone(), lost };
    for (node, part) in streams.into_iter().enumerate() {
        let orders = Orders::new();
        parts.lock().orders.push(orders.clone());
        connect(&mut tasks, part, node as u32, orders, said.clone(), ears.lost.clone());
    }
    // When the last part has said its last word the launcher is told that nothing more comes.
    drop(said);
    tasks.spawn(tell_launcher(to_launcher, heard));
    tasks.spawn(pulse(parts.clone()));
    if let Some(comebacks) = comebacks {
        tasks.spawn(comebacks.run(parts.clone(), losses, ears));
    }
    // Who reads nothing more has gone, also when something is still to be told.
    let _ = listen(from_launcher, &parts, answers).await;
    tasks.shutdown().await;
}

/// The parts hear that this process runs, and what is between it and them.
async fn pulse(parts: Parts) {
    loop {
        for part in &parts.lock().orders {
            // One that has too much before it is given up by who tells it the next thing.
            let _ = part.give(Order::Pulse);
        }
        tokio::time::sleep(PULSE).await;
    }
}

/// What the launcher says goes to the parts.
async fn listen(mut from: ReadHalf<UnixStream>, parts: &Parts, answers: WeakSender<FromJobs>) -> Result<(), Broken> {
    loop {
        let (to, order) = match frames::receive(&mut from, MAX_SAID).await? {
            ToJobs::Tell { to, order } => (to, order),
            ToJobs::Ask => {
                // Where there is no room the launcher has other answers to read.
                let _ = answers.upgrade().map(|answers| answers.try_send(FromJobs::Here));
                continue;
            }
            ToJobs::Launch(_) | ToJobs::Step(_) | ToJobs::Node(_) | ToJobs::Jobs | ToJobs::Agent(_) => return Ok(()),
        };
        let mut parts = parts.lock();
        parts.ends |= matches!(order, Order::Cancel(_) | Order::Kill(_));
        let chosen = parts.orders.iter().enumerate().filter(|(node, _)| to.is_none_or(|to| to as usize == *node));
        for (_, part) in chosen {
            if !part.give(order.clone()) {
                return Err(Broken::TooMuch);
            }
        }
    }
}

async fn tell_launcher(mut to: WriteHalf<UnixStream>, mut said: Receiver<FromJobs>) {
    while let Some(word) = said.recv().await {
        if frames::send(&mut to, &word).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
