//! What a recovery costs a node grows no faster than the logarithm of the number of nodes.

use ft_simulation::measure::{Case, Column, Size, Table, recovery};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Processor time is measured, not counted: `make bench` looks at it.
const COUNTED: [Column; 7] = [
    Column::Time,
    Column::Messages,
    Column::Beats,
    Column::Kilobytes,
    Column::Longest,
    Column::Requests,
    Column::Memory,
];

#[test]
fn what_a_recovery_costs_a_node_grows_no_faster_than_log_n() {
    let mut table = Table::default();
    for case in Case::ALL {
        for nodes in [100, 1000] {
            let size = Size { nodes, slots: 1 };
            match recovery(size, case, || MEMORY.current_usage()) {
                Ok(costs) => table.add(case, size, costs),
                Err(error) => panic!("{case}, {nodes} nodes: {error}"),
            }
        }
    }
    let found = table.too_fast(&COUNTED);
    assert!(found.is_empty(), "{}\n{table}", found.join("\n"));
}
