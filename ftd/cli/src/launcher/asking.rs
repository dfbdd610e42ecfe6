//! Asks the agent and the shepherds every second whether they are there, and gets them going again, or replaces them.

use super::Launcher;
use crate::keepers::Keepers;
use ft_sys::process::condition;
use ft_sys::pulse::{Pulse, Treatment};
use ft_wire::Slot;
use ft_wire::launcher::ToAgent;
use ft_wire::shepherd::Lifeline;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::time::Instant;

/// Who does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Agent,
    Shepherd(Slot),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Agent => f.write_str("the agent"),
            Who::Shepherd(slot) => write!(f, "the shepherd of slot {slot}"),
        }
    }
}

impl Launcher {
    /// To be called again and again; does something once a second.
    pub(super) fn ask_helpers(&mut self, now: Instant) {
        if self.ending.is_some() || now < self.beat.next() {
            return;
        }
        let in_time = self.beat.beat(now);
        if let Some(signal) = self.front.look() {
            self.tell(&ToAgent::Signal(signal));
        }
        for shepherd in self.shepherds.values_mut() {
            let mut answers = [0; 64];
            if matches!(shepherd.lifeline.read(&mut answers), Ok(1..)) {
                shepherd.pulse.answered();
            }
            if shepherd.pulse.ask(in_time, now) {
                // One question that was not read yet is as good as two.
                let _ = shepherd.lifeline.write(&[Lifeline::ASK]);
            }
        }
        if self.agent.as_mut().is_some_and(|agent| agent.pulse.ask(in_time, now)) {
            self.tell(&ToAgent::Ask);
        }
        self.tell_silent();
        let overdue = self.treat(now);
        self.replace_one(&overdue, now);
    }

    /// What silent shepherds owe the agent is not overdue.
    fn tell_silent(&mut self) {
        let silent = |(slot, shepherd): (&Slot, &super::Shepherd)| shepherd.pulse.is_silent().then_some(*slot);
        let silent: BTreeSet<Slot> = self.shepherds.iter().filter_map(silent).collect();
        if silent != self.told_silent {
            self.tell(&ToAgent::Silent { slots: silent.iter().copied().collect() });
            self.told_silent = silent;
        }
    }

    /// Gets the silent going again; those who have had their time for it.
    fn treat(&mut self, now: Instant) -> Vec<(Who, i32)> {
        let agent = self.agent.iter_mut().map(|agent| (Who::Agent, agent.pid, &mut agent.pulse));
        let shepherds = self.shepherds.iter_mut();
        let shepherds = shepherds.map(|(slot, shepherd)| (Who::Shepherd(*slot), shepherd.pid, &mut shepherd.pulse));
        let (mut overdue, mut said) = (Vec::new(), Vec::new());
        for (who, pid, pulse) in agent.chain(shepherds).filter(|(_, _, pulse)| pulse.is_silent()) {
            match pulse.treat(condition(pid), now) {
                Treatment::Leave => {}
                Treatment::Traced(by) => {
                    said.push(format!(
                        "{who} (process {pid}) does not answer; process {by} traces it: it is left alone"
                    ));
                }
                Treatment::Continue(first) => {
                    ft_sys::process::kill(pid, nix::libc::SIGCONT);
                    if first {
                        said.push(format!("{who} (process {pid}) was stopped and is continued"));
                    }
                }
                Treatment::End => overdue.push((who, pid)),
            }
        }
        for line in said {
            self.output.say(&format!("ftrun: {line}"));
        }
        overdue
    }

    fn pulses(&self) -> impl Iterator<Item = &Pulse> {
        let agent = self.agent.iter().map(|agent| &agent.pulse);
        agent.chain(self.shepherds.values().map(|shepherd| &shepherd.pulse))
    }

    /// Ends one that has not answered for too long, as if it had died; the next one when that one is replaced.
    fn replace_one(&mut self, overdue: &[(Who, i32)], now: Instant) {
        if self.pulses().any(|pulse| pulse.outlives_its_end(now)) {
            return self.give_up(1, "a process of ftd's does not answer and cannot be killed: the job cannot go on");
        }
        if overdue.is_empty() || self.sweep.is_some() || self.pulses().any(Pulse::is_ended) {
            return;
        }
        let Some((who, pid)) = overdue.iter().find(|(who, _)| self.may_end(*who)).copied() else {
            if !std::mem::replace(&mut self.said_last_keeper, true) {
                let (who, pid) = overdue[0];
                self.output.say(&format!(
                    "ftrun: {who} (process {pid}) does not answer, and is not ended: it may keep the last copy of a checkpoint"
                ));
            }
            return;
        };
        self.output.say(&format!("ftrun: {who} (process {pid}) does not answer: it is ended and replaced"));
        ft_sys::process::kill(pid, nix::libc::SIGKILL);
        let pulse = match who {
            Who::Agent => self.agent.as_mut().map(|agent| &mut agent.pulse),
            Who::Shepherd(slot) => self.shepherds.get_mut(&slot).map(|shepherd| &mut shepherd.pulse),
        };
        if let Some(pulse) = pulse {
            pulse.end(now);
        }
    }

    /// Never the last keeper of an arena.
    fn may_end(&self, who: Who) -> bool {
        let silent = self.shepherds.iter().filter(|(_, shepherd)| shepherd.pulse.is_silent()).map(|(slot, _)| *slot);
        let agent = self.agent.as_ref().filter(|agent| agent.heard && !agent.pulse.is_silent());
        let keepers = Keepers {
            shepherds: self.options.ranks as usize,
            died: self.died,
            silent: silent.collect(),
            absent: agent.iter().flat_map(|agent| &agent.absent).copied().collect(),
            agent: agent.is_some(),
        };
        match who {
            Who::Agent => keepers.may_end_agent(),
            Who::Shepherd(slot) => keepers.may_end_shepherd(slot),
        }
    }

    /// The agent is there, and knows all shepherds but these.
    pub(super) fn agent_is_here(&mut self, absent: Vec<Slot>) {
        let Some(agent) = &mut self.agent else { return };
        agent.pulse.answered();
        agent.heard = true;
        if absent.is_empty() {
            self.died = 0;
        }
        agent.absent = absent;
    }
}
