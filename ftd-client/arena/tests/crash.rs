//! A rank that dies at any instruction of a checkpoint: a child is stepped through one, instruction by instruction, and
//! after each the arena is looked at, as an agent would find it if the child had died there.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

use ft_arena::{AgentArena, Arena, PlaceState};
use std::time::Duration;

fn checkpoint(arena: &mut Arena, version: u64, fill: u8) {
    let mut writing = arena.begin(version, 1, &[(1, 300), (2, 40)], Duration::ZERO).unwrap();
    writing.copy(0, &[fill; 300]);
    writing.copy(1, &[fill; 40]);
    writing.commit(Duration::ZERO);
}

fn complete(agent: &AgentArena, place: u32) {
    let (info, checksum) = agent.hash(place).unwrap();
    agent.set_complete(place, info.sequence, checksum);
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is valid for the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

#[test]
fn every_instruction_leaves_the_arena_whole() {
    let (agent, fd) = AgentArena::create(0, 1).unwrap();
    // Places 0 and 1 hold versions 1 and 2; place 2 held version 3, which has been released: version 4 goes there.
    let mut arena = Arena::open(fd, 0, 1).unwrap();
    arena.reserve(4096).unwrap();
    for version in 1..=3 {
        checkpoint(&mut arena, version, version as u8);
    }
    (0..3).for_each(|place| complete(&agent, place));
    agent.release(2, agent.inspect(2).sequence);
    drop(arena);

    let fd = agent.descriptor().unwrap();
    // SAFETY: the child touches only its own memory and the arena, and leaves with _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let mut arena = Arena::open(fd, 0, 1).unwrap();
        arena.reserve(4096).unwrap();
        // SAFETY: plain system calls.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        checkpoint(&mut arena, 4, 4);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert!(libc::WIFSTOPPED(wait(pid)));
    let (mut steps, mut seen) = (0u64, [0u64; 3]);
    loop {
        // SAFETY: the child is stopped and traced by this thread.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) }, 0);
        let status = wait(pid);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0);
            break;
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        steps += 1;
        agent.verify(0).unwrap();
        agent.verify(1).unwrap();
        let info = agent.inspect(2);
        match &info.state {
            PlaceState::Free => seen[0] += 1,
            PlaceState::Writing => seen[1] += 1,
            PlaceState::Copied => {
                seen[2] += 1;
                assert_eq!(info.version, 4);
                if seen[2] == 1 {
                    let (_, checksum) = agent.hash(2).unwrap();
                    agent.set_complete(2, info.sequence, checksum);
                }
            }
            PlaceState::Complete { .. } => drop(agent.verify(2).unwrap()),
            PlaceState::Corrupt { why } => panic!("after {steps} instructions: {why}"),
        }
    }
    assert!(seen.iter().all(|&n| n > 0), "{seen:?} of {steps}");
    let mut arena = Arena::open(agent.descriptor().unwrap(), 0, 1).unwrap();
    let saved = arena.saved(2, 4).unwrap();
    assert_eq!(saved.regions().map(|region| region.bytes).collect::<Vec<_>>(), [300, 40]);
}
