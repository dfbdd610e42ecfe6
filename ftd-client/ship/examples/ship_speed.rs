//! How long two `ft-ship`s take to copy arenas from one to the other: `benches/run.py copies` compares it with what libfabric itself
//! takes.
//!
//!     ship_speed FT-SHIP PROVIDER MEGABYTES ARENAS ROUNDS
//!
//! One line for each round: milliseconds from the first word to an `ft-ship` until all bytes are where they should be; the windows are
//! opened anew each time, as for each version of a checkpoint. Both sides' memory is there.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/driver/mod.rs"]
mod driver;

use driver::{Memory, Ship, Wanted};
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, program, provider, megabytes, arenas, rounds] = &arguments[..] else {
        panic!("usage: ship_speed FT-SHIP PROVIDER MEGABYTES ARENAS ROUNDS")
    };
    let (bytes, arenas) = (megabytes.parse::<u64>().unwrap() << 20, arenas.parse::<u64>().unwrap());
    let (mut a, mut b) = (Ship::start_of(program, provider), Ship::start_of(program, provider));
    a.peer(1, &b);
    let memories: Vec<_> = (0..arenas).map(|arena| (Memory::filled(bytes, arena), Memory::filled(bytes, 99))).collect();
    for (arena, (from, to)) in (0..).zip(&memories) {
        a.map(arena, from, bytes);
        b.map(arena, to, bytes);
    }
    for round in 0..=rounds.parse().unwrap() {
        let began = Instant::now();
        let windows: Vec<_> = (0..arenas).map(|arena| b.expose(arena, 0, bytes, true)).collect();
        let moves: Vec<_> =
            (0..).zip(&windows).map(|(arena, (_, target))| a.begin(Wanted::put(arena, bytes, 1, *target))).collect();
        moves.into_iter().for_each(|id| a.end_of(id).unwrap());
        // The first one warms up.
        if round > 0 {
            println!("{:.3}", began.elapsed().as_secs_f64() * 1e3);
        }
        windows.into_iter().for_each(|(window, _)| b.finish(window));
    }
    assert!(memories.iter().all(|(from, to)| to.same(0, from, 0, bytes)));
}
