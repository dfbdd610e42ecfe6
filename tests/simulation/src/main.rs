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
    #[arg(long, value_parser = profile)]
    profile: Option<&'static Profile>,
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
    #[arg(long, value_parser = breach)]
    breach: Option<Breach>,
    /// Breaks each rule, or the one of `--breach`, and names the first seed of its profile that is caught at it.
    #[arg(long)]
    breaches: bool,
}

/// So many lines of the history of a seed that nobody asked for, and so much of each: records are long.
const LAST: usize = 40;
const WIDTH: usize = 180;

fn profile(name: &str) -> Result<&'static Profile, String> {
    profiles::named(name).ok_or_else(|| "no such profile; --list names them".to_string())
}

fn breach(name: &str) -> Result<Breach, String> {
    let all = || Breach::all().map(|breach| breach.to_string()).collect::<Vec<_>>().join(", ");
    Breach::named(name).ok_or_else(|| format!("no such rule; there are {}", all()))
}

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
            Ok(verdict) => {
                say(&verdict);
                ExitCode::SUCCESS
            }
            Err(error) => {
                say(&error);
                ExitCode::FAILURE
            }
        };
    }
    if options.breaches {
        return breaches(&options);
    }
    let chosen: Vec<&Profile> = options.profile.map_or_else(|| profiles::ALL.iter().collect(), |profile| vec![profile]);
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
    Setup { breach: options.breach, ..profile.setup(seed) }
}

/// The first seed that is caught at each breach.
fn breaches(options: &Options) -> ExitCode {
    let wanted = |breach: &Breach| options.breach.is_none_or(|chosen| chosen == *breach);
    let mut missed = false;
    for breach in Breach::all().filter(wanted) {
        let catch = breach.caught_by();
        let Some(profile) = options.profile.or_else(|| profiles::named(catch.profile)) else {
            missed = true;
            say(&format!("{breach}: there is no profile {}", catch.profile));
            continue;
        };
        let first =
            (options.first..options.first + options.seeds).find_map(|seed| Some((seed, breach.caught(profile, seed)?)));
        missed |= first.is_none();
        match first {
            Some((seed, sentence)) => say(&format!(
                "{breach}: {} seed {seed} (known: {}): {}",
                profile.name,
                catch.seed,
                sentence.lines().next().unwrap_or_default()
            )),
            None => say(&format!("{breach}: {} MISSED in {} seeds", profile.name, options.seeds)),
        }
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One seed: its schedule, shortened if it fails, and its history.
fn one(profile: &Profile, seed: u64, options: &Options) -> ExitCode {
    let drawn = setup(profile, seed, options);
    let failed = ft_simulation::run(&drawn, false).result.is_err();
    let shown = if failed && !options.whole { shrink::shortest(&drawn) } else { drawn };
    let run = ft_simulation::run(&shown, true);
    if options.seed.is_some() {
        run.history.iter().for_each(|line| say(line));
    } else {
        let last = &run.history[run.history.len().saturating_sub(LAST)..];
        last.iter().for_each(|line| say(&beginning(line)));
    }
    say(&shrink::describe(&shown));
    say(&told(profile, seed, &run));
    if run.result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn beginning(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_string(),
    }
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
        for thread in threads {
            all.merge(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
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
        let breach = options.breach.map(|breach| format!(" --breach {breach}")).unwrap_or_default();
        for (count, seed, sentence) in kinds.values() {
            let again = format!("ft-sim --profile {} --seed {seed}{breach}", profile.name);
            say(&format!("    broken {count} ×, first: {again}: {sentence}"));
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
