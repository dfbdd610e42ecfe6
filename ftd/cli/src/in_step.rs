//! The part of a job that is a step of Slurm's: its shepherds are the step's tasks on this node, and what a daemon tells other parts the step's
//! front tells it, over TCP. Output and input of the ranks are Slurm's.

use crate::batch::Batch;
use crate::launcher::Launcher;
use crate::part::{Part, PartError, Ready, fails, prepare};
use crate::tasks::Door;
use crate::{Refusal, options};
use ft_sys::channel::Channel;
use ft_sys::meeting;
use ft_wire::part::{Begin, MAX_SAID};
use ft_wire::step::{self, Go, Member, STEP, Step, What};
use std::time::Duration;

/// All other nodes are ready within this time, or the front has ended the step.
const OTHERS: Duration = Duration::from_secs(300);

/// Runs the part; returns its exit status.
///
/// # Errors
/// [`PartError`]: nobody hears of it.
pub fn run(begin: Box<Begin>, node: step::Node) -> Result<i32, PartError> {
    let text = std::env::var(STEP).map_err(|_| PartError::Unexpected)?;
    let step = Step::from_text(&text).map_err(|_| PartError::Unexpected)?;
    let name = step::door(&meeting::word(&step.secret.0, step::DOOR), node.layout.node);
    // The tasks wait for it.
    let door = Door::open(&name)?;
    let (ready, sockets) = match prepare(&begin, options::parse_step) {
        Ok(ready) => ready,
        Err(refusal) => {
            let status = refuse(&step, &begin, &refusal);
            door.turn_away(node.layout);
            return Ok(status);
        }
    };
    let tasks = match door.gather(node.layout) {
        Ok(tasks) => tasks,
        Err(error) => return Ok(refuse(&step, &begin, &Refusal::Tasks(error))),
    };
    ft_sys::gate::reach("part.door", Some(node.layout.node));
    drop(door);
    let port = sockets.as_ref().and_then(|(tcp, _)| tcp.local_addr().ok()).map_or(0, |address| address.port());
    let host = ft_sys::process::host_name()?;
    let (id, number) = (node.step, node.layout.node);
    let (name, address, protocol) = (begin.node.clone(), begin.share.bind, ft_wire::version());
    let member = Member { node, name, host, address, port, protocol };
    let mut link = match meeting::dial(&step, &What::Part(Box::new(member))) {
        Ok(link) => link,
        // Nobody else hears of it.
        Err(error) => {
            tasks.refuse(&format!("node {}: {error}", begin.node));
            return Ok(1);
        }
    };
    // Who gives it up closes it.
    let Ok((Go { ranks, mut cluster }, _)) = link.receive(Some(OTHERS)) else { return Ok(1) };
    link.limit(MAX_SAID);
    let Ready { mut options, mut spec, helpers, held, soft } = ready;
    (options.ranks, spec.world_size) = (ranks, ranks);
    // A step has one program, which all ranks run.
    options.programs.iter_mut().for_each(|program| program.ranks = ranks);
    spec.programs.iter_mut().for_each(|program| program.ranks = ranks);
    if let Some(cluster) = &mut cluster {
        cluster.store.socket = begin.store.clone();
    }
    spec.node = Some(begin.node.clone());
    spec.cluster = cluster.as_deref().cloned();
    spec.nice = Some(begin.nice);
    spec.copy_rate = ft_sys::rate::stricter(spec.copy_rate, begin.copy_rate);
    spec.fabric.clone_from(&begin.fabric);
    let batch = cluster.as_deref().and_then(|cluster| Batch::of(&step, id, number, cluster));
    let mut second = Channel::from_stream(link.try_clone()?);
    let third = batch.is_some().then(|| link.try_clone()).transpose()?;
    let mut part = Part::new(link, begin, sockets, cluster, Some(tasks))?;
    part.batch = batch.zip(third);
    match Launcher::start(options, spec, helpers, held, soft, Some(part)) {
        Ok(launcher) => Ok(launcher.run()),
        Err(error) => {
            fails(&mut second, error.to_string())?;
            Ok(1)
        }
    }
}

/// There can be no part here. The front says why, and ends the step; its exit status.
fn refuse(step: &Step, begin: &Begin, refusal: &Refusal) -> i32 {
    let sentence = format!("node {}: {refusal}", begin.node);
    let what = What::Refused { status: refusal.status(), sentence };
    let told: Result<Channel, _> = meeting::dial(step, &what);
    i32::from(told.map_or(1, |_| refusal.status()))
}
