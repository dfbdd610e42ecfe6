//! `ft-shepherd`: one per slot. Starts, watches, signals and kills the processes of its slot, and keeps duplicates of
//! arenas so that an agent's death loses no checkpoint. Single-threaded and tiny: it must never die of the application.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.

mod cancel;
mod feeder;
mod for_rank;
mod held;
mod interpreter;
mod leaving;
mod options;
mod output;
mod part;
mod slot;
mod start_error;
mod task;

use ft_sys::channel::{Channel, ChannelError};
use ft_sys::job_dir::{self, Proven};
use ft_sys::job_time;
use ft_wire::Role;
use ft_wire::shepherd::{Lifeline, ToAgent, ToShepherd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use options::Options;
use slot::Slot;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;
use task::Task;

/// How long the agent may take over the rest of its greeting once it has begun.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the removal of the job's directory, and of its cgroup, is tried.
const REMOVING: Duration = Duration::from_secs(2);
/// Pause between attempts to dial.
const REDIAL: Duration = Duration::from_millis(5);
/// How often what was killed is looked at again until it is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How often a program that somebody writes is tried again, and what a child has left behind is looked at.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// ftrun reads in this file which build it is of.
#[used]
static BUILD: fn() = ft_sys::build::keep;

fn main() -> ExitCode {
    ft_sys::process::die_of_faults();
    if let Some(program) = std::env::var_os(ft_wire::step::PROGRAM) {
        let Ok((options, task)) = task::join(program, std::env::args_os().skip(1)) else { return ExitCode::FAILURE };
        return tended(tend(options, Some(task)));
    }
    match Options::parse(std::env::args_os().skip(1)) {
        Ok(options) => tended(tend(options, None)),
        Err(sentence) => {
            ft_sys::log::say(format_args!("ftd: ft-shepherd: {sentence}"));
            ExitCode::from(2)
        }
    }
}

fn tended(tended: std::io::Result<u8>) -> ExitCode {
    match tended {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            ft_sys::log::say(format_args!("ftd: ft-shepherd: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the exit status.
fn tend(mut options: Options, task: Option<Task>) -> std::io::Result<u8> {
    ft_sys::process::set_subreaper()?;
    ft_sys::gate::reach("shepherd.born", Some(options.slot));
    ft_sys::process::survive_file_size_limit();
    // A task hears them, and one that is ignored now is lost if it has just come.
    if task.is_none() {
        for ignored in [Signal::SIGPIPE, Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM, Signal::SIGTSTP] {
            ft_sys::process::ignore_signal(ignored as i32);
        }
    }
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block()?;
    let deaths = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut shepherd = Shepherd {
        slot: Slot::new(&mut options, task),
        lifeline: options.lifeline,
        deaths,
        agent: None,
        over: false,
        directory: None,
    };
    while shepherd.launcher_lives() {
        if shepherd.agent.is_none() && !shepherd.dial(&options.socket, options.slot)? {
            shepherd.pause(REDIAL);
            continue;
        }
        if shepherd.turn()? == Turn::Exit {
            std::mem::forget(shepherd);
            return Ok(0);
        }
    }
    ft_sys::gate::reach("shepherd.leaves", Some(options.slot));
    // The launcher is dead, or the job is over: nothing below may stay, nor the job's files. The next line reads some of them,
    // which another shepherd may remove any moment.
    let litter = (!shepherd.over).then(|| ft_sys::litter::Litter::of_job(&options.job_dir));
    shepherd.slot.empty_now();
    if let Some(mut litter) = litter {
        clean_up_after_launcher(&mut shepherd, &options.job_dir, &mut litter);
    }
    let status = shepherd.farewell();
    // The exit gives the arenas back. Who looks at this process then sees one that has ended, and not one that hangs.
    std::mem::forget(shepherd);
    Ok(status)
}

/// All shepherds do this at the same time, and the agent, which may still be making files.
fn clean_up_after_launcher(shepherd: &mut Shepherd, job_dir: &std::path::Path, litter: &mut ft_sys::litter::Litter) {
    let Some(directory) = shepherd.directory.take().or_else(|| Proven::recognise(job_dir)) else {
        return job_dir::remove_abandoned(job_dir, REMOVING);
    };
    // A launcher that lives has started another shepherd than this one.
    let Some(_held) = directory.wait_abandoned(REMOVING) else { return };
    litter.read(job_dir);
    // A shepherd that was killed at the same time may have left some.
    ft_sys::stray::end_strays(&directory);
    litter.read(job_dir);
    // Whoever else does this as well: the notes go with the directory. There is nobody left to tell what stays.
    litter.sweep(ft_sys::litter::End::Killed);
    directory.group().inspect(|group| group.remove(REMOVING));
    directory.remove(REMOVING);
}

#[derive(PartialEq, Eq)]
enum Turn {
    Again,
    Exit,
}

struct Shepherd {
    slot: Slot,
    lifeline: UnixStream,
    deaths: SignalFd,
    agent: Option<Channel>,
    /// The launcher has said that the job is over.
    over: bool,
    /// The job's directory, once it was there.
    directory: Option<Proven>,
}

impl Shepherd {
    /// Reads what the launcher wrote; its end of file is the launcher's death, or the job's end. A task of Slurm's that is told of that end
    /// has something to say before it, and one whose slurmstepd is gone belongs to nobody.
    fn launcher_lives(&mut self) -> bool {
        self.reads_on() && self.slot.task().is_none_or(|task| !self.over && !task.is_orphan())
    }

    /// Tells the part that nothing is left here, and waits for the exit status, which is the job's: when the last of a step's tasks has ended
    /// Slurm kills what there is beside them. What is gone has nothing to say.
    fn farewell(&self) -> u8 {
        let Some(task) = self.slot.task() else { return 0 };
        let mut lifeline = &self.lifeline;
        let _ = lifeline.set_nonblocking(false);
        let mut status = [1];
        if self.over && lifeline.write_all(&[Lifeline::EMPTY]).is_ok() {
            // What was asked before that is no status.
            if lifeline.read_exact(&mut status).is_ok() {
                task.wait_for_parts_end();
            }
        }
        status[0]
    }

    /// See [`launcher_lives`](Self::launcher_lives).
    fn reads_on(&mut self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match self.lifeline.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => {
                    let said = &bytes[..count];
                    self.over |= said.contains(&Lifeline::OVER);
                    if said.contains(&Lifeline::ASK) {
                        // A launcher that reads nothing has answers enough.
                        let _ = self.lifeline.write(&[Lifeline::HERE]);
                    }
                    if said.contains(&Lifeline::GREW) {
                        self.slot.stdin_grew();
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Waits, but not when the launcher says something or is gone.
    fn pause(&self, time: Duration) {
        let mut lifeline = [PollFd::new(self.lifeline.as_fd(), PollFlags::POLLIN)];
        // Where it cannot be waited for there is no pause.
        let _ = poll(&mut lifeline, ft_sys::patience::at_most(time));
    }

    /// Connects to the agent. The launcher listens on behalf of an agent that is being started again, so this may wait for
    /// a while; but not beyond the launcher's life.
    fn dial(&mut self, socket: &std::path::Path, slot: ft_wire::Slot) -> std::io::Result<bool> {
        let Ok(stream) = UnixStream::connect(socket) else { return Ok(false) };
        let mut channel = Channel::from_stream(stream);
        if channel.greet(Role::Shepherd).is_err() || !self.answers(&channel)? {
            return Ok(false);
        }
        match channel.greeting(GREETING_TIMEOUT) {
            Ok(_) => {}
            Err(ChannelError::Frame(error)) => return Err(std::io::Error::other(error)),
            Err(_) => return Ok(false),
        }
        let (ranks, fds): (Vec<_>, Vec<BorrowedFd<'_>>) = self.slot.arenas().unzip();
        let hello = ToAgent::Hello { slot, pid: std::process::id() as i32, arenas: ranks };
        ft_sys::gate::reach("shepherd.dialled", Some(slot));
        // A launcher that does not read has heard it already.
        let _ = self.lifeline.write(&[Lifeline::DIALS]);
        let told = channel.send(&hello, &fds);
        let more = self.slot.own_ends().iter().cloned().chain(self.slot.remembered());
        if told.and_then(|()| more.into_iter().try_for_each(|word| channel.send(&word, &[]))).is_ok() {
            self.agent = Some(channel);
        }
        if self.directory.is_none() {
            self.directory = socket.parent().and_then(Proven::recognise);
            self.directory.as_ref().inspect(|directory| self.slot.enter(directory));
        }
        Ok(self.agent.is_some())
    }

    /// Waits until the dialled agent says something; false when the launcher is dead.
    fn answers(&mut self, channel: &Channel) -> std::io::Result<bool> {
        loop {
            let mut waited = [
                PollFd::new(channel.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.lifeline.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut waited, PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let said = waited[0].any().unwrap_or(false);
            let _ = self.deaths.read_signal();
            self.slot.reap();
            if !self.launcher_lives() {
                return Ok(false);
            }
            if said {
                return Ok(true);
            }
        }
    }

    /// Waits for the next thing to happen and does what it asks for.
    fn turn(&mut self) -> std::io::Result<Turn> {
        let Some(agent) = &self.agent else { return Ok(Turn::Again) };
        let mut waited = vec![
            PollFd::new(agent.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.lifeline.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN),
        ];
        let rank = self.slot.rank().map(|rank| {
            waited.push(PollFd::new(rank, PollFlags::POLLIN));
            waited.len() - 1
        });
        if let Some(pipe) = self.slot.feeding() {
            waited.push(PollFd::new(pipe, PollFlags::POLLOUT));
        }
        waited.extend(self.slot.task().into_iter().flat_map(Task::waited).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        waited.extend(self.slot.watched().map(|pipe| PollFd::new(pipe, PollFlags::empty())));
        let tries = (self.slot.waits_for_program() || self.slot.is_undecided()) && !job_time::is_stopped();
        let tried = if tries { TRY_AGAIN } else { Duration::MAX };
        let looked = self.slot.until_looked().min(self.slot.until_undecided()).min(self.slot.until_given());
        let ours = job_time::unhurried(tried.min(looked));
        // Only what goes by the job's time has to be looked at every second.
        let patience = job_time::piece(ours).min(self.slot.until_noted()).min(self.slot.until_lease());
        match poll(&mut waited, ft_sys::patience::at_most(patience)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        job_time::now();
        let happened = |at: usize| waited[at].any().unwrap_or(true);
        let (said, died, rank_ended) = (happened(0), happened(2), rank.is_some_and(happened));
        if rank_ended {
            self.slot.rank_ended();
        }
        self.slot.stop_without_lease();
        self.slot.go_on_undecided();
        self.slot.feed();
        let mut reports = self.slot.signalled();
        if died {
            let _ = self.deaths.read_signal();
            reports.extend(self.slot.reap());
        }
        let (exit, mut agent_gone) = if said { self.obey(&mut reports) } else { (false, false) };
        self.slot.stop_without_lease();
        reports.extend(self.slot.start_again());
        reports.extend(self.slot.give_pending());
        reports.extend(self.slot.decide());
        reports.extend(self.emptied());
        if let Some(agent) = &mut self.agent {
            agent_gone |= reports.iter().any(|report| agent.send(report, &[]).is_err());
        }
        if agent_gone {
            self.agent = None;
            self.leave_epoch();
        }
        self.slot.note();
        if exit {
            self.slot.empty_now();
            return Ok(Turn::Exit);
        }
        Ok(Turn::Again)
    }

    /// Goes on with emptying the slot. A loss the launcher is told itself: its status says so, whoever is the agent.
    fn emptied(&mut self) -> Vec<ToAgent> {
        let reports = self.slot.emptied();
        if self.slot.takes_loss() {
            let _ = self.lifeline.write(&[Lifeline::LOST]);
        }
        reports
    }

    /// Does what the agent says. Returns whether it says that this process is to end, and whether it is gone.
    fn obey(&mut self, reports: &mut Vec<ToAgent>) -> (bool, bool) {
        let mut exit = false;
        while let Some(agent) = &mut self.agent {
            match agent.try_receive::<ToShepherd>() {
                Ok(Some((ToShepherd::Exit, _))) => exit = true,
                Ok(Some((message, fds))) => reports.extend(self.slot.obey(message, fds)),
                Ok(None) => break,
                Err(error) => {
                    if !matches!(error, ChannelError::Closed) {
                        ft_sys::log::say(format_args!("ftd: slot {}: the agent's words: {error}", self.slot.number()));
                    }
                    return (exit, true);
                }
            }
        }
        (exit, false)
    }

    /// Without an agent nothing is agreed: what runs here belongs to no epoch any more. The next agent finds an empty slot.
    fn leave_epoch(&mut self) {
        self.slot.forget_lease();
        // The next agent says anew whether the user has stopped the job.
        let stopped = job_time::is_stopped();
        job_time::go_on();
        self.slot.stop(0, false, false);
        loop {
            let reports = self.emptied();
            if stopped {
                // Who is left passes on what it has.
                ft_sys::process::signal_descendants(nix::libc::SIGCONT);
            }
            for report in reports {
                if let ToAgent::Notice(sentence) = report {
                    ft_sys::log::say(format_args!("ftd: {sentence}"));
                }
            }
            if !self.slot.waits_for_filters() || !self.launcher_lives() {
                return self.slot.empty_now();
            }
            std::thread::sleep(LOOK_AGAIN);
            self.slot.reap();
        }
    }
}
