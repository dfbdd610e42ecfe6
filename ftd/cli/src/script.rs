//! The script of an sbatch whose node is gone: looks whether that is so, and ends the job. As the job's user, for a part of a step that is left, or
//! for a node's daemon where no step was there when it happened.

use ft_sys::timescale::scaled;
use ft_wire::step::{self, BATCH, Found};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A machine that cannot be reached for so long, and whose `ftd` has lost its lease, is gone.
pub const GONE: Duration = Duration::from_secs(15);
/// Pause between attempts.
pub const AGAIN: Duration = Duration::from_secs(1);
/// One attempt to reach it.
const ATTEMPT: Duration = Duration::from_secs(1);
/// A controller that is busy, or starts, has answered within this time.
const CONTROLLER: Duration = Duration::from_secs(30);
/// One of Slurm's commands has so long.
const ANSWER: Duration = Duration::from_secs(10);
/// Where slurmds listen when nobody says otherwise.
const SLURMD: u16 = 6818;

/// A job, and where its script runs.
#[derive(Debug)]
pub struct Script {
    /// The job's number.
    pub job: u32,
    /// Slurm's name of the script's node.
    pub host: String,
    /// How often the job had been queued again when the step began.
    pub restarts: u64,
}

/// What becomes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing: it is over, or somebody has seen to it.
    None,
    Requeued,
    Cancelled,
}

/// What a node's daemon asks for.
///
/// Returns nothing if it is something else.
pub fn asked_for(mut words: impl Iterator<Item = std::ffi::OsString>) -> Option<ExitCode> {
    let word = words.next()?;
    let (looks, ends) = (word == step::LOOK_FOR_SCRIPT, word == step::END_FOR_SCRIPT);
    if !looks && !ends {
        return None;
    }
    let job = words.next().and_then(|job| job.to_str()?.parse().ok());
    let Some(script) = job.and_then(|job| Script::of(job, &std::env::var(BATCH).ok()?)) else {
        return Some(ExitCode::FAILURE);
    };
    if ends {
        script.end();
        return Some(ExitCode::SUCCESS);
    }
    Some(script.find().map_or(ExitCode::FAILURE, |found| ExitCode::from(found as u8)))
}

impl Script {
    /// `batch` is what the front says of the script's node, or that alone. The environment says the rest.
    pub fn of(job: u32, batch: &str) -> Option<Script> {
        let host = batch.split_once(' ').map_or(batch, |(host, _)| host).to_string();
        let restarts = std::env::var("SLURM_RESTART_COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        (!host.is_empty()).then_some(Script { job, host, restarts })
    }

    /// What has become of it. Nothing where Slurm's controller does not say that.
    fn find(&self) -> Option<Found> {
        let said = match ask("scontrol", &["--oneliner", "show", "job", &self.job.to_string()]) {
            Ok(said) => said,
            // It has forgotten the job, or is away.
            Err(_) => return ask("scontrol", &["ping"]).ok().filter(|said| said.contains("UP")).map(|_| Found::Over),
        };
        match self.own(&said).map_or(Stands::Over, |about| self.stands(&about)) {
            Stands::Over => return Some(Found::Over),
            Stands::Waits => return Some(Found::There),
            Stands::Runs => {}
        }
        let places = self.slurmd()?;
        let until = Instant::now() + scaled(GONE);
        loop {
            // A machine that goes down ends one process after the other.
            std::thread::sleep(scaled(AGAIN));
            let (seen, now) = (places.iter().map(look).max().unwrap_or(Seen::Nobody), Instant::now());
            match seen {
                Seen::Process => return Some(Found::There),
                Seen::Nobody if now >= until => return Some(Found::Silent),
                Seen::Machine if now >= until => return None,
                Seen::Nobody | Seen::Machine => {}
            }
        }
    }

    /// Where slurmd of the script's node listens.
    fn slurmd(&self) -> Option<Vec<SocketAddr>> {
        let said = ask("scontrol", &["--oneliner", "show", "node", &self.host]).ok()?;
        let about = fields(&said);
        let port = about.get("Port").and_then(|port| port.parse().ok()).or_else(port_of_slurmd).unwrap_or(SLURMD);
        let places: Vec<SocketAddr> = (*about.get("NodeAddr")?, port).to_socket_addrs().ok()?.collect();
        (!places.is_empty()).then_some(places)
    }

    /// Ends the job, if it is still that one, on that node.
    pub fn end(&self) {
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
        let shown = ask("scontrol", &["show", "job", &name]).unwrap_or_default();
        let errors = errors(&shown).and_then(regular);
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
        match self.stands(about) {
            Stands::Over | Stands::Waits => Fate::None,
            Stands::Runs if about.get("Requeue").is_some_and(|may| *may == "1") => Fate::Requeued,
            Stands::Runs => Fate::Cancelled,
        }
    }

    fn stands(&self, about: &BTreeMap<&str, &str>) -> Stands {
        let is = |name: &str, value: &str| about.get(name).is_some_and(|found| *found == value);
        let mine = is("BatchFlag", "1") && is("BatchHost", &self.host) && is("Restarts", &self.restarts.to_string());
        match about.get("JobState") {
            Some(&"RUNNING") if mine => Stands::Runs,
            Some(&("SUSPENDED" | "STOPPED" | "SIGNALING" | "RESIZING" | "CONFIGURING")) if mine => Stands::Waits,
            _ => Stands::Over,
        }
    }
}

/// How it stands with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// It has ended, or is another one's.
    Over,
    /// Its script is on that node, and does not run now.
    Waits,
    /// Its script is on that node.
    Runs,
}

/// Where a script's errors go, of what is said of its job in lines: a path may have blanks in it. That they go where its output does not all
/// releases say.
fn errors(said: &str) -> Option<&str> {
    let of = |name| said.lines().find_map(|line| line.trim_start().strip_prefix(name)).filter(|path| !path.is_empty());
    of("StdErr=").or_else(|| of("StdOut="))
}

/// A file to which a line may be added: what is none might not be opened for as long as nobody reads it.
fn regular(path: &str) -> Option<File> {
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).custom_flags(flags).open(path).ok()?;
    file.metadata().is_ok_and(|file| file.is_file()).then_some(file)
}

/// Who is found at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// Nothing answers.
    Nobody,
    /// A machine that has nobody who listens there.
    Machine,
    /// Somebody who listens.
    Process,
}

/// Who answers at a place.
pub fn look(place: &SocketAddr) -> Seen {
    use io::ErrorKind::{HostUnreachable, TimedOut};
    match TcpStream::connect_timeout(place, ATTEMPT) {
        Ok(_) => Seen::Process,
        Err(error) if matches!(error.kind(), TimedOut | HostUnreachable) => Seen::Nobody,
        // It refuses, or it is this machine that has no way, or no descriptor.
        Err(_) => Seen::Machine,
    }
}

/// Where slurmds listen.
pub fn port_of_slurmd() -> Option<u16> {
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

    fn script() -> Script {
        Script { job: 7, host: "n1".into(), restarts: 0 }
    }

    const ABOUT: &str =
        "JobId=7 JobName=x JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 BatchHost=n1 StdErr=/a/b";

    #[test]
    fn only_the_job_that_was_is_ended() {
        let fate = |text: &str| script().fate(&fields(text));
        assert_eq!(fate(ABOUT), Fate::Requeued);
        assert_eq!(fate(&ABOUT.replace("Requeue=1", "Requeue=0")), Fate::Cancelled);
        for (from, to) in
            [("RUNNING", "PENDING"), ("Flag=1", "Flag=0"), ("Host=n1", "Host=n2"), ("Restarts=0", "Restarts=1")]
        {
            assert_eq!(fate(&ABOUT.replace(from, to)), Fate::None, "{to}");
        }
        assert_eq!(fate("slurm_load_jobs error: Invalid job id specified"), Fate::None);
        let stands = |text: &str| script().stands(&fields(text));
        assert_eq!(stands(ABOUT), Stands::Runs);
        let suspended = ABOUT.replace("RUNNING", "SUSPENDED");
        assert_eq!((stands(&suspended), fate(&suspended)), (Stands::Waits, Fate::None), "it may go on there");
        assert_eq!(stands(&suspended.replace("Restarts=0", "Restarts=1")), Stands::Over);
    }

    #[test]
    fn of_an_array_one_job_is_meant() {
        let of = "ArrayJobId=5 ArrayTaskId";
        let said = format!("JobId=5 {of}=3-9 JobState=PENDING\n{} {of}=2", ABOUT);
        let script = script();
        let about = script.own(&said).unwrap();
        assert_eq!((script.fate(&about), script.named(&about).as_deref()), (Fate::Requeued, Some("5_2")));
        let about = fields(ABOUT);
        assert_eq!(script.named(&about).as_deref(), Some("7"));
        let rest = format!("{ABOUT} {of}=3-9");
        assert_eq!(script.named(&fields(&rest)), None, "it is no one of them");
        assert!(script.own("JobId=77 JobState=RUNNING").is_none());
    }

    #[test]
    fn the_last_words_go_where_the_scripts_errors_do() {
        // As Slurm 22.05 shows a job, and as later releases do whose errors go where its output does.
        let before = "JobId=7 JobName=x\n   Command=/a/StdErr= x/job.sh\n   WorkDir=/a b\n";
        let old =
            format!("{before}   StdErr=/a b/x=y.err\n   StdIn=/dev/null\n   StdOut=/a b/x.out\n   Power=\n   \n\n");
        assert_eq!(errors(&old), Some("/a b/x=y.err"));
        let new = format!("{before}   StdIn=/dev/null\n   StdOut=/a b/x.out\n   TresPerTask=cpu=1\n   \n\n");
        assert_eq!(errors(&new), Some("/a b/x.out"));
        assert_eq!(errors(&old.replace("/a b/x=y.err", "")), Some("/a b/x.out"));
        assert_eq!(errors("slurm_load_jobs error: Invalid job id specified"), None);
    }

    #[test]
    fn a_machine_that_refuses_is_there() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let place = listener.local_addr().unwrap();
        assert_eq!(look(&place), Seen::Process);
        drop(listener);
        assert_eq!(look(&place), Seen::Machine);
    }
}
