//! Whom the job may lose by what has happened to it, and until when (invariant 7): what lasts less than ½ T, or cuts everybody from
//! everybody for less than P, or is the store's, costs nobody; and what did cost somebody is over some time after it has passed.

use crate::faults::{FOREVER, Fault, Planned};
use crate::net::{Barrier, Set};
use crate::setup::Setup;
use crate::world::World;

/// A fault, or several that are one, and whom it may cost.
struct Harm {
    who: Set,
    /// When it has passed; what came to its end later than that because of it is counted in.
    until: u64,
}

impl Fault {
    /// The nodes that an epoch may leave out because of it (invariant 7): none for what is under ½ T, or cuts everybody
    /// from everybody for less than P, or is the store's.
    pub fn harms(&self, setup: &Setup) -> Set {
        let short = setup.short();
        match *self {
            Fault::KillNodes(nodes) => nodes,
            Fault::Reboot { node, .. } | Fault::Replace { node, .. } => Set::one(node),
            // Its start costs a few milliseconds.
            Fault::KillAgent { node, back_after } if back_after + 10_000 >= short => Set::one(node),
            Fault::Suspend { node, span } | Fault::Stall { node, span } if span >= short => Set::one(node),
            Fault::Net { barrier, span } => barrier_harms(barrier, span, setup),
            _ => Set::Some(0),
        }
    }

    /// Whose heartbeats, or what they are sent, it may stop.
    fn concerns(&self) -> Set {
        match *self {
            Fault::Stall { node, .. } | Fault::Suspend { node, .. } | Fault::KillAgent { node, .. } => Set::one(node),
            Fault::Net { barrier: Barrier::Cut { from: Set::Some(from), to: Set::Some(to) }, .. } => {
                Set::Some(from | to)
            }
            Fault::Net { barrier: Barrier::Frames { to }, .. } => to,
            _ => Set::All,
        }
    }

    /// Whether heartbeats stop for a moment.
    fn disturbs(&self) -> bool {
        matches!(self, Fault::Suspend { .. } | Fault::Stall { .. } | Fault::Net { .. } | Fault::KillAgent { .. })
    }
}

fn barrier_harms(barrier: Barrier, span: u64, setup: &Setup) -> Set {
    let short = setup.short();
    match barrier {
        Barrier::Late { by, .. } if by < setup.timeout() / 4 => Set::Some(0),
        Barrier::Slow { up_to, .. } if up_to < setup.timeout() / 4 => Set::Some(0),
        Barrier::Ports { spread, .. } | Barrier::Links { spread, .. } => {
            if is_common(span, spread, setup) {
                Set::Some(0)
            } else {
                Set::All
            }
        }
        _ if span < short => Set::Some(0),
        Barrier::Cut { from: Set::Some(from), to: Set::Some(to) } => Set::Some(from | to),
        // Whom nobody hears, or who hears nobody, is alone.
        Barrier::Cut { from: one @ Set::Some(_), to: Set::All } | Barrier::Cut { from: Set::All, to: one }
            if setup.nodes > 2 && one.len(setup.nodes as usize) == 1 =>
        {
            one
        }
        Barrier::Frames { to: Set::Some(to) } => Set::Some(to),
        // Who of two sides goes on is not said before.
        _ => Set::All,
    }
}

/// After so long of it everybody has been cut off for certain: ½ T after an acknowledgement that was on its way when it began.
pub fn cut_off_after(setup: &Setup) -> u64 {
    setup.timeout() / 2 + setup.policy.heartbeat_period.0 / 2
}

/// What is over so soon, with a heartbeat that is lost besides, is over before anybody may be accused.
pub fn soon(setup: &Setup) -> u64 {
    setup.timeout() - 2 * setup.policy.heartbeat_period.0
}

/// How much later than the first the last port may return after everybody was cut off from everybody for `span`, for that to cost
/// nobody. Whoever has been cut off gives all others 4 T. A shorter one has cut off nobody, and once the first ports are back it is
/// one of the others alone, for as long as it has lasted for them: of those DESIGN promises nothing beyond ½ T, and these two leave
/// no span between them.
pub fn longest_spread(span: u64, setup: &Setup) -> u64 {
    if span >= cut_off_after(setup) {
        4 * setup.timeout() - 2 * setup.policy.heartbeat_period.0
    } else {
        soon(setup).saturating_sub(span)
    }
}

/// Whether a switch that restarts for so long, and whose ports return within `spread` after it, costs nobody.
fn is_common(span: u64, spread: u64, setup: &Setup) -> bool {
    // The patience of two is T.
    let many = setup.nodes > 2 && span + spread < setup.patience;
    span + spread <= soon(setup) || (many && (spread == 0 || spread <= longest_spread(span, setup)))
}

/// Disturbances one upon the other: each costs nobody, but together they may be one that is longer. Then it may cost those
/// whom more than one of them concerns. A switch that restarts while an agent stands still for a moment is none of that:
/// nobody would hear it anyway, and those who have been cut off wait for it.
fn crowd_harms(crowd: &[&Planned], setup: &Setup) -> Set {
    let (Some(first), Some(end)) = (crowd.first(), crowd.iter().map(|planned| planned.ends()).max()) else {
        return Set::Some(0);
    };
    if crowd.len() < 2 || end - first.at <= soon(setup) {
        return Set::Some(0);
    }
    let common = |planned: &&&Planned| match planned.fault {
        Fault::Net { barrier: Barrier::Ports { spread, .. } | Barrier::Links { spread, .. }, span } => {
            let left = longest_spread(span, setup).saturating_sub(setup.timeout() / 2);
            span >= cut_off_after(setup) && spread <= left && is_common(span, spread, setup)
        }
        _ => false,
    };
    let stands_still = |planned: &&&Planned| matches!(planned.fault, Fault::Stall { .. });
    if crowd.len() == 2 && crowd.iter().any(|planned| common(&planned)) && crowd.iter().any(|one| stands_still(&one)) {
        return Set::Some(0);
    }
    let (mut once, mut twice) = (0, 0);
    for planned in crowd {
        let Set::Some(concerned) = planned.fault.concerns() else { return Set::All };
        (once, twice) = (once | concerned, twice | (once & concerned));
    }
    Set::Some(twice)
}

impl Planned {
    /// When it has passed for those whom it concerned: also what was sent before has come by then.
    fn passes(&self) -> u64 {
        if self.fault.span() >= FOREVER {
            return FOREVER;
        }
        self.ends()
            + match self.fault {
                Fault::Net { barrier: Barrier::Slow { up_to, .. }, .. } => up_to,
                Fault::Net { barrier: Barrier::Late { by, .. }, .. } => by,
                _ => 0,
            }
    }

    /// Whether it may keep a node from hearing, or telling, or writing down, that another one is heard again.
    fn delays(&self) -> bool {
        self.fault.disturbs() || matches!(self.fault, Fault::Store { .. } | Fault::Reboot { .. })
    }
}

/// So long after everything passes again an accusation may still be written. For T it may be made: whoever is heard again was silent for
/// so long before. It is handed over then, and for 3 T after that whoever has collected it writes it (DESIGN §5, batched; `KEPT` of
/// the core), unless the revision moves; the request has been answered, or is given up, a deadline later.
pub fn aftermath(setup: &Setup) -> u64 {
    4 * setup.timeout() + 2 * setup.policy.heartbeat_period.0 + setup.deadline
}

/// When something is over that has passed at `passed`: not before everything else is that keeps the nodes from finding that out.
fn over(setup: &Setup, begun: &[&Planned], passed: u64) -> u64 {
    let mut over = passed + aftermath(setup);
    loop {
        let during =
            begun.iter().filter(|planned| planned.delays() && planned.at <= over).map(|planned| planned.passes());
        let later = during.max().map_or(0, |passed| passed + aftermath(setup));
        if later <= over {
            return over;
        }
        over = later;
    }
}

fn harms(setup: &Setup, begun: &[&Planned], began: u64, members: u32) -> Vec<Harm> {
    let mut passing: Vec<&Planned> = begun.iter().copied().filter(|planned| planned.fault.disturbs()).collect();
    passing.sort_unstable_by_key(|planned| planned.at);
    let mut crowds: Vec<Vec<&Planned>> = Vec::new();
    for planned in passing {
        // A heartbeat between them parts them, also if one is lost.
        let near = |other: &&Planned| planned.at < other.ends() + 3 * setup.policy.heartbeat_period.0;
        match crowds.last_mut().filter(|crowd| crowd.iter().any(near)) {
            Some(crowd) => crowd.push(planned),
            None => crowds.push(vec![planned]),
        }
    }
    let each = begun.iter().map(|planned| {
        let who = match planned.fault {
            Fault::Net { barrier: Barrier::Ports { spread, .. } | Barrier::Links { spread, .. }, span }
                if (planned.at < began + setup.policy.heartbeat_period.0 || members <= 2)
                    && span + spread > soon(setup) =>
            {
                Set::All
            }
            fault => fault.harms(setup),
        };
        Harm { who, until: planned.passes() }
    });
    let together = crowds.iter().map(|crowd| {
        let until = crowd.iter().map(|planned| planned.passes()).max().unwrap_or(0);
        Harm { who: crowd_harms(crowd, setup), until }
    });
    each.chain(together).filter(|harm| harm.who != Set::Some(0)).collect()
}

/// The nodes that may be left out at this time, of a job that began then, nobody can tell that it is alone before, and that has so
/// many left: the patience of two is T.
pub fn harmed(setup: &Setup, now: u64, began: u64, members: u32) -> Set {
    if setup.weather.drop > 20 {
        return Set::All;
    }
    let begun: Vec<&Planned> = setup.faults.iter().filter(|planned| planned.at <= now).collect();
    let last = harms(setup, &begun, began, members).into_iter().filter(|harm| now <= over(setup, &begun, harm.until));
    last.fold(Set::Some(0), |all, harm| match (all, harm.who) {
        (Set::Some(some), Set::Some(more)) => Set::Some(some | more),
        _ => Set::All,
    })
}

impl World {
    /// Whether an epoch may leave a node out by now: it is dead, has ended beside the record, or something has happened to it.
    pub fn may_be_out(&self, node: usize) -> bool {
        let machine = &self.machines[node];
        let began = self.checks.levels.first().min(self.now);
        let ended = machine.ended.is_some();
        !machine.alive || ended || harmed(&self.setup, self.now, began, self.checks.members).has(machine.place)
    }
}

impl Setup {
    /// What lasts less costs nobody: half a time-out; less a heartbeat where one may be lost besides.
    fn short(&self) -> u64 {
        let lost = if self.weather.drop > 0 { self.policy.heartbeat_period.0 } else { 0 };
        self.timeout() / 2 - lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{MS, SECOND};

    fn after(setup: &Setup, time: u64) -> Set {
        harmed(setup, time, 0, setup.nodes)
    }

    #[test]
    fn an_island_costs_somebody_until_what_was_accused_because_of_it_is_written_and_nobody_after_that() {
        let island = Fault::Net { barrier: Barrier::Island(Set::one(1)), span: SECOND };
        let mut setup = Setup { faults: vec![Planned { at: SECOND, fault: island }], ..Setup::default() };
        let end = 2 * SECOND + aftermath(&setup);
        assert_eq!([after(&setup, SECOND - 1), after(&setup, SECOND)], [Set::Some(0), Set::All]);
        assert_eq!([after(&setup, end), after(&setup, end + 1)], [Set::All, Set::Some(0)]);
        // Nobody can write that it was a false alarm.
        let away = Fault::Store { trouble: crate::store::Trouble::NoRequests(Set::All), span: 5 * SECOND };
        setup.faults.push(Planned { at: end - MS, fault: away });
        let later = end - MS + 5 * SECOND + aftermath(&setup);
        assert_eq!([after(&setup, later), after(&setup, later + 1)], [Set::All, Set::Some(0)]);
    }

    #[test]
    fn what_never_passes_may_cost_somebody_for_good() {
        let cut = Fault::Net { barrier: Barrier::Cut { from: Set::one(1), to: Set::All }, span: FOREVER };
        let setup = Setup { faults: vec![Planned { at: SECOND, fault: cut }], ..Setup::default() };
        assert_eq!(after(&setup, 900 * SECOND), Set::one(1));
    }
}
