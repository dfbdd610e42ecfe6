//! Scenarios as text: `tests/scenarios/*.txt`, one command a line, `#` begins a comment. `FTD_SCENARIO=name` runs one with
//! its trace.
//!
//! | command | meaning |
//! | --- | --- |
//! | `nodes N` `slots N` `ranks N` | the cluster; slots are per node and numbered through |
//! | `observers N` `max-failures N` `mode M` `steps N` | the policy and the program's length |
//! | `renewable` `recover-aborts` `nervous` | lost slots are replaced; aborts are recovered from; survivors abort by themselves |
//! | `progress-after T`, `never-checkpoints` | what counts as progress; the program takes no checkpoint |
//! | `start` | until all ranks compute |
//! | `run T` | lets time pass (`5ms`, `2s`) |
//! | `settle` | until all ranks compute in the newest epoch |
//! | `finish` | until the job is over |
//! | `kill rank R [signal S]`, `kill agent N`, `kill node N`, `kill server N`, `lose slot S` | deaths |
//! | `crash rank R` | from now on the rank dies by itself in every world, before a newer checkpoint |
//! | `exit rank R code C`, `abort rank R code C`, `cancel` | ends by the program's or the user's own wish |
//! | `told ranks die`, `told ranks save code C`, `told ranks ignore` | what they do with the signal of `cancel` |
//! | `suspend node N T` | the whole node stands still |
//! | `cut N M`, `isolate N`, `isolate N with store`, `store down`, `heal` | the network |
//! | `expect epoch E`, `expect world W`, `expect rank R on slot S` | the record |
//! | `expect died TEXT` | the last failure set, as people read it |
//! | `expect paused N`, `expect not paused N` | the fence |
//! | `expect out N`, `expect vouched N` | the node was left out; it vouched for itself |
//! | `expect restored V`, `expect restored nothing` | the last recovery's report |
//! | `expect blame TEXT` | a sentence of any recovery's report |
//! | `expect status S`, `expect reason TEXT` | the end |

#![allow(clippy::print_stdout)]

mod cluster;

use cluster::{Cluster, Fault, Obedience, Setup};
use ftd_core::{NodeId, Rank, SlotId};
use std::path::Path;

struct Scenario {
    setup: Setup,
    cluster: Option<Cluster>,
}

fn span(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is no time"))?;
    match unit {
        "us" => Ok(number),
        "ms" => Ok(number * 1000),
        "s" => Ok(number * 1_000_000),
        _ => Err(format!("'{text}' is no time")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no number"))
}

impl Scenario {
    fn cluster(&mut self) -> &mut Cluster {
        let setup = &self.setup;
        self.cluster.get_or_insert_with(|| {
            let mut cluster = Cluster::new(setup.clone());
            cluster.traced = std::env::var("FTD_SCENARIO").is_ok();
            cluster
        })
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        self.cluster().fault(fault);
        Ok(())
    }

    fn until(&mut self, limit: u64, what: &str, condition: impl Fn(&Cluster) -> bool) -> Result<(), String> {
        let cluster = self.cluster();
        let reached = cluster.run_until(limit, condition);
        match &cluster.error {
            Some(error) => Err(error.clone()),
            None if !reached => Err(format!("not {what} after {} s", limit / 1_000_000)),
            None => Ok(()),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["nodes", n] => self.setup.nodes = number(n)?,
            ["slots", n] => self.setup.slots = number(n)?,
            ["ranks", n] => self.setup.ranks = number(n)?,
            ["observers", n] => self.setup.policy.observers = number(n)?,
            ["max-failures", n] => self.setup.policy.max_failures = number(n)?,
            ["mode", m] => self.setup.mode = m.parse().map_err(|e: ftd_core::policy::ModeError| e.to_string())?,
            ["steps", n] => self.setup.steps = number(n)?,
            ["progress-after", t] => self.setup.policy.progress_after = ftd_core::Micros(span(t)?),
            ["never-checkpoints"] => self.setup.every = u64::MAX,
            ["renewable"] => self.setup.renewable = true,
            ["recover-aborts"] => self.setup.policy.recover_aborts = true,
            ["nervous"] => self.setup.nervous = true,
            ["start"] | ["settle"] => self.until(20_000_000, "computing", Cluster::computing)?,
            ["run", t] => {
                let limit = span(t)?;
                self.cluster().run_until(limit, |_| false);
                if let Some(error) = &self.cluster().error {
                    return Err(error.clone());
                }
            }
            ["finish"] => {
                self.until(300_000_000, "over", Cluster::over)?;
                self.cluster().verdict()?;
            }
            ["kill", "rank", r] => self.fault(Fault::KillRank { rank: number(r)?, signal: 9 })?,
            ["kill", "rank", r, "signal", s] => self.fault(Fault::KillRank { rank: number(r)?, signal: number(s)? })?,
            ["kill", "agent", n] => self.fault(Fault::KillAgent { node: number(n)? })?,
            ["kill", "node", n] => self.fault(Fault::KillNode { node: number(n)? })?,
            ["kill", "server", n] => self.fault(Fault::KillServer { node: number(n)? })?,
            ["lose", "slot", s] => self.fault(Fault::LoseSlot { slot: SlotId(number(s)?) })?,
            ["crash", "rank", r] => {
                let rank = Rank(number(r)?);
                self.cluster().crashing.insert(rank);
            }
            ["exit", "rank", r, "code", c] => self.fault(Fault::ExitRank { rank: number(r)?, code: number(c)? })?,
            ["abort", "rank", r, "code", c] => self.fault(Fault::AbortRank { rank: number(r)?, code: number(c)? })?,
            ["told", "ranks", "die"] => self.cluster().obedience = Some(Obedience::Dies),
            ["told", "ranks", "save", "code", c] => self.cluster().obedience = Some(Obedience::Saves(number(c)?)),
            ["told", "ranks", "ignore"] => self.cluster().obedience = Some(Obedience::Ignores),
            ["cancel"] => self.fault(Fault::Cancel { signal: 15 })?,
            ["suspend", "node", n, t] => self.fault(Fault::Suspend { node: number(n)?, us: span(t)? })?,
            ["cut", n, m] => self.fault(Fault::Cut { from: number(n)?, to: number(m)? })?,
            ["isolate", n] => self.fault(Fault::Isolate { node: number(n)?, store: false })?,
            ["isolate", n, "with", "store"] => self.fault(Fault::Isolate { node: number(n)?, store: true })?,
            ["store", "down"] => self.fault(Fault::StoreDown)?,
            ["heal"] => self.fault(Fault::Heal)?,
            ["expect", rest @ ..] => self.expect(rest)?,
            _ => return Err("no such command".to_string()),
        }
        Ok(())
    }

    fn expect(&mut self, words: &[&str]) -> Result<(), String> {
        let cluster = self.cluster();
        let record = cluster.record.clone().ok_or("there is no record")?;
        let same = |is: String, expected: &str| {
            if is == expected { Ok(()) } else { Err(format!("it is '{is}'")) }
        };
        let contains = |is: String, expected: &[&str]| {
            if is.contains(&expected.join(" ")) { Ok(()) } else { Err(format!("it is '{is}'")) }
        };
        match words {
            ["epoch", e] => same(record.epoch.0.to_string(), e),
            ["world", w] => same(record.world.0.to_string(), w),
            ["rank", r, "on", "slot", s] => {
                let slot = record.placement.slot(Rank(number(r)?));
                same(slot.map_or("nowhere".into(), |slot| slot.0.to_string()), s)
            }
            ["died", rest @ ..] => contains(record.failures.to_string(), rest),
            ["paused", n] => same(cluster.paused(number(n)?).to_string(), "true"),
            ["not", "paused", n] => same(cluster.paused(number(n)?).to_string(), "false"),
            ["out", n] => same((!record.is_member(NodeId(number(n)?))).to_string(), "true"),
            ["restored", what] => {
                let done = cluster.done_reports.last().ok_or("no recovery was reported")?;
                let choice = done.restored.as_ref().and_then(|choice| choice.values().next().copied()).flatten();
                same(choice.map_or("nothing".into(), |stamp| stamp.version.0.to_string()), what)
            }
            ["blame", rest @ ..] => {
                let said: Vec<String> = cluster.done_reports.iter().flat_map(|done| done.blame.clone()).collect();
                contains(said.join("; "), rest)
            }
            ["status", s] => same(cluster.verdict()?.0.to_string(), s),
            ["reason", rest @ ..] => contains(cluster.verdict()?.1, rest),
            _ => Err("no such expectation".to_string()),
        }
    }
}

fn run(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut scenario = Scenario { setup: Setup::default(), cluster: None };
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        scenario.line(line).map_err(|error| {
            if let Some(cluster) = scenario.cluster.as_ref().filter(|cluster| cluster.traced) {
                cluster.trace.iter().for_each(|line| println!("{line}"));
            }
            format!("{}:{number}: {line}: {error}", path.file_name().unwrap_or_default().display())
        })?;
    }
    Ok(())
}

#[test]
fn every_scenario_goes_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let only = std::env::var("FTD_SCENARIO").ok();
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .filter(|path| only.as_ref().is_none_or(|only| path.file_stem().is_some_and(|stem| stem == only.as_str())))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scenario in {}", folder.display());
    let failed: Vec<String> = paths.iter().filter_map(|path| run(path).err()).collect();
    assert!(failed.is_empty(), "{} of {} scenarios failed:\n{}", failed.len(), paths.len(), failed.join("\n"));
}
