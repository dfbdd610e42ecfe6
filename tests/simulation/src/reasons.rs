//! Whether what a record says of the run is true: what has failed, and why the job ends. Each kind of reason is held against
//! what had happened when it was written.

use crate::application::Proc;
use crate::faults::{FOREVER, Fault, Planned};
use crate::net::Set;
use crate::setup::{MS, SECOND, Setup};
use crate::store::Trouble;
use crate::world::World;
use ftd_core::failure::signal_name;
use ftd_core::{
    Cause, EpochId, EpochRecord, Exit, Failure, FailureSet, Mode, NodeId, OwnEnd, Process, SlotId, SlotState, Subject,
};
use std::collections::BTreeSet;

/// A node that has been well for so long, and a store that answers, and the job knows of it.
const KNOWN: u64 = 3 * SECOND;

/// What was asked of the store while it was away is given up, and asked again, within this time.
const UNANSWERED: u64 = SECOND;

/// Who is to be killed is dead so soon.
const KILLED: u64 = 10 * MS;

/// A number that stands in a sentence between these words.
fn number(sentence: &str, before: &str, after: &str) -> Option<u64> {
    let (_, rest) = sentence.split_once(before)?;
    rest.split_once(after)?.0.parse().ok()
}

/// Whether this trouble keeps what a node asks of the store from being answered.
fn keeps_from_store(trouble: Trouble, place: usize) -> bool {
    match trouble {
        Trouble::NoRequests(set) | Trouble::NoAnswers(set) | Trouble::LateAnswers(set, _) => set.has(place),
        Trouble::Watches { .. } => false,
        _ => true,
    }
}

fn happened(setup: &Setup, until: u64) -> impl Iterator<Item = &Planned> {
    setup.faults.iter().filter(move |planned| planned.at <= until)
}

impl World {
    // ---- what has failed

    /// What a record says that has failed, and has not.
    pub fn false_failure(&self, failures: &FailureSet) -> Option<String> {
        // Whether who is left out had been silent is invariant 7.
        let silent = |failure: &Failure| failure.cause == Cause::NodeSilent;
        let wrong = failures.failures().iter().find(|failure| !silent(failure) && !self.has_failed(failure));
        let wrong = wrong.map(|failure| failure.to_string());
        let own = |collateral: &&ftd_core::Collateral| {
            !self.ranks.ends.iter().any(|(name, end, _)| (*name, *end) == (collateral.process, collateral.end))
        };
        wrong.or_else(|| {
            let collateral = failures.collateral().iter().find(own)?;
            Some(format!("{} {} because of it", collateral.process.rank, collateral.end))
        })
    }

    fn has_failed(&self, failure: &Failure) -> bool {
        match failure.subject {
            Subject::Process(process) => self.process_failed(process, failure.cause),
            Subject::Slot(slot) => !self.machines.iter().any(|machine| machine.slots.contains(&slot)),
            Subject::Node(node) => self.node_failed(node, failure.cause),
        }
    }

    fn process_failed(&self, process: Process, cause: Cause) -> bool {
        if let Cause::NotFetched(_) = cause {
            return self.checks.was_in_vain(process.rank);
        }
        let Some(proc) = self.ranks.named(process).map(|id| self.ranks.get(id)) else { return false };
        match (cause, proc.dead) {
            (Cause::Own(end), _) => self.ranks.ends.iter().any(|(name, own, _)| (*name, *own) == (process, end)),
            (Cause::Signal(signal), Some(Exit::Signal(of))) => signal == of,
            (Cause::Unknown, Some(exit)) => exit != Exit::Code(0),
            (Cause::NeverJoined, Some(exit)) => exit == Exit::Code(0) && !proc.joined(),
            _ => false,
        }
    }

    fn node_failed(&self, node: NodeId, cause: Cause) -> bool {
        let Some(machine) = self.machines.get(node.0 as usize) else { return false };
        let here = |fault: &Fault| matches!(fault, Fault::KillServer { node } if *node == machine.place);
        match cause {
            Cause::NodeSilent => self.may_be_out(node.0 as usize),
            Cause::AgentLost => machine.incarnation > 0,
            Cause::WorldServerLost => happened(&self.setup, self.now).any(|planned| here(&planned.fault)),
            // It had no lease for so long: its own link was cut, or its observers died.
            Cause::Fenced => {
                let long = self.setup.policy.fence_kill.0;
                happened(&self.setup, self.now).any(|planned| planned.at + long <= self.now)
            }
            _ => false,
        }
    }

    // ---- why the job ends

    /// Why the end that this record says is not true, at the moment when it is written.
    pub fn untrue(&self, by: usize, before: Option<&EpochRecord>, status: i32, reason: &str) -> Option<String> {
        if reason.contains("was cancelled by") {
            return self.untrue_cancel(status, reason);
        }
        if reason.contains("--ft=none recovers nothing") {
            let asked = self.setup.mode == Mode::None;
            let sentences = reason.split_once("; --ft=none").map_or("", |(failures, _)| failures);
            return (!asked).then(|| "recovery was asked for".to_string()).or_else(|| self.untold(before, sentences));
        }
        if reason.contains("cannot be placed") || reason.contains("cannot start") {
            return self.untrue_shortage(before, reason);
        }
        if reason.contains("epochs in a row lost a node") {
            return self.untrue_vain(before, reason);
        }
        if reason.contains("times in a row") {
            return self.untrue_loop(reason);
        }
        if reason.contains("was deleted from the store") {
            let deleted = happened(&self.setup, self.now).any(|planned| planned.fault == Fault::DeleteKey);
            return (!deleted).then(|| "nobody had deleted it".to_string());
        }
        if reason.contains("the store has not answered for") {
            return self.untrue_store(by);
        }
        if reason.contains("are still there") || reason.contains("is dying, and how it ended is not known") {
            return self.untrue_undead();
        }
        if reason.contains("called MPI_Abort") || reason.contains("exited with") {
            return self.untrue_own_end(status, reason);
        }
        Some("nothing of that kind had happened".to_string())
    }

    /// A rank's own end: that rank ended so, in this world, because it or another one wished it, and nobody had died before.
    fn untrue_own_end(&self, status: i32, reason: &str) -> Option<String> {
        let world = self.checks.world();
        let told = |(name, end, _): &&(Process, OwnEnd, u64)| {
            let id = self.ranks.named(*name);
            let node = id.map_or(NodeId(u32::MAX), |id| NodeId(self.ranks.get(id).node as u32));
            let sentence = match end {
                OwnEnd::NoFinalize => {
                    "exited with code 0 but without MPI_Finalize, and nobody had died before it".into()
                }
                end => end.to_string(),
            };
            name.world == world && reason == format!("{} on {node} {sentence}", name.rank)
        };
        let Some((name, end, at)) = self.ranks.ends.iter().find(told).copied() else {
            return Some(format!("no rank of {world} did so"));
        };
        if self.setup.policy.recover_aborts {
            return Some("that was to be recovered from".to_string());
        }
        if status != end.status() {
            return Some(format!("its status is {}", end.status()));
        }
        // Whoever follows a rank that ended by its own wish ends the job no less; which was first, other nodes cannot see.
        // One that ends in its handler wishes that, too.
        let wished = self.ranks.wishes.iter().any(|(wish, _, since)| wish.world == world && *since <= at)
            || self.signalled.iter().any(|(_, since)| *since <= at);
        let died = self.ranks.all().find(|proc| proc.name.world == world && self.died_before(proc, at));
        match died {
            Some(proc) => Some(format!("that rank did so because a peer had died ({}), or after it", proc.name.rank)),
            None if !wished => Some(format!("that rank did so because a peer had died, not {}", name.rank)),
            None => None,
        }
    }

    /// Whether it failed before this time. (Who has called `MPI_Abort` has ended by that, whatever kills it then.)
    fn died_before(&self, proc: &Proc, at: u64) -> bool {
        let failed = !proc.own_exit && !proc.aborting && !self.checks.put_down.contains(&proc.name);
        failed && proc.died_at.is_some_and(|died| died < at)
    }

    fn untrue_cancel(&self, status: i32, reason: &str) -> Option<String> {
        let named = |(signal, _): &&(i32, u64)| reason.contains(&format!("cancelled by {}", signal_name(*signal)));
        let Some((signal, at)) = self.cancelled.or(self.signalled.iter().find(named).copied()) else {
            return Some("nobody had cancelled it".to_string());
        };
        let (name, killed) = (signal_name(signal), 128 + signal);
        let Some(rest) = reason.strip_prefix(&format!("the job was cancelled by {name}")) else {
            return Some(format!("that was {name}"));
        };
        let world = self.checks.world();
        let mut of_world = self.ranks.all().filter(|proc| proc.name.world == world);
        if rest == ", and its ranks ended by themselves" {
            let by_itself = |proc: &&Proc| matches!(proc.dead, Some(Exit::Code(_)));
            let other = of_world.find(|proc| !by_itself(proc)).map(|proc| proc.name);
            return other.map(|name| format!("{name} did not end by itself"));
        }
        if status != killed {
            return Some(format!("its status is {killed}"));
        }
        let Some((ranks, _)) = rest.strip_prefix("; rank").and_then(|rest| rest.split_once(" had not ended")) else {
            return (!rest.is_empty()).then(|| "that is no reason".to_string());
        };
        let (grace, held_up) = (self.setup.policy.grace.0, self.longest_stall());
        if self.now < at + grace {
            return Some(format!("that was only {} ms ago", (self.now - at) / 1000));
        }
        let named: BTreeSet<&str> = ranks.trim_start_matches(['s', ' ']).split(", ").collect();
        let told = |proc: &&Proc| named.contains(proc.name.rank.0.to_string().as_str());
        // How one ended is told when its memory is gone, and an agent that stands still hears it later.
        // By then it was decided; the store may have been away since.
        let decided = self.now.min(at + grace + held_up);
        let gone = |proc: &&Proc| proc.died_at.is_some_and(|died| died + held_up + SECOND < decided);
        let gone = of_world.find(|proc| told(proc) && gone(proc))?;
        Some(format!("{} had ended", gone.name))
    }

    /// How long a fault holds an agent up at the most.
    fn longest_stall(&self) -> u64 {
        let stalls = |planned: &&Planned| matches!(planned.fault, Fault::Stall { .. } | Fault::Suspend { .. });
        self.setup.faults.iter().filter(stalls).map(|planned| planned.fault.span()).max().unwrap_or(0)
    }

    /// Somebody is dying, and has been for as long as that may take.
    fn untrue_undead(&self) -> Option<String> {
        let long = self.setup.policy.stop_timeout.0;
        let there = |proc: &Proc| !proc.reaped && proc.died_at.is_some_and(|died| died + long <= self.now + KILLED);
        let all = self.machines.iter().flat_map(|machine| self.ranks.of(machine));
        (!all.into_iter().any(|(_, proc)| there(proc))).then(|| "nobody has been dying for so long".to_string())
    }

    fn untrue_store(&self, by: usize) -> Option<String> {
        self.untrue_absence(by, self.setup.policy.store_timeout.0)
    }

    /// Nobody of the job is said to have been there for long.
    pub fn untrue_loneliness(&self) -> Option<String> {
        let record = self.store.value()?;
        let there = |node: &NodeId| self.machines.get(node.0 as usize).is_some_and(|it| it.alive && it.ended.is_none());
        let cut = happened(&self.setup, self.now).any(|planned| matches!(planned.fault, Fault::Net { .. }));
        let there = record.members().find(there).filter(|_| !cut);
        there.map(|node| format!("{node} was there"))
    }

    /// The store is said to have been away from this node for so long.
    pub fn untrue_absence(&self, by: usize, patience: u64) -> Option<String> {
        let place = self.machines[by].place;
        let keeps = |planned: &&Planned| match planned.fault {
            Fault::Store { trouble, .. } => keeps_from_store(trouble, place),
            _ => false,
        };
        let faults = happened(&self.setup, self.now).filter(keeps);
        let mut spans: Vec<(u64, u64)> =
            faults.map(|planned| (planned.at, planned.at + planned.fault.span())).collect();
        spans.sort_unstable();
        // Between two of them nothing may have been answered.
        let mut whole: Option<(u64, u64)> = None;
        let away = spans.into_iter().any(|(from, to)| {
            let goes_on = whole.filter(|(_, until)| from <= until + UNANSWERED);
            let (from, to) = goes_on.map_or((from, to), |(since, until)| (since, until.max(to)));
            whole = Some((from, to));
            from + patience <= self.now.min(to + UNANSWERED)
        });
        (!away).then(|| format!("it was never away from n{by} for so long"))
    }

    /// Too few slots: those that are given up are gone, what is left does not suffice, and it was waited for more.
    fn untrue_shortage(&self, before: Option<&EpochRecord>, reason: &str) -> Option<String> {
        let setup = &self.setup;
        let silent = |node: usize| reason.contains(&format!("{} {}", NodeId(node as u32), Cause::NodeSilent));
        if let Some((_, failures)) = reason.split_once(" cannot be placed: ") {
            let failures = failures.split_once(", and no free slot").map_or(failures, |(failures, _)| failures);
            if let Some(wrong) = self.untold(before, failures) {
                return Some(wrong);
            }
        }
        let (ranks, slots) = (u64::from(setup.ranks), self.slots_there(before, silent));
        let claimed = match number(reason, "because it has ", " slot") {
            Some(slots) => Some(slots),
            None => number(reason, "because ", " of its").and_then(|missing| ranks.checked_sub(missing)),
        };
        if slots >= ranks || claimed.is_none_or(|claimed| claimed < slots) {
            return Some(format!("there are {slots} slots for {ranks} ranks"));
        }
        let takes = |planned: &&Planned| {
            matches!(planned.fault, Fault::LoseSlot { .. }) || planned.fault.harms(setup) != Set::Some(0)
        };
        let first = happened(setup, self.now).filter(takes).map(|planned| planned.at).min().unwrap_or(0);
        let waited = self.now.saturating_sub(first);
        let patience = setup.policy.node_timeout.0;
        (setup.nodes > 1 && waited < patience).then(|| format!("it has waited for {} ms only", waited / 1000))
    }

    /// Slots on which ranks can be placed at this moment: of members that are there and not given up, and of others that have
    /// been well for long enough to be known.
    pub fn slots_there(&self, before: Option<&EpochRecord>, given_up: impl Fn(usize) -> bool) -> u64 {
        let lost = |slot: &SlotId| {
            before.and_then(|record| record.slot(*slot)).is_some_and(|entry| entry.state == SlotState::Lost)
        };
        let is_member = |node: usize| before.is_some_and(|record| record.is_member(NodeId(node as u32)));
        let of_record = |slot: &SlotId| before.is_some_and(|record| record.slot(*slot).is_some());
        let there = self.machines.iter().enumerate().filter(|(_, machine)| machine.alive && machine.ended.is_none());
        let each = there.map(|(node, machine)| {
            let slots = machine.slots.iter().filter(|slot| !lost(slot));
            if is_member(node) && !given_up(node) {
                return slots.filter(|slot| of_record(slot)).count();
            }
            let knows = machine.since + KNOWN <= self.now && self.is_quiet_for(KNOWN);
            if knows && !is_member(node) { slots.count() } else { 0 }
        });
        each.sum::<usize>() as u64
    }

    /// Whether no network and no agent has been disturbed for so long.
    fn is_quiet_for(&self, span: u64) -> bool {
        let over = |planned: &Planned| match planned.fault {
            Fault::Net { span, .. } | Fault::Store { span, .. } if span >= FOREVER => false,
            _ => planned.ends() + span <= self.now,
        };
        happened(&self.setup, self.now).all(over) && self.setup.weather.drop <= 20
    }

    fn untrue_vain(&self, before: Option<&EpochRecord>, reason: &str) -> Option<String> {
        let claimed = number(reason, "because ", " epochs in a row").unwrap_or(0);
        let (lost, most) = (self.checks.lost_in_vain + 1, u64::from(self.setup.policy.max_vain));
        if claimed < most || lost < claimed {
            return Some(format!("{lost} epochs lost a node since a world ran, and {most} may"));
        }
        let failures = reason.split_once(", this one because ").map_or("", |(_, failures)| failures);
        self.untold(before, failures)
    }

    /// Deaths without progress: as many as may be, each in an epoch of its own, and none restored more than the one before.
    fn untrue_loop(&self, reason: &str) -> Option<String> {
        let (head, history) = reason.split_once("; its history:").unwrap_or((reason, ""));
        let claimed = head.split_once(" times in a row").and_then(|(before, _)| before.rsplit(' ').next());
        let claimed: u64 = claimed.and_then(|count| count.parse().ok()).unwrap_or(0);
        // Others may have died between.
        let suspect = |line: &&str| match head.split_once("because ").map_or("", |(_, suspect)| suspect) {
            program if program.starts_with("the program") => {
                let own = ["was killed by SIG", "died; of what", "ended with status 0", "exited", "MPI_Abort"];
                own.iter().any(|own| line.contains(own)) && !line.contains("SIGKILL")
            }
            shepherd if shepherd.starts_with("the shepherd") => line.contains("(its shepherd died)"),
            server if server.starts_with("the PMIx server") => line.contains("lost its PMIx server"),
            rank => line.contains("SIGKILL") && rank.split_once(" died").is_some_and(|(rank, _)| line.contains(rank)),
        };
        let epoch = |line: &str| line.strip_prefix("  epoch ")?.split(',').next()?.parse::<u64>().ok();
        let mut epochs: Vec<u64> = Vec::new();
        let mut of_line = 0;
        for line in history.lines() {
            of_line = epoch(line).unwrap_or(of_line);
            if suspect(&line) && !line.contains("because of that death") && epochs.last() != Some(&of_line) {
                epochs.push(of_line);
            }
        }
        let most = u64::from(self.setup.policy.max_failures);
        if claimed < most || epochs.len() as u64 != claimed || epochs.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Some(format!("{} deaths are told of, and {most} may be", epochs.len()));
        }
        let restored = |epoch: &u64| self.checks.restored_in(EpochId(epoch + 1));
        let progress = epochs.windows(2).find(|pair| {
            let (one, other) = (restored(&pair[0]), restored(&pair[1]));
            one.iter().any(|(group, stamp)| other.get(group).is_some_and(|later| later > stamp))
        });
        progress.map(|pair| format!("a newer version was there after epoch {} than after epoch {}", pair[1], pair[0]))
    }

    /// What is left of such a list of failures when all that is true is taken out of it.
    fn untold(&self, before: Option<&EpochRecord>, sentences: &str) -> Option<String> {
        let (told, others) = sentences.split_once("; ").map_or((sentences, None), |(told, rest)| (told, Some(rest)));
        let mut rest = told.to_string();
        for sentence in self.true_sentences(before) {
            rest = rest.replace(&sentence, "");
        }
        let rest = rest.trim_matches([',', ' ']);
        if !rest.is_empty() {
            return Some(format!("that is not true: {rest}"));
        }
        let own = |told: &str| {
            let of = |(name, end, _): &(Process, OwnEnd, u64)| told == format!("{} {end} because of it", name.rank);
            told.contains("more rank") || self.ranks.ends.iter().any(of)
        };
        others
            .into_iter()
            .flat_map(|others| others.split("; "))
            .find(|told| !own(told))
            .map(|told| format!("that is not true: {told}"))
    }

    /// Every failure that there could be now, as people read it.
    fn true_sentences(&self, before: Option<&EpochRecord>) -> Vec<String> {
        let world = self.checks.world();
        let signals = (1..=64).map(Cause::Signal);
        let ends = self.ranks.ends.iter().map(|(_, end, _)| Cause::Own(*end));
        let fetched = self.checks.restored().map(Cause::NotFetched);
        let other = [Cause::Unknown, Cause::NeverJoined];
        let causes: Vec<Cause> = signals.chain(other).chain(ends).chain(fetched).collect();
        let of_process = |proc: &Proc| {
            let failed = |cause: &Cause| self.process_failed(proc.name, *cause);
            let (subject, node) = (Subject::Process(proc.name), NodeId(proc.node as u32));
            causes.iter().copied().filter(failed).map(move |cause| Failure { subject, cause, node }).collect::<Vec<_>>()
        };
        let processes = self.ranks.all().filter(|proc| proc.name.world == world).flat_map(of_process);
        let slots = before.into_iter().flat_map(|record| record.slots.iter());
        let slots =
            slots.map(|entry| Failure { subject: Subject::Slot(entry.slot), cause: Cause::SlotLost, node: entry.node });
        let of_node = [Cause::NodeSilent, Cause::AgentLost, Cause::WorldServerLost, Cause::Fenced];
        let nodes = (0..self.machines.len() as u32).map(NodeId).flat_map(|node| {
            of_node.into_iter().map(move |cause| Failure { subject: Subject::Node(node), cause, node })
        });
        let all = processes.chain(slots).chain(nodes).filter(|failure| self.has_failed(failure));
        all.map(|failure| failure.to_string()).collect()
    }
}
