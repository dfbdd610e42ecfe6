//! How long etcd takes for one put, asked as a node's `ftd` asks it: `benches/run.py epochs` compares an epoch's way with it.
//!
//!     put_speed KEY ENDPOINT…
//!
//! Each line of standard input is how often to put; of each put a line says how many milliseconds it took. What is put is about as long
//! as a small job's record.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use etcd_client::{Client, ConnectOptions};
use std::io::BufRead;
use std::time::Instant;

/// A record of some nodes.
const BYTES: usize = 400;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let key = arguments.next().expect("usage: put_speed KEY ENDPOINT…");
    let endpoints: Vec<String> = arguments.collect();
    // One member, as ftd has it.
    let options = ConnectOptions::new().with_require_leader(true);
    let mut client = Client::connect(&endpoints[..1], Some(options)).await.unwrap();
    for line in std::io::stdin().lock().lines() {
        for _ in 0..line.unwrap().parse::<u32>().unwrap() {
            let began = Instant::now();
            client.put(key.as_str(), vec![7; BYTES], None).await.unwrap();
            println!("{:.3}", began.elapsed().as_secs_f64() * 1e3);
        }
    }
}
