//! Schedules as text: `scenarios/*.txt`, one command a line, `#` begins a comment.
//!
//! | command | meaning |
//! | --- | --- |
//! | `fails today: TEXT` | the core is known to break a rule or an expectation here, with these words |
//! | `seed N` | another run of the same schedule |
//! | `nodes N` `slots N` `ranks N` `racks N` `groups N` | the cluster and the job; slots are per node and numbered through |
//! | `children N` `observers N` `max-failures N` `mode M` `patience T` `timeout of N T` | the policy; one agent's own |
//! | `steps N` `every N` `never-checkpoints` `shipping T` | the program; a copy takes up to T to a partner |
//! | `partners N` `fetching T` `sending T` | so many keep copies of a node; one is asked for so long; it takes up to T |
//! | `oversubscribe` `renewable` `recover-aborts` `nervous` `stale watches` `deadline T` | lost slots are replaced; survivors abort by themselves |
//! | `progress-after T`, `store-timeout T` | what counts as progress; how long the store may be away |
//! | `start`, `settle` | until all ranks compute in the newest epoch |
//! | `run T`, `finish` | lets time pass (`5ms`, `2s`); until the job is over |
//! | `kill rank R [signal S]`, `kill agent N [for T]`, `kill node N`, `kill server N`, `lose slot S`, `reboot node N T`, `replace node N T`, `join`, `rot N` | deaths; new nodes; the copies that a node keeps for others are spoilt |
//! | `absent rank R [within]` | its next process ends with status 0 before it calls `MPI_Init`, or within that |
//! | `crash rank R` | from now on the rank dies by itself in every world, before a newer checkpoint |
//! | `exit rank R code C`, `abort rank R code C`, `cancel`, `delete key` | ends |
//! | `signal S` | every task is sent that signal, which its rank may go on after |
//! | `told ranks die`, `told ranks save code C`, `told ranks ignore` | what they do with the signal of `cancel`, or of `signal` |
//! | `lapse N T` | the node's lease in the store is not held for a while |
//! | `suspend node N T`, `stall agent N T` | the whole machine, or its agent alone, stands still |
//! | `cut N M [T]`, `cut N all [T]`, `cut all N [T]`, `isolate N [T]`, `isolate N with store [T]` | the application's network |
//! | `switch restarts T [ports T] [with store]` | everybody is cut off from everybody; ports return one by one |
//! | `slow network SHARE T T` | so many of a thousand packets take up to the first T, for the second |
//! | `late beats N M T T` | heartbeats and acknowledgements take the first T longer, for the second |
//! | `store down [T]`, `store away N [T]`, `store slow T T`, `election T`, `writes late T T`, `writes lost T` | the store, for the last T |
//! | `heal` | networks and the store are well again |
//! | `expect epoch E`, `expect world W`, `expect rank R on slot S` | the record |
//! | `expect died TEXT`, `expect out N`, `expect nobody out` | the last failure set, as people read it; who is in |
//! | `expect paused N`, `expect not paused N` | the fence |
//! | `expect restored V`, `expect restored nothing`, `expect blame TEXT`, `expect agreed after T` | recoveries' reports; T at least after the first notice |
//! | `expect away N`, `expect not away N` | whether that node has said that it does not reach the store |
//! | `expect status S`, `expect reason TEXT` | the end |

use crate::faults::{FOREVER, Fault, Planned};
use crate::net::{Barrier, Set};
use crate::setup::{MS, Obedience, Own, SECOND, Setup, Temper};
use crate::store::Trouble;
use crate::world::World;
use ftd_core::{Micros, NodeId, Rank};
use std::io::Write;
use std::path::Path;

struct Scenario {
    setup: Setup,
    world: Option<World>,
    traced: bool,
    end: Option<(i32, String)>,
    known: Option<String>,
}

fn span(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is no time"))?;
    match unit {
        "us" => Ok(number),
        "ms" => Ok(number * MS),
        "s" => Ok(number * SECOND),
        _ => Err(format!("'{text}' is no time")),
    }
}

/// A time at the end of a line; for good without.
fn perhaps(words: &[&str]) -> Result<u64, String> {
    match words {
        [] => Ok(FOREVER),
        [time] => span(time),
        _ => Err("too many words".to_string()),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no number"))
}

fn set(word: &str) -> Result<Set, String> {
    if word == "all" { Ok(Set::All) } else { Ok(Set::one(number(word)?)) }
}

impl Scenario {
    fn world(&mut self) -> &mut World {
        let (setup, traced) = (&self.setup, self.traced);
        self.world.get_or_insert_with(|| World::new(setup, traced))
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        let world = self.world();
        world.setup.faults.push(Planned { at: world.now, fault });
        world.fault(fault);
        self.sound()
    }

    fn sound(&mut self) -> Result<(), String> {
        match self.world().checks.first() {
            Some((_, violation)) => Err(violation.to_string()),
            None => Ok(()),
        }
    }

    fn settle(&mut self) -> Result<(), String> {
        let reached = self.world().run_until(20 * SECOND, World::computing);
        self.sound()?;
        let world = self.world();
        let over = world.store.value().and_then(|record| record.outcome.clone()).and_then(|outcome| outcome.reason);
        match over {
            _ if reached => Ok(()),
            Some(reason) => Err(format!("the job is over: {reason}")),
            None => Err(format!("not computing after 20 s: {}", world.whereabouts())),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        if self.set_up(&words)? {
            return Ok(());
        }
        match words.as_slice() {
            ["start"] | ["settle"] => self.settle(),
            ["run", t] => {
                let time = span(t)?;
                let world = self.world();
                if world.run_until(time, World::over) {
                    let end = world.verdict().map_err(|violation| violation.to_string())?;
                    self.end = Some(end);
                }
                self.sound()
            }
            ["finish"] => {
                self.end = Some(self.world().run().map_err(|violation| violation.to_string())?);
                Ok(())
            }
            ["told", "ranks", rest @ ..] => {
                let obedience = match rest {
                    ["die"] => Obedience::Dies,
                    ["save", "code", c] => Obedience::Saves(number(c)?),
                    ["ignore"] => Obedience::Ignores,
                    _ => return Err("no such obedience".to_string()),
                };
                self.setup.obedience = Some(obedience);
                Ok(())
            }
            ["expect", rest @ ..] => self.expect(rest),
            words => {
                let fault = death(words).or_else(|_| network(words)).or_else(|_| store(words))?;
                self.fault(fault)?;
                match words {
                    ["isolate", n, "with", "store", rest @ ..] => {
                        let (node, span) = (Set::one(number(n)?), perhaps(rest)?);
                        self.fault(Fault::Store { trouble: Trouble::NoAnswers(node), span })?;
                        self.fault(Fault::Store { trouble: Trouble::NoRequests(node), span })
                    }
                    ["switch", "restarts", t, .., "with", "store"] => {
                        self.fault(Fault::Store { trouble: Trouble::NoRequests(Set::All), span: span(t)? })
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The lines that say what the cluster is like; false for any other.
    fn set_up(&mut self, words: &[&str]) -> Result<bool, String> {
        let setup = &mut self.setup;
        match words {
            ["fails", "today:", rest @ ..] => self.known = Some(rest.join(" ")),
            ["seed", n] => setup.seed = number(n)?,
            ["nodes", n] => setup.nodes = number(n)?,
            ["slots", n] => setup.slots = number(n)?,
            ["ranks", n] => setup.ranks = number(n)?,
            ["racks", n] => setup.racks = number(n)?,
            ["groups", n] => setup.groups = number(n)?,
            ["children", n] => setup.policy.fan_out = number(n)?,
            ["observers", n] => setup.policy.observers = number(n)?,
            ["max-failures", n] => setup.policy.max_failures = number(n)?,
            ["mode", m] => setup.mode = m.parse().map_err(|e: ftd_core::policy::ModeError| e.to_string())?,
            ["patience", t] => setup.patience = span(t)?,
            ["timeout", "of", n, t] => {
                setup.own.insert(number(n)?, Own { timeout: Some(span(t)?), ..Own::default() });
            }
            ["steps", n] => setup.steps = number(n)?,
            ["every", n] => setup.every = number(n)?,
            ["never-checkpoints"] => setup.every = u32::MAX,
            ["shipping", t] => setup.shipping = span(t)?,
            ["partners", n] => setup.partners = number(n)?,
            ["fetching", t] => setup.fetching = span(t)?,
            ["sending", t] => setup.sending = span(t)?,
            ["deadline", t] => setup.deadline = span(t)?,
            ["progress-after", t] => setup.policy.progress_after = Micros(span(t)?),
            ["store-timeout", t] => setup.policy.store_timeout = Micros(span(t)?),
            ["end-timeout", t] => setup.policy.end_timeout = Micros(span(t)?),
            ["renewable"] => setup.renewable = true,
            ["oversubscribe"] => setup.policy.oversubscribe = true,
            ["recover-aborts"] => setup.policy.recover_aborts = true,
            ["nervous"] => setup.temper = Temper::Aborts,
            ["stale", "watches"] => setup.stale_watch = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn expect(&mut self, words: &[&str]) -> Result<(), String> {
        let end = self.end.clone();
        let world = self.world();
        let record = world.store.value().cloned().ok_or("there is no record")?;
        let same = |is: String, expected: &str| {
            if is == expected { Ok(()) } else { Err(format!("it is '{is}'")) }
        };
        let contains = |is: String, expected: &[&str]| {
            if is.contains(&expected.join(" ")) { Ok(()) } else { Err(format!("it is '{is}'")) }
        };
        let now = world.now;
        match words {
            ["epoch", e] => same(record.epoch.0.to_string(), e),
            ["world", w] => same(record.world.0.to_string(), w),
            ["rank", r, "on", "slot", s] => {
                let slot = record.placement.slot(Rank(number(r)?));
                same(slot.map_or("nowhere".into(), |slot| slot.0.to_string()), s)
            }
            ["died", rest @ ..] => contains(record.failures.to_string(), rest),
            ["paused", n] => same(world.machines[number::<usize>(n)?].still(now).to_string(), "true"),
            ["not", "paused", n] => same(world.machines[number::<usize>(n)?].still(now).to_string(), "false"),
            ["away", n] => same(world.checks.storeless.contains(&number(n)?).to_string(), "true"),
            ["not", "away", n] => same(world.checks.storeless.contains(&number(n)?).to_string(), "false"),
            ["nobody", "out"] => same(record.nodes.runs().iter().all(|run| run.member).to_string(), "true"),
            ["out", n] => same((!record.is_member(NodeId(number(n)?))).to_string(), "true"),
            ["restored", what] => {
                let done = world.checks.reports.last().ok_or("no recovery was reported")?;
                let choice = done.restored.as_ref().and_then(|choice| choice.values().next().copied()).flatten();
                same(choice.map_or("nothing".into(), |stamp| stamp.version.0.to_string()), what)
            }
            ["agreed", "after", t] => {
                let times = world.checks.reports.last().ok_or("no recovery was reported")?.times;
                let took = times.agreed.map_or(0, |agreed| agreed.since(times.noticed).0);
                same((took >= span(t)?).to_string(), "true").map_err(|error| format!("{took} µs: {error}"))
            }
            ["blame", rest @ ..] => {
                let said: Vec<String> = world.checks.reports.iter().flat_map(|done| done.blame.clone()).collect();
                contains(said.join("; "), rest)
            }
            ["status", s] => same(end.ok_or("the job is not over")?.0.to_string(), s),
            ["reason", rest @ ..] => contains(end.ok_or("the job is not over")?.1, rest),
            _ => Err("no such expectation".to_string()),
        }
    }
}

fn death(words: &[&str]) -> Result<Fault, String> {
    // A rank's memory takes a while to tear down before its slot is empty.
    let usual = 15 * MS;
    Ok(match words {
        ["kill", "rank", r] => Fault::KillRank { rank: number(r)?, signal: 9 },
        ["kill", "rank", r, "signal", s] => Fault::KillRank { rank: number(r)?, signal: number(s)? },
        ["kill", "agent", n] => Fault::KillAgent { node: number(n)?, back_after: usual },
        ["kill", "agent", n, "for", t] => Fault::KillAgent { node: number(n)?, back_after: span(t)? },
        ["kill", "node", n] => Fault::KillNodes(Set::one(number(n)?)),
        ["kill", "server", n] => Fault::KillServer { node: number(n)? },
        ["lose", "slot", s] => Fault::LoseSlot { slot: number(s)? },
        ["reboot", "node", n, t] => Fault::Reboot { node: number(n)?, back_after: span(t)? },
        ["replace", "node", n, t] => Fault::Replace { node: number(n)?, back_after: span(t)? },
        ["rot", n] => Fault::Rot { node: number(n)? },
        ["crash", "rank", r] => Fault::Crashes { rank: number(r)? },
        ["absent", "rank", r] => Fault::Absent { rank: number(r)?, within: false },
        ["absent", "rank", r, "within"] => Fault::Absent { rank: number(r)?, within: true },
        ["exit", "rank", r, "code", c] => Fault::ExitRank { rank: number(r)?, code: number(c)? },
        ["abort", "rank", r, "code", c] => Fault::AbortRank { rank: number(r)?, code: number(c)? },
        ["cancel"] => Fault::Cancel { signal: 15 },
        ["signal", s] => Fault::Signal { signal: number(s)? },
        ["delete", "key"] => Fault::DeleteKey,
        ["join"] => Fault::Join,
        ["suspend", "node", n, t] => Fault::Suspend { node: number(n)?, span: span(t)? },
        ["stall", "agent", n, t] => Fault::Stall { node: number(n)?, span: span(t)? },
        ["lapse", n, t] => Fault::Lapse { node: number(n)?, span: span(t)? },
        ["heal"] => Fault::Heal,
        _ => return Err("no such command".to_string()),
    })
}

fn network(words: &[&str]) -> Result<Fault, String> {
    let (barrier, span) = match words {
        ["cut", n, m, rest @ ..] => (Barrier::Cut { from: set(n)?, to: set(m)? }, perhaps(rest)?),
        ["isolate", n, "with", "store", rest @ ..] | ["isolate", n, rest @ ..] => {
            (Barrier::Island(Set::one(number(n)?)), perhaps(rest)?)
        }
        ["switch", "restarts", t, rest @ ..] => {
            let spread = if let ["ports", spread, ..] = rest { span(spread)? } else { 0 };
            (Barrier::Ports { spread, draw: 7 }, span(t)?)
        }
        ["late", "beats", n, m, by, t] => (Barrier::Late { from: set(n)?, to: set(m)?, by: span(by)? }, span(t)?),
        ["slow", "network", share, up_to, t] => {
            (Barrier::Slow { share: number(share)?, up_to: span(up_to)? }, span(t)?)
        }
        _ => return Err("no such command".to_string()),
    };
    Ok(Fault::Net { barrier, span })
}

fn store(words: &[&str]) -> Result<Fault, String> {
    let (trouble, span) = match words {
        ["store", "down", rest @ ..] => (Trouble::NoRequests(Set::All), perhaps(rest)?),
        ["store", "away", n, rest @ ..] => (Trouble::NoRequests(Set::one(number(n)?)), perhaps(rest)?),
        ["store", "slow", high, t] => (Trouble::Slow(span(high)? / 2, span(high)?), span(t)?),
        ["election", t] => (Trouble::Election, span(t)?),
        ["writes", "late", by, t] => (Trouble::LosesWrites { before: 0, late: 1000, by: span(by)? }, span(t)?),
        ["writes", "lost", rest @ ..] => (Trouble::LosesWrites { before: 1000, late: 0, by: 0 }, perhaps(rest)?),
        _ => return Err("no such command".to_string()),
    };
    Ok(Fault::Store { trouble, span })
}

/// Runs the scenario of this file, and says how it went; with its history on stdout if `traced`.
///
/// # Errors
/// The line that did not go as written, and why; that a scenario passes which is known to fail.
pub fn run(path: &Path, traced: bool) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let setup = Setup { steps: 1000, pace: MS, ..Setup::default() };
    let mut scenario = Scenario { setup, world: None, traced, end: None, known: None };
    let result = play(&mut scenario, &text);
    let name = path.file_name().unwrap_or_default().display();
    if let Some(world) = scenario.world.as_ref().filter(|_| traced) {
        for line in world.history.lines() {
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }
    match (result, scenario.known) {
        (Err(error), Some(known)) if error.contains(&known) => Ok(format!("{name} fails, as it says: {error}")),
        (Err(error), Some(known)) => Err(format!("{name}: it fails as expected, but not with '{known}': {error}")),
        (Err(error), None) => Err(format!("{name}:{error}")),
        (Ok(()), Some(known)) => Err(format!("{name}: it no longer fails ('{known}'): remove its first line")),
        (Ok(()), None) => Ok(format!("{name} goes as written; {}", told(scenario.end.as_ref()))),
    }
}

fn told(end: Option<&(i32, String)>) -> String {
    match end {
        None => "the job goes on".to_string(),
        Some((status, reason)) if reason.is_empty() => format!("the job ended with {status}"),
        Some((status, reason)) => format!("the job ended with {status}: {reason}"),
    }
}

fn play(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            scenario.line(line).map_err(|error| format!("{number}: {line}: {error}"))?;
        }
    }
    Ok(())
}
