//! How fast a checkpoint is, against plain `memcpy` of the same bytes: `cargo run --release -p ftd-client --example copy_speed`.
//!
//! The agent's part (checksum and release behind the copy) runs in a thread, as in a job. Both sides of the comparison
//! copy into memory that is warm, and as many targets take turns, so that the caches help neither more than the other.
//! Each copy begins when the agent is done with the one before, as if the application had computed meanwhile.
#![allow(clippy::unwrap_used)]

#[path = "../tests/fake/mod.rs"]
mod fake;

use ft_arena::PlaceState;
use std::time::{Duration, Instant};

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn main() {
    let agent = fake::FakeAgent::new();
    for (name, value) in agent.env() {
        // SAFETY: the fake agent's thread, the only other one, does not use the environment.
        unsafe { std::env::set_var(name, value) };
    }
    let mut client = ftd_client::Client::init().unwrap();
    let mut version = 0;
    println!("{:>8} {:>12} {:>12} {:>8}", "MB", "memcpy GB/s", "ckpt GB/s", "ratio");
    for (megabytes, rounds) in [(1usize, 400), (16, 100), (256, 24)] {
        let bytes = megabytes << 20;
        let mut source: Vec<u8> = (0..bytes).map(|i| (i * 31) as u8).collect();
        let mut targets = vec![vec![1u8; bytes]; 3];
        // SAFETY: `source` is neither moved nor resized while it is protected.
        unsafe { client.protect_slice(1, &mut source) }.unwrap();
        for _ in 0..6 {
            version += 1;
            client.checkpoint(version).unwrap();
        }
        let settle = || {
            while agent.arena.scan().iter().any(|info| info.state == PlaceState::Copied) {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(Duration::from_micros(500));
        };
        let (mut plain, mut checkpoint) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            settle();
            let started = Instant::now();
            let target = &mut targets[round % 3];
            // SAFETY: two different vectors of `bytes` bytes.
            unsafe { libc::memcpy(target.as_mut_ptr().cast(), source.as_ptr().cast(), bytes) };
            plain.push(started.elapsed());
            std::hint::black_box(&mut targets);
            settle();
            version += 1;
            let started = Instant::now();
            client.checkpoint(version).unwrap();
            checkpoint.push(started.elapsed());
        }
        let (plain, checkpoint) = (median(plain), median(checkpoint));
        let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
        println!("{megabytes:>8} {:>12.2} {:>12.2} {:>8.2}", speed(plain), speed(checkpoint), plain / checkpoint);
    }
}
