//! Other nodes that die, stop, or come back, and moves and windows that are not needed any more.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{MB, Memory, PATIENCE, Ship, TCP, Wanted, two, wait_for};
use ft_wire::ship::ToShip;
use std::time::Duration;

on_each!(
    a_killed_node_is_an_error_and_its_next_one_is_reached,
    a_stopped_node_is_an_error_and_holds_nobody_up,
    what_comes_late_does_not_reach_a_hidden_window,
    what_comes_late_does_not_reach_the_memory_of_a_move_that_was_given_up,
    a_cancelled_move_is_answered_and_another_one_is_done
);

/// So slowly that a move is under way for as long as the test likes.
fn slowly(ship: &mut Ship) {
    ship.send(ToShip::Rate { bytes: 4 * MB });
}

fn a_killed_node_is_an_error_and_its_next_one_is_reached(provider: &str) {
    let (mut a, full, mut b, _) = two(provider, 20 * MB);
    slowly(&mut a);
    let (_, target) = b.expose(1, 0, 20 * MB, true);
    let moves = [
        a.begin(Wanted::put(1, 20 * MB, 1, target).patience(PATIENCE)),
        a.begin(Wanted::get(1, 20 * MB, 1, target).patience(PATIENCE)),
    ];
    for id in moves {
        a.is_under_way(id, 20 * MB);
    }
    b.kill();
    for id in moves {
        a.end_of(id).unwrap_err();
    }
    // It is not there, and then its next one is.
    let reason = a.run(Wanted::put(1, MB, 1, target).patience(PATIENCE)).unwrap_err();
    assert_eq!(reason, format!("nothing has moved to node 1 for {PATIENCE} ms"));
    let (mut next, memory) = (Ship::start(provider), Memory::new(20 * MB));
    next.map(1, &memory, 20 * MB);
    let (_, target) = next.expose(1, 0, 20 * MB, true);
    let waiting = a.begin(Wanted::put(1, MB, 1, target));
    a.peer(1, &next);
    assert_eq!(a.end_of(waiting).unwrap_err(), "node 1 has a new ft-ship");
    a.send(ToShip::Rate { bytes: 0 });
    let full = Memory::filled(full.file.metadata().unwrap().len(), 11);
    a.map(2, &full, 20 * MB);
    a.run(Wanted::put(2, 20 * MB, 1, target)).unwrap();
    assert!(memory.same(0, &full, 0, 20 * MB));
}

fn a_stopped_node_is_an_error_and_holds_nobody_up(provider: &str) {
    let (mut a, full, mut b, memory) = two(provider, 20 * MB);
    let (mut c, other) = (Ship::start(provider), Memory::new(20 * MB));
    c.map(1, &other, 20 * MB);
    a.peer(2, &c);
    let (_, to_c) = c.expose(1, 0, 20 * MB, true);
    let (_, to_b) = b.expose(1, 0, 20 * MB, true);
    slowly(&mut a);
    // More than there are lines to a node.
    let moves: Vec<_> = (0..12).map(|_| a.begin(Wanted::put(1, 20 * MB, 1, to_b).patience(PATIENCE))).collect();
    a.is_under_way(moves[0], 20 * MB);
    b.stop_beside(&mut a);
    a.send(ToShip::Rate { bytes: 0 });
    a.run(Wanted::put(1, 20 * MB, 2, to_c)).unwrap();
    assert!(other.same(0, &full, 0, 20 * MB));
    for id in moves {
        assert_eq!(a.end_of(id).unwrap_err(), format!("nothing has moved to node 1 for {PATIENCE} ms"));
    }
    b.go_on();
    let (_, target) = b.expose(1, 0, 20 * MB, true);
    a.run(Wanted::put(1, 20 * MB, 1, target)).unwrap();
    assert!(memory.same(0, &full, 0, 20 * MB));
}

/// One node stands still in the middle of a piece, of which the other has what found room on the way.
fn what_comes_late_does_not_reach_a_hidden_window(provider: &str) {
    let (mut a, _full, mut b, memory) = two(provider, 200 * MB);
    let (window, target) = b.expose(1, 0, 200 * MB, true);
    let (_, open) = b.expose(1, 0, 1, false);
    a.send(ToShip::Rate { bytes: 200 * MB });
    let id = a.begin(Wanted::put(1, 200 * MB, 1, target).patience(PATIENCE));
    a.is_under_way(id, 200 * MB);
    b.stop_beside(&mut a);
    a.send(ToShip::Rate { bytes: 0 });
    a.settle();
    // As much as finds room.
    std::thread::sleep(Duration::from_millis(200));
    a.stop();
    b.go_on();
    a.stop_beside(&mut b);
    // It takes in all of that, a part in each round.
    (0..200).for_each(|_| b.settle());
    let mut seen = memory.copy();
    wait_for(|| {
        b.settle();
        std::mem::replace(&mut seen, memory.copy()).same(0, &memory, 0, 200 * MB)
    });
    b.hide(window);
    a.go_on();
    a.end_of(id).unwrap_err();
    // All that was under way has been taken in.
    a.map(2, &Memory::new(1), 1);
    a.run(Wanted::get(2, 1, 1, open)).unwrap();
    assert!(seen.same(0, &memory, 0, 200 * MB));
}

fn what_comes_late_does_not_reach_the_memory_of_a_move_that_was_given_up(provider: &str) {
    let (mut a, _full, mut b, memory) = two(provider, 200 * MB);
    let (_, target) = a.expose(1, 0, 200 * MB, false);
    b.send(ToShip::Rate { bytes: 100 * MB });
    // What the other one waits for is another matter ([`Ship::stop_beside`]): then it is let go, and once more.
    let given_up = (0..10).find_map(|_| {
        let id = b.begin(Wanted::get(1, 200 * MB, 0, target).patience(PATIENCE));
        b.is_under_way(id, 200 * MB);
        a.stop();
        let end = b.end_within(id, Duration::from_secs(10));
        if end.is_none() {
            println!("node 0 stands still where node 1 waits for it");
            a.go_on();
            let _ = b.end_of(id);
        }
        end
    });
    let reason = given_up.expect("the move ends while the other node stands still").unwrap_err();
    assert_eq!(reason, format!("nothing has moved from node 0 for {PATIENCE} ms"));
    let seen = memory.copy();
    a.go_on();
    b.map(2, &Memory::new(10), 10);
    b.run(Wanted::get(2, 10, 0, target)).unwrap();
    assert!(seen.same(0, &memory, 0, 200 * MB));
}

fn a_cancelled_move_is_answered_and_another_one_is_done(provider: &str) {
    let (mut a, full, mut b, memory) = two(provider, 20 * MB);
    let (_, target) = b.expose(1, 0, 20 * MB, true);
    slowly(&mut a);
    let id = a.begin(Wanted::put(1, 20 * MB, 1, target));
    a.is_under_way(id, 20 * MB);
    let gone = a.begin(Wanted::get(1, 20 * MB, 1, target));
    a.send(ToShip::Cancel { id });
    a.send(ToShip::Cancel { id });
    assert_eq!(a.end_of(id).unwrap_err(), "it was cancelled");
    a.send(ToShip::Gone { node: 1 });
    assert_eq!(a.end_of(gone).unwrap_err(), "node 1 is gone");
    let reason = a.run(Wanted::put(1, MB, 1, target)).unwrap_err();
    assert_eq!(reason, "nobody has said where node 1 is");
    a.send(ToShip::Rate { bytes: 0 });
    a.peer(1, &b);
    let (_, target) = b.expose(1, 0, 20 * MB, true);
    a.run(Wanted::put(1, 20 * MB, 1, target)).unwrap();
    assert!(memory.same(0, &full, 0, 20 * MB));
    let id = a.begin(Wanted::put(1, 20 * MB, 1, target));
    a.send(ToShip::Unmap { arena: 1 });
    match a.end_of(id) {
        Ok(()) => {}
        Err(reason) => assert_eq!(reason, "arena 1 was taken away"),
    }
}

#[test]
fn an_address_of_nobody_is_an_error_within_the_patience() {
    let mut gone = Ship::start(TCP);
    let (mut a, memory) = (Ship::start(TCP), Memory::new(MB));
    a.map(1, &memory, MB);
    a.peer(1, &gone);
    gone.kill();
    let target = ft_wire::ship::Target { base: 0, key: 1, bytes: MB };
    let reason = a.run(Wanted::put(1, MB, 1, target).patience(PATIENCE)).unwrap_err();
    assert_eq!(reason, format!("nothing has moved to node 1 for {PATIENCE} ms"));
    a.send(ToShip::Peer { node: 2, address: b"no address".to_vec() });
    a.run(Wanted::put(1, MB, 2, target).patience(PATIENCE)).unwrap_err();
}
