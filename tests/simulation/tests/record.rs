//! A record stays small. Memory is this process's, so there is one test in it.

use ft_simulation::measure::{Size, planning};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

#[test]
fn the_record_of_ten_thousand_nodes_of_which_hundreds_died_is_small() {
    let done = planning(Size { nodes: 10_000, slots: 64 }, || MEMORY.current_usage())
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(done.kilobytes < 100.0, "{} kB, {} runs", done.kilobytes, done.runs);
}
