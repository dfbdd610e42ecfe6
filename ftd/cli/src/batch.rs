//! The sbatch that a step is in. With the node of its script the front of its steps dies, and Slurm, which is to leave the job its other nodes,
//! does no more than take that node from it: the job would go on with nobody in it until its time is over. A part that is left ends it.

use ft_sys::channel::Channel;
use ft_sys::meeting;
use ft_sys::timescale::scaled;
use ft_wire::Role;
use ft_wire::cluster::Cluster;
use ft_wire::part::{FromJobs, ToJobs};
use ft_wire::step::{self, BATCH, Step, StepId};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What was said to a machine that is there, it has taken within this time.
const TAKEN: Duration = Duration::from_millis(500);
/// A machine that cannot be reached for so long, and whose `ftd` has lost its lease, is gone. (Until it is suspected it may take [`meeting`]
/// another 15 s.)
const GONE: Duration = Duration::from_secs(15);
/// Who is not found out by then is left alone.
const PATIENCE: Duration = Duration::from_secs(60);
/// A daemon that is there has asked etcd within this time.
const DAEMON: Duration = Duration::from_secs(5);
/// The nodes of a step look one after the other whether the job is still there …
const APART: Duration = Duration::from_secs(2);
/// … and of very many the last ones together.
const LAST: u32 = 8;
/// One attempt to reach it.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Pause between attempts.
const AGAIN: Duration = Duration::from_secs(1);
/// A controller that is busy, or starts, has answered within this time.
const CONTROLLER: Duration = Duration::from_secs(30);
/// One of Slurm's commands has so long.
const ANSWER: Duration = Duration::from_secs(10);

/// The job that the step is in, and where its script runs.
#[derive(Debug)]
pub struct Batch {
    job: u32,
    /// Slurm's name of the script's node.
    host: String,
    /// ftd's.
    name: String,
    /// How often the job had been queued again when the step began.
    restarts: u64,
    node: u32,
    /// Where the front listens.
    front: Vec<SocketAddr>,
}

/// What becomes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing: it is over, or somebody has seen to it.
    None,
    Requeued,
    Cancelled,
}

impl Batch {
    /// If the step is in one.
    pub fn of(step: &Step, id: StepId, node: u32, cluster: &Cluster) -> Option<Batch> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let both = variable(BATCH)?;
        let (host, machine) = both.split_once(' ')?;
        // Of another node it is not known whether it is there.
        let name = cluster.nodes.iter().find(|node| node.host == machine)?.name.clone();
        Some(Batch {
            job: id.job,
            host: host.into(),
            name,
            restarts: variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0),
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
            let (found, now) = (places.iter().map(look).max().unwrap_or(Found::Nobody), Instant::now());
            if found == Found::Process || now >= last {
                return;
            }
            // Others may reach it, whom this node does not.
            if found == Found::Nobody && now >= first && self.has_lost_lease() {
                return self.end();
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

    fn end(&self) {
        let until = Instant::now() + CONTROLLER;
        let job = self.job.to_string();
        let said = loop {
            match ask("scontrol", &["--oneliner", "show", "job", &job]) {
                Ok(text) => break text,
                Err(_) if Instant::now() < until => std::thread::sleep(AGAIN),
                Err(_) => return,
            }
        };
        let Some(about) = self.own(&said) else { return };
        let fate = self.fate(&about);
        let becomes = match fate {
            Fate::None => return,
            Fate::Requeued => "is queued again",
            Fate::Cancelled => "is cancelled, for it was not to be queued again",
        };
        let Some(name) = self.named(&about) else { return };
        let gone =
            format!("ftd: node {}, where the script of job {name} ran, is gone, and the script with it", self.host);
        // It may be on that node alone, or be none of the user's any more. In one piece: others may write there.
        let errors = about.get("StdErr").and_then(|path| regular(path));
        errors.into_iter().for_each(|mut file| drop(file.write_all(format!("{gone}: the job {becomes}\n").as_bytes())));
        if fate == Fate::Requeued {
            if ask("scontrol", &["requeue", &name]).is_ok() {
                return;
            }
            // Another node may have done it, or this one's word have come though its answer did not.
            let again = ask("scontrol", &["--oneliner", "show", "job", &job]).unwrap_or_default();
            if self.own(&again).is_none_or(|about| self.fate(&about) == Fate::None) {
                return;
            }
        }
        // It is over otherwise, or nobody can end it.
        let _ = ask("scancel", &["--quiet", &name]);
    }

    /// What is said of this job. Of an array, whose first number is that of one of its jobs, there may be a line for each.
    fn own<'a>(&self, said: &'a str) -> Option<BTreeMap<&'a str, &'a str>> {
        let job = self.job.to_string();
        said.lines().map(fields).find(|about| about.get("JobId").is_some_and(|found| *found == job))
    }

    /// What it is called: by its number alone all of an array are meant.
    fn named(&self, about: &BTreeMap<&str, &str>) -> Option<String> {
        match (about.get("ArrayJobId"), about.get("ArrayTaskId")) {
            (None, None) => Some(self.job.to_string()),
            (Some(array), Some(task)) if task.parse::<u32>().is_ok() => Some(format!("{array}_{task}")),
            _ => None,
        }
    }

    /// What becomes of a job of which the controller says that.
    fn fate(&self, about: &BTreeMap<&str, &str>) -> Fate {
        let is = |name: &str, value: &str| about.get(name).is_some_and(|found| *found == value);
        let mine = is("BatchHost", &self.host) && is("Restarts", &self.restarts.to_string());
        match is("JobState", "RUNNING") && is("BatchFlag", "1") && mine {
            false => Fate::None,
            true if is("Requeue", "1") => Fate::Requeued,
            true => Fate::Cancelled,
        }
    }
}

/// A file to which a line may be added: what is none might not be opened for as long as nobody reads it.
fn regular(path: &str) -> Option<File> {
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).custom_flags(flags).open(path).ok()?;
    file.metadata().is_ok_and(|file| file.is_file()).then_some(file)
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

/// Who is found at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nobody,
    /// Which has nobody who listens there.
    Machine,
    Process,
}

fn look(place: &SocketAddr) -> Found {
    use io::ErrorKind::{HostUnreachable, TimedOut};
    match TcpStream::connect_timeout(place, ATTEMPT) {
        Ok(_) => Found::Process,
        Err(error) if matches!(error.kind(), TimedOut | HostUnreachable) => Found::Nobody,
        // It refuses, or it is this machine that has no way, or no descriptor.
        Err(_) => Found::Machine,
    }
}

/// Where slurmds listen.
fn port_of_slurmd() -> Option<u16> {
    let said = ask("scontrol", &["show", "config"]).ok()?;
    let line = said.lines().find(|line| line.starts_with("SlurmdPort"))?;
    line.split_once('=')?.1.trim().split('-').next()?.parse().ok()
}

/// One of Slurm's commands; what it says.
fn ask(command: &str, words: &[&str]) -> io::Result<String> {
    let along = std::env::var_os("PATH").unwrap_or_default();
    let everywhere = [&*along, OsStr::new("/usr/local/bin:/usr/bin")].join(OsStr::new(":"));
    let file = std::env::split_paths(&everywhere).map(|directory| directory.join(command)).find(|file| file.is_file());
    let file = file.ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(file);
    let mut running = command.args(words).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (say, said) = mpsc::channel();
    let out = running.stdout.take();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = out.map_or(Ok(0), |mut out| out.read_to_end(&mut text));
        // Who asked may have given up.
        let _ = say.send(read.map(|_| text));
    });
    let said = said.recv_timeout(ANSWER);
    if said.is_err() {
        running.kill()?;
    }
    let status = running.wait()?;
    match said {
        Ok(Ok(text)) if status.success() => Ok(String::from_utf8_lossy(&text).into()),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) => Err(io::ErrorKind::Other.into()),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// `NAME=VALUE` in one line.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn batch(front: Vec<SocketAddr>) -> Batch {
        Batch { job: 7, host: "n1".into(), name: "m1".into(), restarts: 0, node: 2, front }
    }

    const ABOUT: &str =
        "JobId=7 JobName=x JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 BatchHost=n1 StdErr=/a/b";

    #[test]
    fn only_the_job_that_was_is_ended() {
        let fate = |text: &str| batch(Vec::new()).fate(&fields(text));
        assert_eq!(fate(ABOUT), Fate::Requeued);
        assert_eq!(fate(&ABOUT.replace("Requeue=1", "Requeue=0")), Fate::Cancelled);
        for (from, to) in
            [("RUNNING", "PENDING"), ("Flag=1", "Flag=0"), ("Host=n1", "Host=n2"), ("Restarts=0", "Restarts=1")]
        {
            assert_eq!(fate(&ABOUT.replace(from, to)), Fate::None, "{to}");
        }
        assert_eq!(fate("slurm_load_jobs error: Invalid job id specified"), Fate::None);
    }

    #[test]
    fn of_an_array_one_job_is_meant() {
        let of = "ArrayJobId=5 ArrayTaskId";
        let said = format!("JobId=5 {of}=3-9 JobState=PENDING\n{} {of}=2", ABOUT);
        let batch = batch(Vec::new());
        let about = batch.own(&said).unwrap();
        assert_eq!((batch.fate(&about), batch.named(&about).as_deref()), (Fate::Requeued, Some("5_2")));
        let about = fields(ABOUT);
        assert_eq!(batch.named(&about).as_deref(), Some("7"));
        let rest = format!("{ABOUT} {of}=3-9");
        assert_eq!(batch.named(&fields(&rest)), None, "it is no one of them");
        assert!(batch.own("JobId=77 JobState=RUNNING").is_none());
    }

    #[test]
    fn a_machine_that_refuses_is_there() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let place = listener.local_addr().unwrap();
        assert_eq!(look(&place), Found::Process);
        drop(listener);
        assert_eq!(look(&place), Found::Machine);
        assert_eq!(batch(vec![place]).places(Some(9)), [SocketAddr::new(place.ip(), 9)]);
        assert_eq!(batch(vec![place]).places(None), [place]);
    }
}
