//! `ft-measure`: what one recovery costs per node in clusters of several sizes, and whether that grows faster than log n.

use clap::Parser;
use ft_simulation::measure::{Case, Column, Planning, Size, Table, planning, recovery};
use peak_alloc::PeakAlloc;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Measures one recovery of each kind in simulated clusters: messages, bytes, store operations, time, processor time and memory
/// per node.
#[derive(Parser)]
#[command(name = "ft-measure")]
struct Options {
    /// How many nodes the clusters have.
    #[arg(default_values_t = [100, 1000, 10_000])]
    nodes: Vec<u32>,
    /// How many slots each node has.
    #[arg(long, default_value_t = 1)]
    slots: u32,
    /// Only these failures: process, node, rack, "all abort", cut.
    #[arg(long)]
    case: Vec<String>,
}

/// The record for 10 000 nodes × 64 slots is under 100 kB and planned in under 50 ms; a step that changes nothing costs less than
/// 10 µs there.
const KILOBYTES: f64 = 100.0;
const PLANNED_MS: f64 = 50.0;
const IDLE_US: f64 = 10.0;

/// What is counted, and not timed, fails beyond this many times its limit.
const GENEROUS: f64 = 2.0;

/// Whether this keeps to its limit.
fn verdict(value: f64, limit: f64, unit: &str) -> String {
    format!("{}: the limit is {limit} {unit}", if value < limit { "PASS" } else { "ABOVE" })
}

fn held() -> usize {
    MEMORY.current_usage()
}

fn say(line: &str) {
    // Whoever reads it may have left.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn planned(size: Size, done: Planning) -> String {
    let Planning { first, next, runs, kilobytes } = done;
    let (ms, kb) = (verdict(first.max(next), PLANNED_MS, "ms"), verdict(kilobytes, KILOBYTES, "kB"));
    format!(
        "{} nodes of {} slots: the first record is planned in {first:.1} ms, the next one in {next:.1} ms at most ({ms}); after {} \
         deaths it has {runs} runs, {kilobytes:.1} kB ({kb})",
        size.nodes,
        size.slots,
        size.nodes / 40
    )
}

fn main() -> ExitCode {
    let options = Options::parse();
    let sizes = || options.nodes.iter().map(|nodes| Size { nodes: *nodes, slots: options.slots });
    let wanted = |case: &Case| options.case.is_empty() || options.case.contains(&case.to_string());
    let (mut table, mut well, mut idle) = (Table::default(), true, 0f64);
    for case in Case::ALL.into_iter().filter(wanted) {
        for size in sizes() {
            match recovery(size, case, held) {
                Ok(costs) => {
                    idle = idle.max(costs.idle);
                    table.add(case, size, costs);
                }
                Err(error) => {
                    well = false;
                    say(&format!("{case} in {} nodes of {} slots: {error}", size.nodes, size.slots));
                }
            }
        }
    }
    say(&table.to_string());
    if idle > 0.0 {
        say(&format!("A step that changes nothing takes {idle:.2} µs at most ({}).", verdict(idle, IDLE_US, "µs")));
    }
    for size in sizes() {
        match planning(size, held) {
            Ok(done) => {
                well &= done.kilobytes < GENEROUS * KILOBYTES;
                say(&planned(size, done));
            }
            Err(error) => {
                well = false;
                say(&error);
            }
        }
    }
    say(&format!("The simulation held {:.0} MB at most.", MEMORY.peak_usage() as f64 / 1e6));
    for line in table.too_fast(&Column::ALL) {
        well = false;
        say(&line);
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
