//! Asks the agent and the shepherds again and again whether they are there, and gets them going again, or replaces them.

use super::Launcher;
use crate::keepers::Keepers;
use ft_sys::job_time;
use ft_sys::process::condition;
use ft_sys::pulse::{AfterEnd, DEVICE, OVERDUE, Pulse, Treatment};
use ft_sys::timescale::scaled;
use ft_wire::Slot;
use ft_wire::launcher::ToAgent;
use ft_wire::shepherd::Lifeline;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

/// The last keeper of an arena has so long more to answer before the job ends: long enough for a machine that stood still, and
/// for somebody who is told of it to do something.
const LAST_KEEPER: Duration = Duration::from_secs(60);
/// So many in a row may fail to come to work; with the next one it is not chance.
const MOST_UNBORN: u32 = 2;

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

/// All of them, with their numbers.
fn helpers<'a>(
    agent: &'a mut Option<super::AgentProcess>,
    shepherds: &'a mut BTreeMap<Slot, super::Shepherd>,
) -> impl Iterator<Item = (Who, i32, &'a mut Pulse)> {
    let agent = agent.iter_mut().map(|agent| (Who::Agent, agent.pid, &mut agent.pulse));
    agent.chain(shepherds.iter_mut().map(|(slot, shepherd)| (Who::Shepherd(*slot), shepherd.pid, &mut shepherd.pulse)))
}

impl Launcher {
    /// To be called again and again; does something once a second.
    pub(super) fn ask_helpers(&mut self) {
        let (real, now) = (Instant::now(), job_time::now());
        if self.ending.is_some() || real < self.beat.next() {
            return;
        }
        let in_time = self.beat.beat(real);
        self.miss_launcher(real, in_time);
        if self.ending.is_some() {
            return;
        }
        if let Some(signal) = self.front.look() {
            match signal {
                nix::libc::SIGCONT => job_time::go_on(),
                _ => job_time::stop(),
            }
            self.tell(&ToAgent::Signal(signal));
        }
        for shepherd in self.shepherds.values_mut() {
            shepherd.hear();
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
        let (mut overdue, mut said) = (Vec::new(), Vec::new());
        for (who, pid, pulse) in helpers(&mut self.agent, &mut self.shepherds).filter(|(_, _, pulse)| pulse.is_silent())
        {
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

    /// Those that were sent SIGKILL and are still there; whether one of them has been for too long.
    fn look_after_ended(&mut self, now: Instant) -> bool {
        let (mut too_long, mut said) = (false, Vec::new());
        for (who, pid, pulse) in helpers(&mut self.agent, &mut self.shepherds) {
            match pulse.after_end(condition(pid), now) {
                AfterEnd::Wait => {}
                AfterEnd::InKernel => said.push(format!(
                    "ftrun: {who} (process {pid}) waits in the kernel, for a disk or the like, where SIGKILL does not reach it: the job \
                     waits for its end, {} s at most",
                    DEVICE.as_secs()
                )),
                AfterEnd::GiveUp => too_long = true,
            }
        }
        said.iter().for_each(|line| self.output.say(line));
        too_long
    }

    /// Ends one that has not answered for too long, as if it had died; the next one when that one is replaced.
    fn replace_one(&mut self, overdue: &[(Who, i32)], now: Instant) {
        if self.look_after_ended(now) {
            let what = self.cannot_go_on();
            return self.give_up(1, &format!("a process of ftd's does not answer and cannot be killed: {what}"));
        }
        if self.orphans.is_some() || self.pulses().any(Pulse::is_ended) {
            return;
        }
        let found = overdue.iter().find(|(who, _)| self.may_end(*who)).copied();
        let Some((who, pid)) = found else { return self.wait_for_last(overdue, now) };
        self.stuck = None;
        if self.unborn_before(who) >= MOST_UNBORN {
            return self.give_up(1, &format!(
                "{who} (process {pid}) has not answered within {} s of its start, nor have the {MOST_UNBORN} that it replaced: \
                 something keeps ftd's processes from running, and {}",
                OVERDUE.as_secs(),
                self.cannot_go_on()
            ));
        }
        self.output.say(&format!("ftrun: {who} (process {pid}) does not answer: it is ended and replaced"));
        match who {
            Who::Shepherd(slot) => self.shepherds.get(&slot).into_iter().for_each(super::Shepherd::kill),
            Who::Agent => ft_sys::process::kill(pid, nix::libc::SIGKILL),
        }
        match who {
            Who::Agent => {
                self.mute_agents += 1;
                self.agent.iter_mut().for_each(|agent| agent.pulse.end(now));
            }
            Who::Shepherd(slot) => {
                let Some(shepherd) = self.shepherds.get_mut(&slot) else { return };
                shepherd.pulse.end(now);
                if !shepherd.dialled {
                    self.unborn.push(shepherd.unborn + 1);
                }
            }
        }
    }

    /// How many in a row before this one were ended like it without ever having come to work; none if it has.
    fn unborn_before(&self, who: Who) -> u32 {
        match who {
            Who::Agent => self.mute_agents,
            Who::Shepherd(slot) => self.shepherds.get(&slot).filter(|s| !s.dialled).map_or(0, |s| s.unborn),
        }
    }

    /// Nobody of these may be ended: their user may help them, or give them up; the job does not wait for ever.
    fn wait_for_last(&mut self, overdue: &[(Who, i32)], now: Instant) {
        let Some((who, pid)) = overdue.first().copied() else {
            self.stuck = None;
            return;
        };
        let patience = LAST_KEEPER.as_secs();
        let Some(since) = self.stuck else {
            self.stuck = Some(now);
            return self.output.say(&format!(
                "ftrun: {who} (process {pid}) does not answer, and is not ended: it may keep the last copy of a checkpoint. \
                 {} in {patience} s unless it answers; kill -9 {pid} gives the copy up",
                if self.is_alone() { "The job ends" } else { "This node's part of the job ends" }
            ));
        };
        if now.duration_since(since) < scaled(LAST_KEEPER) {
            return;
        }
        let silent: Vec<String> = overdue.iter().map(|(who, pid)| self.describe(*who, *pid)).collect();
        self.give_up(
            1,
            &format!(
                "{}: for {} s there has been no answer from {}, which may keep the last copy of a checkpoint. \
             Find out what keeps it from running{}",
                self.cannot_go_on(),
                OVERDUE.as_secs() + patience,
                silent.join(" and "),
                if self.is_alone() { ", and start the job again" } else { "" }
            ),
        );
    }

    fn describe(&self, who: Who, pid: i32) -> String {
        let rank = match who {
            Who::Agent => None,
            Who::Shepherd(slot) => self.shepherds.get(&slot).and_then(|shepherd| shepherd.rank),
        };
        let rank = rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
        let state = condition(pid).map(|found| format!(", state {}", found.state)).unwrap_or_default();
        format!("{who} ({rank}process {pid}{state})")
    }

    /// Never the last keeper of an arena.
    fn may_end(&self, who: Who) -> bool {
        let silent = self.shepherds.iter().filter(|(_, shepherd)| shepherd.pulse.is_silent()).map(|(slot, _)| *slot);
        let agent = self.agent.as_ref().filter(|agent| agent.heard && !agent.pulse.is_silent());
        let keepers = Keepers {
            shepherds: self.own_slots() as usize,
            died: self.died,
            silent: silent.collect(),
            absent: agent.iter().flat_map(|agent| &agent.absent).copied().collect(),
            unborn: self.shepherds.iter().filter(|(_, shepherd)| !shepherd.dialled).map(|(slot, _)| *slot).collect(),
            agent: agent.is_some(),
            arenas: self.arenas,
            complete: agent.is_some_and(|agent| agent.complete),
        };
        match who {
            Who::Agent => keepers.may_end_agent(),
            Who::Shepherd(slot) => keepers.may_end_shepherd(slot),
        }
    }

    /// The agent is there, and knows all shepherds but these.
    pub(super) fn agent_is_here(&mut self, absent: Vec<Slot>, complete: bool) {
        let Some(agent) = &mut self.agent else { return };
        agent.pulse.answered();
        agent.heard = true;
        agent.complete = complete;
        self.mute_agents = 0;
        if absent.is_empty() {
            self.died = 0;
        }
        agent.absent = absent;
    }
}
