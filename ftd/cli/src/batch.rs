//! The sbatch that a step is in. With the node of its script the front of its steps dies, and Slurm, which is to leave the job its other nodes,
//! does no more than take that node from it: the job would go on with nobody in it until its time is over. A part that is left ends it.

use crate::script::{AGAIN, GONE, Script, Seen, look, port_of_slurmd};
use ft_sys::channel::Channel;
use ft_sys::meeting;
use ft_sys::timescale::scaled;
use ft_wire::Role;
use ft_wire::cluster::Cluster;
use ft_wire::part::{FromJobs, ToJobs};
use ft_wire::step::{self, BATCH, Step, StepId};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What was said to a machine that is there, it has taken within this time.
const TAKEN: Duration = Duration::from_millis(500);
/// Who is not found out by then is left alone. (Until a machine is suspected it may take [`meeting`] 15 s.)
const PATIENCE: Duration = Duration::from_secs(60);
/// A daemon that is there has asked etcd within this time.
const DAEMON: Duration = Duration::from_secs(5);
/// The nodes of a step look one after the other whether the job is still there …
const APART: Duration = Duration::from_secs(2);
/// … and of very many the last ones together.
const LAST: u32 = 8;

/// The job that the step is in, and where its script runs.
#[derive(Debug)]
pub struct Batch {
    script: Script,
    /// ftd's name of the script's node.
    name: String,
    node: u32,
    /// Where the front listens.
    front: Vec<SocketAddr>,
}

impl Batch {
    /// If the step is in one.
    pub fn of(step: &Step, id: StepId, node: u32, cluster: &Cluster) -> Option<Batch> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let both = variable(BATCH)?;
        let (_, machine) = both.split_once(' ')?;
        // Of another node it is not known whether it is there.
        let name = cluster.nodes.iter().find(|node| node.host == machine)?.name.clone();
        Some(Batch {
            script: Script::of(id.job, &both)?,
            name,
            node,
            // A machine that does not know its name says where it finds itself.
            front: meeting::places(step).into_iter().filter(|place| !place.ip().is_loopback()).collect(),
        })
    }

    /// When the part has said its last word on its link to the front: ends the job, if the machine of its script is gone.
    pub fn see_to(&self, link: &OwnedFd) {
        if self.front.is_empty() || has_taken(link) {
            return;
        }
        let places = self.places(port_of_slurmd());
        let begun = Instant::now();
        let (first, last) = (begun + scaled(GONE) + scaled(APART) * self.node.min(LAST), begun + scaled(PATIENCE));
        loop {
            // A machine that goes down ends one process after the other.
            std::thread::sleep(AGAIN);
            let (found, now) = (places.iter().map(look).max().unwrap_or(Seen::Nobody), Instant::now());
            if found == Seen::Process || now >= last {
                return;
            }
            // Others may reach it, whom this node does not.
            if found == Seen::Nobody && now >= first && self.has_lost_lease() {
                return self.script.end();
            }
        }
    }

    /// Whether the machine's `ftd` is not there for anybody. Where that is not known it is.
    fn has_lost_lease(&self) -> bool {
        let path = std::env::var_os("FT_DAEMON").filter(|path| !path.is_empty());
        let path = path.map_or_else(|| step::DAEMON.into(), PathBuf::from);
        let Ok(mut daemon) = Channel::dial(&path, Role::Launcher, DAEMON) else { return false };
        let asked = daemon.send(&ToJobs::Node(self.name.clone()), &[]);
        asked.is_ok() && matches!(daemon.receive::<FromJobs>(Some(DAEMON)), Ok((FromJobs::Gone, _)))
    }

    /// The front's machine, at the port of slurmd, which is there as long as Slurm is: what is between the machines lets that through.
    fn places(&self, slurmd: Option<u16>) -> Vec<SocketAddr> {
        self.front.iter().map(|place| SocketAddr::new(place.ip(), slurmd.unwrap_or(place.port()))).collect()
    }
}

/// Whether the other end is there and takes what it was sent last.
fn has_taken(link: &OwnedFd) -> bool {
    let until = Instant::now() + scaled(TAKEN);
    loop {
        match meeting::untaken(link.as_fd()) {
            Ok(0) => return true,
            Ok(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurmd_is_looked_for_on_the_front_s_machine() {
        let place: SocketAddr = "10.0.0.7:7001".parse().unwrap();
        let script = Script { job: 7, host: "n1".into(), restarts: 0 };
        let batch = Batch { script, name: "m1".into(), node: 2, front: vec![place] };
        assert_eq!(batch.places(Some(9)), [SocketAddr::new(place.ip(), 9)]);
        assert_eq!(batch.places(None), [place]);
    }
}
