//! `ft-sim`: random runs of a simulated cluster. A seed that fails is shortened, told, and replayed exactly by its name.

use clap::Parser;
use ft_simulation::{Breach, Run, Setup, profiles, profiles::Profile, scenario, shrink};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Random runs of the shipped agents in a simulated cluster.
#[derive(Parser)]
#[command(name = "ft-sim")]
struct Options {
    /// Only this profile; all without.
    #[arg(long)]
    profile: Option<String>,
    /// Replays one seed, with its history.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds of each profile.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// So many seeds in all, the same number of each profile.
    #[arg(long)]
    total: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Runs a text scenario, with its history.
    #[arg(long)]
    scenario: Option<std::path::PathBuf>,
    /// Lists the profiles.
    #[arg(long)]
    list: bool,
    /// Shows the seed that fails without shortening its schedule.
    #[arg(long)]
    whole: bool,
    /// Breaks a rule on purpose.
    #[arg(long)]
    breach: Option<String>,
}

/// So many lines of the history of a seed that nobody asked for.
const LAST: usize = 40;

fn say(line: &str) {
    // Whoever reads it may have left.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for profile in profiles::ALL {
            say(&format!("{:<18} {}", profile.name, profile.about));
        }
        return ExitCode::SUCCESS;
    }
    if let Some(path) = &options.scenario {
        return match scenario::run(path, true) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(&error);
                ExitCode::FAILURE
            }
        };
    }
    let named = |name: &String| profiles::named(name).map(|profile| vec![profile]);
    let Some(chosen) = options.profile.as_ref().map_or_else(|| Some(profiles::ALL.iter().collect()), named) else {
        say("no such profile; --list names them");
        return ExitCode::FAILURE;
    };
    match (options.seed, chosen.as_slice()) {
        (Some(seed), [profile]) => one(profile, seed, &options),
        (Some(_), _) => {
            say("--seed needs --profile");
            ExitCode::FAILURE
        }
        (None, chosen) => many(chosen, &options),
    }
}

fn setup(profile: &Profile, seed: u64, options: &Options) -> Setup {
    Setup { breach: options.breach.as_deref().and_then(Breach::named), ..profile.setup(seed) }
}

/// One seed: its schedule, shortened if it fails, and its history.
fn one(profile: &Profile, seed: u64, options: &Options) -> ExitCode {
    let drawn = setup(profile, seed, options);
    let failed = ft_simulation::run(&drawn, false).result.is_err();
    let shown = if failed && !options.whole { shrink::shortest(&drawn) } else { drawn };
    let run = ft_simulation::run(&shown, true);
    let from = if options.seed.is_some() { 0 } else { run.history.len().saturating_sub(LAST) };
    run.history[from..].iter().for_each(|line| say(line));
    say(&shrink::describe(&shown));
    say(&told(profile, seed, &run));
    if run.result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn told(profile: &Profile, seed: u64, run: &Run) -> String {
    let end = match &run.result {
        Ok((status, reason)) if reason.is_empty() => format!("ended with {status}"),
        Ok((status, reason)) => format!("ended with {status}: {reason}"),
        Err(violation) => format!("BROKEN {violation}"),
    };
    let (seconds, acts) = (run.at as f64 / 1e6, run.acts);
    format!("{} seed {seed}: {end}, {seconds:.3} s and {acts} acts, {} recoveries", profile.name, run.recoveries)
}

/// A reason without its numbers.
fn kind(reason: &str) -> String {
    let mut kind: String = reason.chars().take(60).map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
    while kind.contains("##") {
        kind = kind.replace("##", "#");
    }
    kind
}

/// What the seeds of one profile came to.
#[derive(Default)]
struct Tally {
    runs: u64,
    well: u64,
    recoveries: u64,
    failed: Vec<(u64, String)>,
    ends: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, seed: u64, run: &Run) {
        self.runs += 1;
        self.recoveries += run.recoveries;
        match &run.result {
            Ok((0, _)) => self.well += 1,
            Ok((_, reason)) => *self.ends.entry(kind(reason)).or_insert(0) += 1,
            Err(violation) => self.failed.push((seed, violation.to_string())),
        }
    }

    fn merge(&mut self, other: Tally) {
        self.runs += other.runs;
        self.well += other.well;
        self.recoveries += other.recoveries;
        self.failed.extend(other.failed);
        self.failed.sort_unstable();
        other.ends.into_iter().for_each(|(end, count)| *self.ends.entry(end).or_insert(0) += count);
    }
}

fn tally(profile: &Profile, options: &Options) -> Tally {
    let next = AtomicU64::new(options.first);
    let each = |total: u64| total.div_ceil(profiles::ALL.len() as u64);
    let end = options.first + options.total.map_or(options.seeds, each);
    let work = || {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return tally;
            }
            tally.add(seed, &ft_simulation::run(&setup(profile, seed, options), false));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads.max(1)).map(|_| scope.spawn(work)).collect();
        let mut all = Tally::default();
        threads.into_iter().filter_map(|thread| thread.join().ok()).for_each(|tally| all.merge(tally));
        all
    })
}

fn many(chosen: &[&Profile], options: &Options) -> ExitCode {
    let mut red = false;
    for profile in chosen {
        let (began, cpu) = (Instant::now(), processor_time());
        let tally = tally(profile, options);
        let each = (processor_time() - cpu) * 1000.0 / tally.runs.max(1) as f64;
        let seconds = began.elapsed().as_secs_f64();
        let (runs, well, failed) = (tally.runs, tally.well, tally.failed.len());
        say(&format!(
            "{:<18} {runs} seeds, {} recoveries, {well} ended well, {failed} broken; {seconds:.1} s, {each:.1} ms of processor each",
            profile.name, tally.recoveries
        ));
        tally.ends.iter().for_each(|(end, count)| say(&format!("    {count} × {end}")));
        let mut kinds: BTreeMap<&str, (u64, u64, &str)> = BTreeMap::new();
        for (seed, sentence) in &tally.failed {
            let kind = sentence.split(": ").next().unwrap_or_default();
            kinds.entry(kind).or_insert((0, *seed, sentence)).0 += 1;
        }
        for (count, seed, sentence) in kinds.values() {
            say(&format!("    broken {count} ×, first: ft-sim --profile {} --seed {seed}: {sentence}", profile.name));
        }
        if let Some((seed, _)) = tally.failed.first() {
            red = true;
            one(profile, *seed, options);
        }
    }
    if red { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Seconds of processor time of this process so far, its threads' included.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}
