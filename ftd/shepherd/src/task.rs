//! A shepherd that is a task of Slurm's (docs/decisions/slurm-steps.md): slurmstepd has executed it in the place of the program. The first one
//! of a node asks the node's daemon for the part; each gets from the part what `ftrun` would have written into its command line.

use crate::cancel;
use crate::for_rank::ForRank;
use crate::held::Held;
use crate::options::{Options, Stdin};
use crate::part::Part;
use ft_sys::channel::{Channel, ChannelError};
use ft_sys::individual;
use ft_sys::meeting;
use ft_sys::peer::Peer;
use ft_sys::timescale::scaled;
use ft_wire::Role;
use ft_wire::launcher::reaches_ranks;
use ft_wire::part::{FromJobs, ToJobs, split};
use ft_wire::step::{self, Answer, BATCH, DAEMON, Layout, OF_STEP, PROGRAM, Place, Request, STEP, Step, What};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{self, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A daemon that is being started again is back within this time.
const BACK: Duration = Duration::from_secs(5);
/// Pause between attempts to dial it.
const RETRY: Duration = Duration::from_millis(50);
/// A daemon that is there answers at once …
const ANSWER: Duration = Duration::from_secs(5);
/// … and has started the part, or not, within this time.
const STARTED: Duration = Duration::from_secs(40);
/// The part is there within this time, or the node's first task has said why not.
const PART: Duration = Duration::from_secs(60);
/// The other tasks of a node where there is no part come within this time.
const OTHERS: Duration = Duration::from_secs(5);
/// Pause between attempts to dial. The part is not there before it has been started, and of many tasks each one's attempts delay that.
const REDIAL: Duration = Duration::from_millis(10);

/// What such a shepherd has beside what every one has.
#[derive(Debug)]
pub struct Task {
    /// Its parent, slurmstepd: when that is gone nobody of the step is anybody's.
    parent: Option<individual::Held>,
    part: Part,
    signals: ForRank,
    environment: Environment,
}

/// There is no job on this node.
#[derive(Debug)]
pub enum NoJob {
    /// Why; nobody has said it yet.
    Because(String),
    /// That has been said elsewhere.
    Said,
}

impl From<String> for NoJob {
    fn from(sentence: String) -> NoJob {
        NoJob::Because(sentence)
    }
}

/// What the front has put into the environment: the step, and the number that the front speaks.
fn written() -> Result<(Step, u32), String> {
    let text = std::env::var(STEP).map_err(|_| format!("{STEP} is missing in the task's environment"))?;
    let step = Step::from_text(&text).map_err(|error| error.to_string())?;
    Ok((step, step::spoken(&text).unwrap_or_default()))
}

/// What Slurm says of a task.
struct Known {
    step: Step,
    /// The number that the front speaks.
    front: u32,
    layout: Layout,
    /// Its number on its node.
    local: u32,
    slot: ft_wire::Slot,
}

impl Known {
    fn read(step: Step, front: u32) -> Result<Known, String> {
        let number = |name: &str| {
            let text = std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
            text.ok_or(format!("Slurm has set no {name} for its task"))
        };
        let local = number("SLURM_LOCALID")?;
        let slots = std::env::var("SLURM_GTIDS").unwrap_or_default();
        let slots = slots.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>().unwrap_or_default();
        if !slots.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return Err("--ft needs the tasks of a node to follow each other (--distribution=block)".into());
        }
        let slot = number("SLURM_PROCID")?;
        let layout = Layout {
            node: number("SLURM_NODEID")?,
            nodes: number("SLURM_STEP_NUM_NODES")?,
            first: slot.saturating_sub(local),
            tasks: u32::try_from(slots.len()).unwrap_or(u32::MAX).max(1),
            all: number("SLURM_STEP_NUM_TASKS")?,
        };
        Ok(Known { step, front, layout, local, slot })
    }

    fn is_first(&self) -> bool {
        self.local == 0
    }

    /// Where the node's part listens.
    fn door(&self) -> io::Result<net::SocketAddr> {
        net::SocketAddr::from_abstract_name(step::door(
            &meeting::word(&self.step.secret.0, step::DOOR),
            self.layout.node,
        ))
    }
}

/// Becomes a shepherd of the step.
///
/// # Errors
/// There is no job here; whoever has to know has been told.
pub fn join(program: OsString, mut arguments: impl Iterator<Item = OsString>) -> Result<(Options, Task), ()> {
    // Where Slurm puts a program before another one, that is the first argument.
    let program = Some(program).filter(|program| !program.is_empty()).or_else(|| arguments.next()).unwrap_or_default();
    // All tasks of a node would say the same.
    let is_another = std::env::var("SLURM_LOCALID").is_ok_and(|local| local != "0");
    let give_up = |step: Option<&Step>, sentence: String| {
        if !is_another && !tell(step, &sentence) {
            cancel::step();
        }
    };
    let (step, front) = written().map_err(|sentence| give_up(None, sentence))?;
    let known = Known::read(step.clone(), front).map_err(|sentence| give_up(Some(&step), sentence))?;
    match attempt(&known, program, arguments) {
        Ok(joined) => Ok(joined),
        Err(NoJob::Said) => Err(()),
        Err(NoJob::Because(sentence)) => {
            let told = tell(Some(&known.step), &sentence);
            if known.is_first() {
                turn_others_away(&known);
            }
            if known.is_first() && !told {
                cancel::step();
            }
            Err(())
        }
    }
}

fn attempt(
    known: &Known,
    program: OsString,
    arguments: impl Iterator<Item = OsString>,
) -> Result<(Options, Task), NoJob> {
    let system = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let parent = individual::Held::of(nix::unistd::getppid().as_raw());
    ft_sys::process::close_on_exec_from(3).map_err(system("descriptors cannot be closed"))?;
    if known.is_first() {
        register(known, program, arguments)?;
    }
    let (place, descriptors, part) = ask(known)?;
    let signals = ForRank::hear().map_err(|errno| format!("signals cannot be heard: {errno}"))?;
    ft_sys::slice::shorten();
    let (options, first) = options(known.slot, place, descriptors)?;
    let environment = Environment::new(first).map_err(system("the first task's environment cannot be read"))?;
    Ok((options, Task { parent, part, signals, environment }))
}

/// Has the node's daemon start the part.
fn register(known: &Known, program: OsString, arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let path = std::env::var_os("FT_DAEMON").filter(|path| !path.is_empty());
    let path = path.map_or_else(|| DAEMON.into(), PathBuf::from);
    let mut daemon = dial(&path).map_err(|error| match error {
        ChannelError::Dial { path, error } => format!(
            "no ftd answers on {}: {error}; --ft needs it on every node of the step (systemctl status ftd)",
            path.display()
        ),
        error => format!("ftd ({}): {error}", path.display()),
    })?;
    let options = known.step.options.iter().cloned().map(OsString::from_vec);
    let words = std::iter::once("ftrun".into()).chain(options).chain(["--".into(), program]).chain(arguments);
    let variables = std::env::vars_os().filter(|(name, _)| name != PROGRAM);
    let image = ft_sys::image::of_this_process(words, variables)
        .map_err(|error| format!("the task's working directory cannot be used: {error}"))?;
    let word = meeting::word(&known.step.secret.0, step::NAME);
    let request = Request { protocol: ft_wire::version(), front: known.front, word, layout: known.layout };
    // One that refuses may have closed its end by now, and what it has said is there to be read.
    let _ = daemon.send(&ToJobs::Step(Box::new(request)), &[]).and_then(|()| daemon.send(&image, &[]));
    match daemon.receive::<FromJobs>(Some(STARTED)) {
        Ok((FromJobs::Begun { .. }, _)) => Ok(()),
        Ok((FromJobs::Refused { sentence, .. } | FromJobs::Away(sentence), _)) => Err(sentence),
        Ok(_) => Err("ftd says something else than that it has started a part of the step".into()),
        Err(error) => Err(format!("ftd ({}): {error}", path.display())),
    }
}

/// Dials the node's daemon, which may be about to be there again.
fn dial(path: &Path) -> Result<Channel, ChannelError> {
    let until = Instant::now() + scaled(BACK);
    loop {
        match Channel::dial(path, Role::Launcher, ANSWER) {
            Err(error) if is_away(&error) && Instant::now() < until => {
                std::thread::sleep(RETRY);
            }
            said => return said,
        }
    }
}

/// Nobody listens there now, or whoever did ended before he said a word.
fn is_away(error: &ChannelError) -> bool {
    match error {
        ChannelError::Dial { error, .. } => {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        }
        ChannelError::Closed | ChannelError::Io(_) => true,
        _ => false,
    }
}

/// Asks the part what there is to know.
fn ask(known: &Known) -> Result<(Place, Vec<OwnedFd>, Part), NoJob> {
    ft_sys::gate::reach("shepherd.asks", Some(known.slot));
    let door = known.door().map_err(|error| error.to_string())?;
    let until = Instant::now() + PART;
    let stream = loop {
        match UnixStream::connect_addr(&door) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() >= until => {
                return Err(format!("the node's part of the step is not there: {error}").into());
            }
            Err(_) => std::thread::sleep(REDIAL),
        }
    };
    let peer = Peer::of(&stream).ok().filter(|peer| peer.uid == nix::unistd::getuid().as_raw());
    let Some(peer) = peer else {
        return Err(NoJob::Because("another user's process stands where the node's part of the step should be".into()));
    };
    let mut part = Channel::from_stream(stream);
    let own = io::stdin();
    let stdin: Vec<BorrowedFd<'_>> = known.is_first().then(|| own.as_fd()).into_iter().collect();
    let asked = part.exchange(Role::Shepherd, ANSWER).and_then(|_| part.send(&step::Task { slot: known.slot }, &stdin));
    asked.map_err(|_| NoJob::Said)?;
    // Nobody but the part reads it.
    let null = File::open("/dev/null").and_then(|null| ft_sys::process::put_at(null.as_fd(), 0));
    null.map_err(|error| format!("/dev/null: {error}"))?;
    // All nodes are waited for; who waits too long is ended by the front.
    match part.receive::<Answer>(None) {
        Ok((Answer::Seat(place), descriptors)) => Ok((place, descriptors, Part::of(peer.held))),
        Ok((Answer::No(sentence), _)) => {
            ft_sys::log::say(format_args!("ftd: {sentence}"));
            Err(NoJob::Said)
        }
        Err(_) => Err(NoJob::Said),
    }
}

/// What `ftrun` writes into a command line, and the first task's environment.
fn options(slot: ft_wire::Slot, place: Place, descriptors: Vec<OwnedFd>) -> Result<(Options, OwnedFd), String> {
    let wrong = || "the node's part of the step says something else than what a shepherd has to know".to_string();
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(wrong);
    let (lifeline, first) = (UnixStream::from(next()?), next()?);
    lifeline.set_nonblocking(true).map_err(|error| error.to_string())?;
    let (program, directory, content) = (next()?, next()?, next()?);
    let then = place.then.parse().map_err(|_| wrong())?;
    let held = Held::new(program, then, place.is_binary, content, directory);
    let stdin = match place.stdin {
        step::Stdin::Null => Stdin::Null,
        step::Stdin::File(offset) => Stdin::File(next()?, offset),
        step::Stdin::Spool => Stdin::Spool(next()?),
    };
    let job_dir = place.socket.parent().map(Path::to_path_buf).ok_or_else(wrong)?;
    let options = Options {
        slot,
        socket: place.socket,
        job_dir,
        lifeline,
        held: vec![held],
        stdin,
        pipes: None,
        soft_limits: Some(place.soft_limits),
        nice: place.nice,
    };
    Ok((options, first))
}

/// Tells the front that there can be no job, or, where that is not to be had, whoever reads the task's standard error. Whether the front knows.
fn tell(step: Option<&Step>, sentence: &str) -> bool {
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| "?".into());
    let sentence = if sentence.starts_with("node ") { sentence.into() } else { format!("node {node}: {sentence}") };
    let what = What::Refused { status: 1, sentence: sentence.clone() };
    let told = step.map(|step| meeting::dial(step, &what));
    match told {
        Some(Ok(_)) => return true,
        Some(Err(error)) => ft_sys::log::say(format_args!("ftd: {sentence} ({error})")),
        None => ft_sys::log::say(format_args!("ftd: {sentence}")),
    }
    false
}

/// The other tasks of this node wait for a part that will not be there.
fn turn_others_away(known: &Known) {
    let Some(listener) = known.door().ok().and_then(|door| UnixListener::bind_addr(&door).ok()) else { return };
    let (until, mut left) = (Instant::now() + OTHERS, known.layout.tasks.saturating_sub(1));
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    while left > 0 && Instant::now() < until {
        match listener.accept() {
            Ok(_) => left -= 1,
            Err(_) => std::thread::sleep(REDIAL),
        }
    }
}

impl Task {
    /// What is to be waited for: signals, and the end of slurmstepd.
    pub fn waited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.signals.as_fd()).chain(self.parent.as_ref().map(AsFd::as_fd))
    }

    /// Once the part has said its last word.
    pub fn wait_for_parts_end(&self) {
        self.part.wait_for_end();
    }

    /// Whether slurmstepd has ended.
    pub fn is_orphan(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| !parent.lives())
    }

    /// The next signal that is for the rank.
    pub fn next_signal(&self) -> Option<i32> {
        self.signals.next()
    }

    /// What a rank has in its environment here: what the agent says, made from the first task's, with what Slurm and its prologs have set
    /// for this task.
    pub fn environment(&self, said: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.environment.of_rank(said)
    }
}

type Variable = (Vec<u8>, Vec<u8>);

/// Environments of tasks.
#[derive(Debug)]
struct Environment {
    /// This task's.
    own: Vec<Variable>,
    /// The node's first task's, of which the agent makes a rank's.
    first: BTreeSet<Variable>,
}

impl Environment {
    fn new(first: OwnedFd) -> io::Result<Environment> {
        let mut text = Vec::new();
        // It was written through another descriptor of the same file.
        let mut file = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&first)))?;
        file.read_to_end(&mut text)?;
        // These end here.
        let own = std::env::vars_os().filter(|(name, _)| ![STEP, PROGRAM, BATCH].iter().any(|other| name == other));
        let own = own.map(|(name, value)| (name.into_vec(), value.into_vec()));
        Ok(Environment { own: own.collect(), first: split(&text).filter_map(variable).collect() })
    }

    fn of_rank(&self, said: &[Variable]) -> Vec<Variable> {
        let is_news = |variable: &&Variable| !self.first.contains(*variable);
        let news: Vec<&Variable> = said.iter().filter(is_news).collect();
        let is_own = |(name, value): &&Variable| {
            let known = self.first.iter().any(|(other, old)| other == name && old == value);
            // What the first task had as well, and the agent does not pass on, no rank gets.
            reaches_ranks(name)
                && news.iter().all(|(other, _)| other != name)
                && (!known || said.iter().any(|(other, _)| other == name))
        };
        let mut env: Vec<Variable> = self.own.iter().filter(is_own).chain(news.iter().copied()).cloned().collect();
        for name in OF_STEP {
            if let Some(told) = said.iter().find(|(other, _)| other == name.as_bytes()) {
                env.retain(|(other, _)| other != name.as_bytes());
                env.push(told.clone());
            }
        }
        env
    }
}

/// `NAME=value`.
fn variable(text: &[u8]) -> Option<Variable> {
    let at = text.iter().position(|byte| *byte == b'=')?;
    Some((text[..at].to_vec(), text[at + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Variable> {
        text.split_whitespace().filter_map(|word| variable(word.as_bytes())).collect()
    }

    fn text(variables: &[Variable]) -> String {
        let shown =
            |(name, value): &Variable| format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        let mut shown: Vec<String> = variables.iter().map(shown).collect();
        shown.sort();
        shown.join(" ")
    }

    #[test]
    fn a_rank_has_its_tasks_environment_and_ftds_on_top() {
        let environment = Environment {
            own: list("A=1 GPU=1 SLURM_PROCID=3 SLURM_LOCALID=1 PMI_X=1 LD_PRELOAD=mine FT_STEP=x GONE=1"),
            first: list("A=1 GPU=0 SLURM_PROCID=2 SLURM_LOCALID=0 PMI_X=1 LD_PRELOAD=mine FT_STEP=x GONE=1")
                .into_iter()
                .collect(),
        };
        // By chance the rank is the one that the first task has the number of.
        let said = list("A=1 GPU=0 SLURM_PROCID=2 SLURM_LOCALID=5 LD_PRELOAD=ours:mine FT_RANK=2");
        assert_eq!(
            text(&environment.of_rank(&said)),
            "A=1 FT_RANK=2 GPU=1 LD_PRELOAD=ours:mine SLURM_LOCALID=5 SLURM_PROCID=2"
        );
    }
}
