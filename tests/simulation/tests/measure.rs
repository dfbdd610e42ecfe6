//! What a recovery costs a node grows no faster than the logarithm of the number of nodes. Memory is this process's, so there is
//! one test in it.

use ft_simulation::measure::{Case, Column, Size, Table, recovery};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn held() -> usize {
    MEMORY.current_usage()
}

/// Processor time is measured, not counted, and when people are told hangs, with one seed, on the slowest message of all: `make bench`
/// looks at both, and at 10 000 nodes, and nodes of 64 slots.
#[test]
fn what_a_recovery_costs_a_node_grows_no_faster_than_log_n() {
    let mut table = Table::default();
    for case in Case::ALL {
        for nodes in [100, 1000] {
            let size = Size { nodes, slots: 1 };
            match recovery(size, case, 1, held) {
                Ok(done) => table.add(case, size, done.costs),
                Err(error) => panic!("{case}, {nodes} nodes: {error}"),
            }
        }
    }
    let found = table.too_fast(|column: Column| !column.is_timed() && column != Column::Told);
    assert!(found.is_empty(), "{}\n{table}", found.join("\n"));
}
