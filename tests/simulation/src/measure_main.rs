//! `ft-measure`: what one recovery costs per node in clusters of several sizes, and whether that grows faster than log n.

use clap::Parser;
use ft_simulation::measure::{
    Case, Column, Costs, Planning, Recovered, Size, Table, planning, recovery, take_even_times, take_times,
};
use peak_alloc::PeakAlloc;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Measures one recovery of each kind in simulated clusters: messages, bytes, store operations, time, processor time and memory
/// per node. Ends with a status other than 0 when a limit is missed.
#[derive(Parser)]
#[command(name = "ft-measure")]
struct Options {
    /// How many nodes the clusters have.
    #[arg(default_values_t = [100, 1000, 10_000])]
    nodes: Vec<u32>,
    /// How many slots each node has.
    #[arg(long, default_value_t = 1)]
    slots: u32,
    /// Only these failures: process, node, rack, "all abort", cut; none: only planning.
    #[arg(long)]
    case: Vec<String>,
    /// The median of so many recoveries; processor times are of the first of them.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
}

/// The record for 10 000 nodes × 64 slots is under 100 kB and planned in under 50 ms; a step that changes nothing costs less than
/// 10 µs there.
const KILOBYTES: f64 = 100.0;
const PLANNED_MS: f64 = 50.0;
const IDLE_US: f64 = 10.0;

fn held() -> usize {
    MEMORY.current_usage()
}

fn say(line: &str) {
    // Whoever reads it may have left.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// What was missed.
#[derive(Default)]
struct Missed(Vec<String>);

impl Missed {
    fn add(&mut self, sentence: String) {
        self.0.push(sentence);
    }

    /// What a busy machine misses need not be missed on a quiet one.
    fn add_timed(&mut self, sentence: &str) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default().to_string();
        self.add(format!("{sentence} (that is meant of a machine that does nothing else; its load is {load})"));
    }

    fn limit(&mut self, what: &str, value: f64, limit: f64, unit: &str) {
        if value >= limit {
            self.add_timed(&format!("{what} takes {value:.1} {unit}; the limit is {limit} {unit}"));
        }
    }
}

fn plan(size: Size, missed: &mut Missed) {
    let Size { nodes, slots } = size;
    let Planning { first, next, runs, kilobytes } = match planning(size, held) {
        Ok(done) => done,
        Err(error) => return missed.add(error),
    };
    say(&format!(
        "{nodes} nodes of {slots} slots: the first record is planned in {first:.1} ms, the next one in {next:.1} ms at most; after {} \
         deaths it has {runs} runs, {kilobytes:.1} kB.",
        nodes / 40
    ));
    missed.limit(&format!("planning for {nodes} nodes of {slots} slots"), first.max(next), PLANNED_MS, "ms");
    if kilobytes >= KILOBYTES {
        missed
            .add(format!("the record of {nodes} nodes takes {kilobytes:.1} kB of memory; the limit is {KILOBYTES} kB"));
    }
}

/// One failure in a cluster of this size, with several seeds.
fn recover(size: Size, case: Case, seeds: u64, missed: &mut Missed) -> Option<(Recovered, Vec<Costs>)> {
    let Size { nodes, slots } = size;
    let mut all = Vec::new();
    for seed in 1..=seeds {
        match recovery(size, case, seed, held) {
            Ok(done) => all.push(done),
            Err(error) => missed.add(format!("{case} in {nodes} nodes of {slots} slots, seed {seed}: {error}")),
        }
    }
    let mut all = all.into_iter();
    let mut first = all.next()?;
    if let Err(error) = take_even_times(&mut first.costs, size, case, None) {
        missed.add(format!("{case} in {nodes} nodes of {slots} slots, nothing late: {error}"));
    }
    Some((first, all.map(|done| done.costs).collect()))
}

fn measure(options: &Options, sizes: &[Size], missed: &mut Missed) -> Table {
    let wanted = |case: &Case| options.case.is_empty() || options.case.contains(&case.to_string());
    let mut table = Table::default();
    let mut idle = BTreeMap::<u32, f64>::new();
    for case in Case::ALL.into_iter().filter(wanted) {
        let of = |size: &Size| Some((*size, recover(*size, case, options.seeds, missed)?));
        let mut done: Vec<(Size, (Recovered, Vec<Costs>))> = sizes.iter().filter_map(of).collect();
        take_times(done.iter_mut().map(|(_, (first, _))| first));
        for (size, (first, others)) in done {
            let dearest = idle.entry(size.nodes).or_default();
            *dearest = dearest.max(first.idle);
            let all: Vec<Costs> = [first.costs].into_iter().chain(others).collect();
            table.add(case, size, Costs::median(&all));
        }
    }
    say(&table.to_string());
    for (nodes, idle) in idle {
        let slots = options.slots;
        say(&format!("{nodes} nodes of {slots} slots: a step that changes nothing takes {idle:.2} µs at most."));
        missed.limit(&format!("a step that changes nothing, in {nodes} nodes of {slots} slots,"), idle, IDLE_US, "µs");
    }
    table
}

fn main() -> ExitCode {
    let options = Options::parse();
    let sizes: Vec<Size> = options.nodes.iter().map(|nodes| Size { nodes: *nodes, slots: options.slots }).collect();
    let mut missed = Missed::default();
    let table = measure(&options, &sizes, &mut missed);
    sizes.iter().for_each(|size| plan(*size, &mut missed));
    say(&format!("The simulation held {:.0} MB at most.", MEMORY.peak_usage() as f64 / 1e6));
    table.too_fast(|column: Column| !column.is_timed()).into_iter().for_each(|line| missed.add(line));
    table.too_late().into_iter().for_each(|line| missed.add(line));
    table.too_fast(Column::is_timed).iter().for_each(|line| missed.add_timed(line));
    missed.0.iter().for_each(|line| say(&format!("MISSED: {line}")));
    if missed.0.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
