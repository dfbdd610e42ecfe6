//! What a recovery costs a node grows no faster than the logarithm of the number of nodes. Memory is this process's, so there is
//! one test in it.

use ft_simulation::measure::{Case, Column, Costs, Size, Table, recovery, take_even_times};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn held() -> usize {
    MEMORY.current_usage()
}

/// The median of so many recoveries, as `make bench` has it.
const SEEDS: u64 = 5;

/// Processor time is measured, not counted: `make bench` looks at it, and at 10 000 nodes, and nodes of 64 slots.
#[test]
fn what_a_recovery_costs_a_node_grows_no_faster_than_log_n() {
    let mut table = Table::default();
    for case in Case::ALL {
        for nodes in [100, 1000] {
            let size = Size { nodes, slots: 1 };
            // One alone may be cheap by chance, as where what many say comes together, and another one grows against that.
            let all: Result<Vec<Costs>, String> =
                (1..=SEEDS).map(|seed| recovery(size, case, seed, held).map(|done| done.costs)).collect();
            let costs = all.and_then(|all| {
                let mut costs = Costs::median(&all);
                take_even_times(&mut costs, size, case, None).map(|()| costs)
            });
            match costs {
                Ok(costs) => table.add(case, size, costs),
                Err(error) => panic!("{case}, {nodes} nodes: {error}"),
            }
        }
    }
    let mut found = table.too_fast(|column: Column| !column.is_timed());
    found.extend(table.too_late());
    println!("{table}");
    assert!(found.is_empty(), "{}\n{table}", found.join("\n"));
    a_chain_is_found_to_grow_with_n();
}

/// In a tree of one child each a word goes through all nodes, one after the other.
fn a_chain_is_found_to_grow_with_n() {
    let mut table = Table::default();
    for nodes in [30, 300] {
        let (size, mut costs) = (Size { nodes, slots: 1 }, Costs::default());
        if let Err(error) = take_even_times(&mut costs, size, Case::Process, Some(1)) {
            panic!("a chain of {nodes} nodes: {error}");
        }
        table.add(Case::Process, size, costs);
    }
    for column in [Column::EvenTime, Column::EvenTold] {
        let found = table.too_fast(|other| other == column);
        assert_eq!(found.len(), 1, "{column:?}\n{table}");
    }
}
