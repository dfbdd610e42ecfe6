//! `ft-measure`: what one recovery costs per node in clusters of several sizes, and whether that grows faster than log n.

use clap::Parser;
use ft_simulation::measure::{Case, Column, Size, Table, planning, recovery};
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

fn held() -> usize {
    MEMORY.current_usage()
}

fn say(line: &str) {
    // Whoever reads it may have left.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
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
    say(&format!("{table}\nA step that changes nothing takes {idle:.2} µs at most."));
    for size in sizes() {
        match planning(size, held) {
            Ok(done) => say(&format!(
                "{} nodes of {} slots: the first record is planned in {:.1} ms, the next one in {:.1} ms at most; after {} \
                 deaths it has {} runs, {:.1} kB",
                size.nodes,
                size.slots,
                done.first,
                done.next,
                size.nodes / 40,
                done.runs,
                done.kilobytes
            )),
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
