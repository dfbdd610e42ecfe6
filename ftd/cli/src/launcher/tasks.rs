//! Shepherds that are tasks of Slurm's, and no children of this process. One that ends is not started again: Slurm starts no other.

use super::{LEAVE, LaunchError, Launcher, Shepherd, system};
use ft_sys::job_time;
use ft_sys::pulse::Pulse;
use ft_wire::shepherd::Lifeline;
use ft_wire::step::{Place, Stdin};
use ft_wire::{Rank, Slot};
use nix::poll::{PollFd, PollFlags, poll};
use std::io::Write;
use std::os::fd::AsFd;

impl Launcher {
    /// Whether the shepherds are tasks.
    pub(super) fn has_tasks(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.tasks.is_some())
    }

    /// Gives a slot's task its place.
    pub(super) fn seat(&mut self, slot: Slot) -> Result<(), LaunchError> {
        // A step has one program.
        let Some(held) = self.held.first() else { return Ok(()) };
        let (stdin, kind) = match self.input.for_shepherd() {
            None => (None, Stdin::Null),
            Some((fd, _, Some(offset))) => (Some(fd), Stdin::File(offset)),
            Some((fd, ..)) => (Some(fd), Stdin::Spool),
        };
        let place = Place {
            socket: self.directory.socket(),
            soft_limits: (self.soft.files, self.soft.tasks),
            nice: self.spec.nice,
            then: held.then(),
            is_binary: held.is_binary(),
            stdin: kind,
        };
        let descriptors: Vec<_> = held.descriptors().into_iter().chain(stdin).collect();
        let Some(tasks) = self.part.as_mut().and_then(|part| part.tasks.as_mut()) else { return Ok(()) };
        let seated =
            tasks.seat(slot, place, &descriptors).map_err(system("a task of Slurm's has not taken its place"))?;
        let shepherd = Shepherd {
            pid: seated.held.identity.pid,
            task: Some(seated.held),
            lifeline: seated.lifeline,
            pulse: Pulse::default(),
            pipes: None,
            rank: None::<Rank>,
            dialled: false,
            lost_output: false,
            is_empty: false,
            unborn: 0,
        };
        let pid = shepherd.pid;
        self.shepherds.insert(slot, shepherd);
        self.verbose(|| format!("slot {slot}: shepherd {pid}"));
        Ok(())
    }

    /// Hears what tasks say, and who of them is gone. To be called again and again.
    pub(super) fn look_at_tasks(&mut self) {
        if !self.has_tasks() {
            return;
        }
        self.shepherds.values_mut().for_each(Shepherd::hear);
        self.part_with_empty();
        let is_gone = |shepherd: &Shepherd| shepherd.task.as_ref().is_some_and(|task| !task.lives());
        let gone: Vec<Slot> = self.shepherds.iter().filter(|(_, one)| is_gone(one)).map(|(slot, _)| *slot).collect();
        for slot in gone {
            if let Some(mut shepherd) = self.shepherds.remove(&slot) {
                shepherd.hear();
                self.lost_output |= shepherd.lost_output;
            }
            self.task_died(slot);
        }
    }

    /// Those that have nothing left below them need nothing but to be told how it ends.
    fn part_with_empty(&mut self) {
        let empty: Vec<Slot> = self.shepherds.iter().filter(|(_, one)| one.is_empty).map(|(slot, _)| *slot).collect();
        for slot in empty {
            let Some(shepherd) = self.shepherds.remove(&slot) else { continue };
            self.lost_output |= shepherd.lost_output;
            if let Some(tasks) = self.part.as_mut().and_then(|part| part.tasks.as_mut()) {
                tasks.leaves(shepherd.lifeline);
            }
        }
    }

    fn task_died(&mut self, slot: Slot) {
        if self.ending.is_some() {
            return;
        }
        self.verbose(|| format!("slot {slot}: the task has ended"));
        let sentence = format!(
            "the task of slot {slot} has ended, and Slurm starts no other: what is left of the job here is ended"
        );
        self.give_up(1, &sentence);
    }

    /// Has every task empty its slot, without the agent, and waits until that is done, but not for ever.
    pub(super) fn empty_tasks(&mut self) {
        let until = job_time::now() + LEAVE;
        for shepherd in self.shepherds.values_mut() {
            let _ = shepherd.lifeline.write(&[Lifeline::OVER]);
        }
        while !self.shepherds.is_empty() && job_time::now() < until {
            let ends = self.shepherds.values().flat_map(|one| one.task.as_ref().map(AsFd::as_fd));
            let lines = self.shepherds.values().map(|one| one.lifeline.as_fd());
            let mut fds: Vec<PollFd<'_>> = ends.chain(lines).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            // Whatever it says, they are looked at.
            let _ = poll(&mut fds, ft_sys::patience::at_most(job_time::until(until)));
            drop(fds);
            self.shepherds.values_mut().for_each(Shepherd::hear);
            self.part_with_empty();
            self.shepherds.retain(|_, one| one.task.as_ref().is_some_and(ft_sys::individual::Held::lives));
        }
        for shepherd in std::mem::take(&mut self.shepherds).into_values() {
            shepherd.kill();
        }
        // What a dead one has left is nobody's child.
        if let Some(directory) = ft_sys::job_dir::Proven::recognise(&self.spec.job_dir) {
            ft_sys::stray::end_strays(&directory);
        }
    }
}

impl Shepherd {
    /// Ends it.
    pub(super) fn kill(&self) {
        match &self.task {
            // Who is gone is what is wanted.
            Some(task) => drop(task.signal(nix::libc::SIGKILL)),
            None => ft_sys::process::kill(self.pid, nix::libc::SIGKILL),
        }
    }
}
