//! Bytes that move, and those that must not.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{LONG, MB, Memory, PATIENCE, Ship, TCP, Wanted, two};
use ft_wire::ship::{Target, ToAgent, ToShip};
use std::time::{Duration, Instant};

on_each!(
    whatever_their_number_they_arrive_and_nothing_beside_them,
    a_window_ends_where_it_ends,
    a_wrong_key_is_refused,
    what_may_be_read_may_not_be_written,
    a_hidden_window_is_refused,
    the_memory_of_a_finished_window_serves_the_next_one,
    a_file_that_grew_has_all_its_bytes,
    many_small_moves,
    a_gigabyte
);

fn whatever_their_number_they_arrive_and_nothing_beside_them(provider: &str) {
    let (mut a, full, mut b, empty) = two(provider, 8 << 20);
    for (bytes, here, there) in [
        (1, 0, 4095),
        (7, 4097, 1),
        (4095, 3, 4096),
        (4097, 4096, 12_289),
        ((1 << 20) + 1, 5000, 0),
        ((5 << 20) + 13, 99, 1 << 20),
    ] {
        let (window, target) = b.expose(1, there, bytes, true);
        a.run(Wanted::put(1, bytes, 1, target).at(here)).unwrap();
        b.hide(window);
        assert!(empty.same(there, &full, here, bytes), "{bytes} put");
        assert!(empty.is_zero(0, there) && empty.is_zero(there + bytes, (8 << 20) - there - bytes), "beside {bytes}");

        let back = Memory::new(8 << 20);
        a.map(100 + bytes, &back, 8 << 20);
        let (_, target) = b.expose(1, there, bytes, false);
        a.run(Wanted::get(100 + bytes, bytes, 1, target).at(here)).unwrap();
        assert!(back.same(here, &full, here, bytes), "{bytes} got");
        assert!(back.is_zero(0, here) && back.is_zero(here + bytes, (8 << 20) - here - bytes), "beside {bytes}");
        let clean = Memory::new(there + bytes);
        std::os::unix::fs::FileExt::write_all_at(&empty.file, &clean.read(0, there + bytes), 0).unwrap();
    }
}

fn a_window_ends_where_it_ends(provider: &str) {
    let (mut a, _full, mut b, empty) = two(provider, MB);
    let (_, target) = b.expose(1, 4096, 10_000, true);
    let reason = a.run(Wanted::put(1, 10_001, 1, target)).unwrap_err();
    assert_eq!(reason, "the window of node 1 has 10000 bytes, and 10001 are to be moved");
    // Who lies is refused by the other node.
    let liar = Target { bytes: MB, ..target };
    let before = Target { base: target.base.wrapping_sub(4096), ..target };
    for wanted in [
        Wanted::put(1, 10_001, 1, liar),
        Wanted::get(1, 10_001, 1, liar),
        Wanted::put(1, 4096, 1, before),
        Wanted::get(1, 4096, 1, before),
    ] {
        // Over shared memory nobody says so.
        a.run(wanted.patience(PATIENCE)).unwrap_err();
    }
    assert!(empty.is_zero(0, MB));
    let reason = a.run(Wanted::put(1, 10_000, 1, target).at(MB - 9999)).unwrap_err();
    assert_eq!(reason, "arena 1 has 1000000 bytes, and not 10000 at 990001");
    assert_eq!(a.run(Wanted::put(9, 1, 1, target)).unwrap_err(), "arena 9 is not here");
    let reason = b.try_expose(1, MB - 1, 2, true).unwrap_err();
    assert_eq!(reason, "arena 1 has 1000000 bytes, and not 2 at 999999");
    a.run(Wanted::put(1, 10_000, 1, target)).unwrap();
    a.run(Wanted::put(1, 0, 1, target)).unwrap();
}

fn a_wrong_key_is_refused(provider: &str) {
    let (mut a, full, mut b, empty) = two(provider, 4 * MB);
    let (_, target) = b.expose(1, 0, 4 * MB, true);
    let (_, other) = b.expose(1, 0, 4 * MB, true);
    assert_ne!(target.key, other.key);
    for key in [target.key ^ 1, target.key ^ (1 << 63), 0, 1] {
        a.run(Wanted::put(1, 4 * MB, 1, Target { key, ..target }).patience(PATIENCE)).unwrap_err();
        a.run(Wanted::get(1, 4 * MB, 1, Target { key, ..target }).patience(PATIENCE)).unwrap_err();
    }
    assert!(empty.is_zero(0, 4 * MB));
    a.run(Wanted::put(1, 4 * MB, 1, target)).unwrap();
    assert!(empty.same(0, &full, 0, 4 * MB));
}

fn what_may_be_read_may_not_be_written(provider: &str) {
    let (mut a, full, mut b, empty) = two(provider, MB);
    let (_, target) = a.expose(1, 0, MB, false);
    b.run(Wanted::put(1, MB, 0, target).patience(PATIENCE)).unwrap_err();
    assert!(!full.is_zero(0, MB));
    b.run(Wanted::get(1, MB, 0, target)).unwrap();
    assert!(empty.same(0, &full, 0, MB));
}

fn a_hidden_window_is_refused(provider: &str) {
    let (mut a, _full, mut b, empty) = two(provider, 2 * MB);
    let (window, target) = b.expose(1, 0, MB, true);
    // Another one stays open, so that the other node is to be reached.
    let (_, open) = b.expose(1, MB, MB, true);
    b.hide(window);
    b.hide(window);
    a.run(Wanted::put(1, MB, 1, target).patience(PATIENCE)).unwrap_err();
    a.run(Wanted::get(1, MB, 1, target).patience(PATIENCE)).unwrap_err();
    assert!(empty.is_zero(0, MB));
    a.run(Wanted::put(1, MB, 1, open)).unwrap();
    // So are those of an arena that is taken back.
    b.send(ToShip::Unmap { arena: 1 });
    b.settle();
    a.run(Wanted::put(1, MB, 1, open).patience(PATIENCE)).unwrap_err();
}

fn the_memory_of_a_finished_window_serves_the_next_one(provider: &str) {
    let (mut a, full, mut b, empty) = two(provider, 2 * MB);
    let (_, open) = b.expose(1, MB, MB, true);
    let mut bases = Vec::new();
    for round in 0..3 {
        let (window, target) = b.expose(1, 0, MB - round, true);
        a.run(Wanted::put(1, MB - round, 1, target).at(round)).unwrap();
        b.finish(window);
        b.finish(window);
        assert!(empty.same(0, &full, round, MB - round));
        // It is as closed as a hidden one.
        a.run(Wanted::put(1, 1, 1, target).patience(PATIENCE)).unwrap_err();
        a.run(Wanted::get(1, 1, 1, target).patience(PATIENCE)).unwrap_err();
        bases.push(target.base);
    }
    assert!(bases.iter().all(|base| *base == bases[0]), "{bases:x?}");
    // Not so where somebody may be late, nor for a part of which there is not all.
    let (window, _) = b.expose(1, 0, MB, true);
    b.hide(window);
    let (_, anew) = b.expose(1, 0, MB, true);
    let (_, other) = b.expose(1, 0, MB + 4096, true);
    assert!(anew.base == 0 || ![bases[0], other.base, open.base].contains(&anew.base), "{anew:x?}");
    a.run(Wanted::put(1, MB, 1, anew)).unwrap();
    assert!(empty.same(0, &full, 0, MB));
}

fn a_file_that_grew_has_all_its_bytes(provider: &str) {
    let (mut a, full, mut b, empty) = two(provider, MB);
    full.file.set_len(3 * MB).unwrap();
    empty.file.set_len(3 * MB).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&full.file, &driver::pattern(3, 0, 2_000_000), MB).unwrap();
    b.try_expose(1, 0, 3 * MB, true).unwrap_err();
    a.map(1, &full, 3 * MB);
    b.map(1, &empty, 3 * MB);
    let (_, target) = b.expose(1, 0, 3 * MB, true);
    a.run(Wanted::put(1, 3 * MB, 1, target)).unwrap();
    assert!(empty.same(0, &full, 0, 3 * MB));
}

fn many_small_moves(provider: &str) {
    let (mut a, full, mut b, empty) = two(provider, 2 * MB);
    let (mut ends, mut at) = (Vec::new(), 0);
    for i in 0..400 {
        let bytes = 1 + i * 37 % 4001;
        let (_, target) = b.expose(1, at, bytes, true);
        ends.push(a.begin(Wanted::put(1, bytes, 1, target).at(at)));
        at += bytes;
    }
    for id in ends {
        a.end_of(id).unwrap();
    }
    assert!(empty.same(0, &full, 0, at) && empty.is_zero(at, 2 * MB - at));
}

fn a_gigabyte(provider: &str) {
    let bytes = 1_000_000_007;
    let (mut a, full, mut b, empty) = two(provider, bytes + 5);
    let (_, target) = b.expose(1, 3, bytes, true);
    a.run(Wanted::put(1, bytes, 1, target).at(5)).unwrap();
    assert!(empty.same(3, &full, 5, bytes));
    let back = Memory::new(bytes);
    a.map(2, &back, bytes);
    a.run(Wanted::get(2, bytes, 1, target)).unwrap();
    assert!(back.same(0, &full, 5, bytes));
}

#[test]
fn a_limit_is_kept_and_progress_is_said_a_few_times_a_second() {
    let (mut a, full, mut b, empty) = two(TCP, 20 * MB);
    let (_, target) = b.expose(1, 0, 20 * MB, true);
    a.send(ToShip::Rate { bytes: 20 * MB });
    let began = Instant::now();
    let id = a.begin(Wanted::put(1, 20 * MB, 1, target).patience(LONG));
    let (mut said, mut last) = (0, 0);
    loop {
        match a.next() {
            ToAgent::Progress { id: of, bytes } => {
                assert!(of == id && bytes > last, "{bytes} after {last}");
                (said, last) = (said + 1, bytes);
            }
            ToAgent::Moved { id: of } => break assert_eq!(of, id),
            other => panic!("{other:?}"),
        }
    }
    let took = began.elapsed();
    assert!(took > Duration::from_millis(800), "{took:?}");
    assert!((1..=1 + took.as_millis() / 250).contains(&said), "{said} in {took:?}");
    assert!(empty.same(0, &full, 0, 20 * MB));
    // Without it, it is over.
    a.send(ToShip::Rate { bytes: 1 });
    let id = a.begin(Wanted::put(1, 20 * MB, 1, target));
    a.send(ToShip::Rate { bytes: 0 });
    a.end_of(id).unwrap();
}

#[test]
fn a_short_move_does_not_wait_for_a_long_one() {
    let (mut a, _full, mut b, _empty) = two(TCP, 100 * MB);
    a.send(ToShip::Rate { bytes: 20 * MB });
    let (_, target) = b.expose(1, 0, 100 * MB, true);
    let long = a.begin(Wanted::put(1, 100 * MB, 1, target));
    a.is_under_way(long, 100 * MB);
    let short = a.begin(Wanted::put(1, 5 * MB, 1, target));
    a.end_of(short).unwrap();
    a.send(ToShip::Cancel { id: long });
    assert_eq!(a.end_of(long).unwrap_err(), "it was cancelled");
}

#[test]
fn moves_take_little_memory_of_their_own() {
    let (mut a, full, mut b, empty) = two(TCP, 4 * MB);
    let (_, target) = b.expose(1, 0, 4 * MB, true);
    // At once: each has a line of its own.
    let ends: Vec<_> = (0..4).map(|_| a.begin(Wanted::put(1, 4 * MB, 1, target))).collect();
    ends.into_iter().for_each(|id| a.end_of(id).unwrap());
    assert!(empty.same(0, &full, 0, 4 * MB));
    for ship in [&a, &b] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", ship.process.id())).unwrap();
        let most = |line: &str| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
        let kilobytes = status.lines().find_map(most).unwrap();
        assert!(kilobytes < 64 << 10, "{kilobytes} kB");
    }
}

#[test]
fn nodes_of_which_nothing_was_said_are_not_moved_to() {
    let mut a = Ship::start(TCP);
    let memory = Memory::new(10);
    a.map(1, &memory, 10);
    let target = Target { base: 0, key: 1, bytes: 10 };
    let reason = a.run(Wanted::put(1, 10, 3, target)).unwrap_err();
    assert_eq!(reason, "nobody has said where node 3 is");
}
