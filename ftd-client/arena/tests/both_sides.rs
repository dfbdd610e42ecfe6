//! Rank and agent on one arena, as they are used.
#![allow(clippy::unwrap_used)]

use ft_arena::{AgentArena, Arena, ArenaError, PlaceState, bytes_for};
use proptest::prelude::*;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const NOW: Duration = Duration::ZERO;

fn pair() -> (AgentArena, Arena) {
    let (agent, fd) = AgentArena::create(3, 8).unwrap();
    let rank = Arena::open(fd, 3, 8).unwrap();
    (agent, rank)
}

fn write(rank: &mut Arena, version: u64, regions: &[(i32, &[u8])]) -> Result<u32, ArenaError> {
    let lengths: Vec<(i32, u64)> = regions.iter().map(|(id, bytes)| (*id, bytes.len() as u64)).collect();
    let needed = bytes_for(lengths.iter().map(|l| l.1)).unwrap();
    if needed > rank.place_bytes() {
        rank.reserve(needed)?;
    }
    let mut writing = rank.begin(version, 1, &lengths, NOW)?;
    for (index, (_, bytes)) in regions.iter().enumerate() {
        writing.copy(index, bytes);
    }
    let place = writing.place();
    writing.commit(Duration::ZERO);
    Ok(place)
}

fn read(rank: &mut Arena, place: u32, version: u64) -> Vec<(i32, Vec<u8>)> {
    let saved = rank.saved(place, version).unwrap();
    saved
        .regions()
        .map(|region| {
            // SAFETY: the region lies in the mapping that `saved` borrows.
            let bytes = unsafe { std::slice::from_raw_parts(region.pointer, region.bytes as usize) };
            (region.id, bytes.to_vec())
        })
        .collect()
}

fn complete(agent: &AgentArena, place: u32) {
    let (info, checksum) = agent.hash(place).unwrap();
    agent.set_complete(place, info.sequence, checksum);
    assert_eq!(agent.verify(place).unwrap().version, info.version);
}

fn flip(agent: &AgentArena, offset: u64, mask: u8) {
    let fd = agent.as_fd().as_raw_fd();
    let mut byte = [0u8];
    // SAFETY: one byte is read into, and written from, a local array.
    unsafe {
        assert_eq!(libc::pread(fd, byte.as_mut_ptr().cast(), 1, offset as i64), 1);
        byte[0] ^= mask;
        assert_eq!(libc::pwrite(fd, byte.as_ptr().cast(), 1, offset as i64), 1);
    }
}

#[test]
fn three_versions_then_a_wait_for_the_agent() {
    let (agent, mut rank) = pair();
    for version in 1..=3 {
        write(&mut rank, version, &[(1, &[version as u8; 100]), (-7, &[9; 5000])]).unwrap();
    }
    let error = write(&mut rank, 4, &[(1, &[4; 100])]).unwrap_err();
    assert!(matches!(&error, ArenaError::NoFreePlace { version: 4, held, .. } if held == &[1, 2, 3]), "{error}");
    for place in 0..3 {
        complete(&agent, place);
    }
    let info = agent.inspect(0);
    agent.release(0, info.sequence);
    assert_eq!(agent.inspect(0).state, PlaceState::Free);
    assert_eq!(write(&mut rank, 4, &[(1, &[4; 100])]).unwrap(), 0);
    // A release that comes late, or twice, does not hit the newer commit.
    agent.release(0, info.sequence);
    agent.set_complete(0, info.sequence, 77);
    assert_eq!(agent.inspect(0).state, PlaceState::Copied);
    assert!(matches!(write(&mut rank, 5, &[]), Err(ArenaError::NoFreePlace { .. })));
    // Nor does a release that is aimed at a place while it is written.
    agent.release(1, agent.inspect(1).sequence);
    let writing = rank.begin(5, 1, &[], NOW).unwrap();
    assert_eq!(agent.inspect(1).state, PlaceState::Writing);
    agent.release(1, agent.inspect(1).sequence);
    writing.commit(Duration::ZERO);
    assert_eq!(agent.inspect(1).state, PlaceState::Copied);
    assert_eq!(read(&mut rank, 2, 3), [(1, vec![3; 100]), (-7, vec![9; 5000])]);
}

#[test]
fn a_release_wakes_the_waiting_rank() {
    let (agent, mut rank) = pair();
    for version in 1..=3 {
        write(&mut rank, version, &[(1, &[0; 10])]).unwrap();
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            agent.release(1, agent.inspect(1).sequence);
        });
        let writing = rank.begin(4, 1, &[(1, 10)], Duration::from_secs(30)).unwrap();
        assert_eq!(writing.place(), 1);
    });
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_new_agent_finds_what_the_old_one_left() {
    let (agent, mut rank) = pair();
    write(&mut rank, 10, &[(1, &[1; 100_000])]).unwrap();
    write(&mut rank, 20, &[(1, &[2; 100_000])]).unwrap();
    complete(&agent, 0);
    let fd = agent.descriptor().unwrap();
    drop(agent);
    let _abandoned = rank.begin(30, 1, &[(1, 5)], NOW).unwrap();
    let agent = AgentArena::adopt(fd, 3, 8).unwrap();
    let states: Vec<_> = agent.scan().into_iter().map(|info| (info.version, info.state)).collect();
    assert!(matches!(states[0], (10, PlaceState::Complete { .. })));
    assert_eq!(states[1], (20, PlaceState::Copied));
    assert_eq!(states[2].1, PlaceState::Writing);
    agent.verify(0).unwrap();
    complete(&agent, 1);
}

#[test]
fn the_next_process_of_the_rank_restores_and_goes_on() {
    let (agent, mut rank) = pair();
    for version in [5, 6] {
        write(&mut rank, version, &[(1, &vec![version as u8; 3 << 20])]).unwrap();
    }
    complete(&agent, 0);
    drop(rank);
    let mut rank = Arena::open(agent.descriptor().unwrap(), 3, 8).unwrap();
    assert_eq!(read(&mut rank, 0, 5), [(1, vec![5; 3 << 20])]);
    agent.release(1, agent.inspect(1).sequence);
    assert_eq!(write(&mut rank, 6, &[(1, &vec![7; 3 << 20])]).unwrap(), 1);
    assert_eq!(write(&mut rank, 7, &[(1, &[8; 10])]).unwrap(), 2);
    assert!(agent.inspect(2).sequence > agent.inspect(1).sequence);
    complete(&agent, 2);
    assert!(matches!(rank.saved(2, 5), Err(ArenaError::Damaged { .. })));
    assert!(matches!(rank.saved(9, 5), Err(ArenaError::Damaged { .. })));
}

#[test]
fn regions_may_grow_shrink_appear_and_vanish() {
    let (agent, mut rank) = pair();
    write(&mut rank, 1, &[(1, &[1; 1000])]).unwrap();
    complete(&agent, 0);
    write(&mut rank, 2, &[(1, &vec![2; 9 << 20]), (2, &[3; 10])]).unwrap();
    complete(&agent, 1);
    let large = agent.allocated().unwrap();
    assert!(large >= 27 << 20, "{large}");
    assert_eq!(read(&mut rank, 0, 1), [(1, vec![1; 1000])]);
    rank.reserve(4096).unwrap();
    write(&mut rank, 3, &[(2, &[4; 10])]).unwrap();
    complete(&agent, 2);
    for place in 0..2 {
        agent.verify(place).unwrap();
        agent.release(place, agent.inspect(place).sequence);
    }
    assert!(agent.allocated().unwrap() < 1 << 20, "oversized places are given back");
    agent.verify(2).unwrap();
    write(&mut rank, 4, &[]).unwrap();
    assert_eq!(read(&mut rank, 0, 4), []);
}

#[test]
fn a_version_that_does_not_fit_leaves_the_older_ones_whole() {
    let (agent, mut rank) = pair();
    write(&mut rank, 1, &[(1, &[1; 1000])]).unwrap();
    complete(&agent, 0);
    assert!(matches!(rank.begin(2, 1, &[(1, 100_000)], NOW), Err(ArenaError::TooLarge { needed: 104_096, .. })));
    assert!(matches!(rank.begin(2, 1, &[(1, u64::MAX), (2, 9)], NOW), Err(ArenaError::Limits { .. })));
    assert!(matches!(rank.reserve(1 << 50), Err(ArenaError::NoMemory { .. })));
    agent.verify(0).unwrap();
    assert_eq!(write(&mut rank, 2, &[(1, &[2; 1000])]).unwrap(), 1);
}

#[test]
fn strangers_are_refused() {
    let (agent, _rank) = pair();
    for (rank, size) in [(2, 8), (3, 9)] {
        assert!(matches!(AgentArena::adopt(agent.descriptor().unwrap(), rank, size), Err(ArenaError::Foreign { .. })));
        assert!(matches!(Arena::open(agent.descriptor().unwrap(), rank, size), Err(ArenaError::Foreign { .. })));
    }
    // SAFETY: the name is a C string; the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), 0)) };
    assert!(matches!(AgentArena::adopt(fd, 3, 8), Err(ArenaError::Foreign { .. })));
    let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(Arena::open(fd, 3, 8), Err(ArenaError::Foreign { .. })));
    // Nobody can cut the arena short under the agent's feet.
    // SAFETY: plain system call.
    assert_eq!(unsafe { libc::ftruncate(agent.as_fd().as_raw_fd(), 0) }, -1);
}

#[test]
fn a_damaged_identity_is_repaired_by_the_agent() {
    let (agent, mut rank) = pair();
    write(&mut rank, 1, &[(1, &[1; 1000])]).unwrap();
    complete(&agent, 0);
    flip(&agent, 9, 0xff);
    let fd = agent.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(Arena::open(fd, 3, 8), Err(ArenaError::Foreign { .. })));
    let agent = AgentArena::adopt(agent.as_fd().try_clone_to_owned().unwrap(), 3, 8).unwrap();
    agent.verify(0).unwrap();
    drop(rank);
    Arena::open(agent.descriptor().unwrap(), 3, 8).unwrap();
}

/// Offset of the first place's data and of its record in the header.
const PLACE_0: u64 = 1 << 40;
const RECORD_0: u64 = 4096;

#[test]
fn every_flipped_byte_of_a_complete_version_is_noticed() {
    let (agent, mut rank) = pair();
    write(&mut rank, 1, &[(1, &[1; 200]), (2, &[2; 100])]).unwrap();
    write(&mut rank, 2, &[(1, &[1; 200])]).unwrap();
    complete(&agent, 0);
    complete(&agent, 1);
    let table = 0..48u64;
    let regions = (64..264u64).chain(320..420);
    for offset in table.chain(regions).map(|at| PLACE_0 + at).chain(RECORD_0..RECORD_0 + 72) {
        flip(&agent, offset, 0x10);
        assert!(agent.verify(0).is_err(), "offset {offset:#x}");
        agent.verify(1).unwrap();
        flip(&agent, offset, 0x10);
        agent.verify(0).unwrap();
    }
    for offset in RECORD_0 + 2048..RECORD_0 + 2080 {
        flip(&agent, offset, 0x10);
        assert!(agent.verify(0).is_err() || agent.inspect(0).state != PlaceState::Copied, "offset {offset:#x}");
        flip(&agent, offset, 0x10);
        agent.verify(0).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever a broken program writes over its header: no panic, no endless reading, on neither side.
    #[test]
    fn any_header_is_survived(
        writes in proptest::collection::vec((0u64..16_384, proptest::collection::vec(any::<u8>(), 1..64)), 1..20),
        words in proptest::collection::vec((0u64..9, prop_oneof![Just(0u64), Just(u64::MAX), Just(1 << 40), Just(1 << 20), any::<u64>()]), 0..6),
    ) {
        let (agent, mut rank) = pair();
        write(&mut rank, 1, &[(1, &[1; 200])]).unwrap();
        complete(&agent, 0);
        let fd = agent.as_fd().as_raw_fd();
        let put = |bytes: &[u8], at: u64| {
            // SAFETY: the bytes are valid for the call.
            unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at as i64) };
        };
        for (at, bytes) in &writes {
            put(bytes, *at);
        }
        for (word, value) in &words {
            put(&value.to_le_bytes(), RECORD_0 + 8 * word);
        }
        for info in agent.scan() {
            let _ = agent.hash(info.place);
            let _ = agent.verify(info.place);
            let _ = rank.saved(info.place, info.version);
            agent.set_complete(info.place, info.sequence, 1);
            agent.release(info.place, info.sequence);
        }
        let _ = AgentArena::adopt(agent.as_fd().try_clone_to_owned().unwrap(), 3, 8);
        // The rank can go on: a damaged place is one to be overwritten.
        write(&mut rank, 2, &[(1, &[1; 200])]).unwrap();
    }

    /// Regions come and go between versions.
    #[test]
    fn versions_of_any_shape_come_back(shapes in proptest::collection::vec(proptest::collection::vec((any::<i32>(), 0usize..9000), 0..8), 1..12)) {
        let (agent, mut rank) = pair();
        for (version, shape) in shapes.iter().enumerate() {
            let version = version as u64 + 1;
            let regions: Vec<(i32, Vec<u8>)> = shape.iter().map(|&(id, n)| (id, vec![version as u8; n])).collect();
            let borrowed: Vec<(i32, &[u8])> = regions.iter().map(|(id, bytes)| (*id, bytes.as_slice())).collect();
            let place = write(&mut rank, version, &borrowed).unwrap();
            complete(&agent, place);
            prop_assert_eq!(read(&mut rank, place, version), regions);
            for info in agent.scan() {
                if info.is_whole() && info.version + 1 < version {
                    agent.verify(info.place).unwrap();
                    agent.release(info.place, info.sequence);
                }
            }
        }
    }
}

#[test]
fn an_arena_is_open_once_in_a_process() {
    let (agent, fd) = AgentArena::create(0, 1).unwrap();
    let first = Arena::open(fd, 0, 1).unwrap();
    let again = Arena::open(agent.descriptor().unwrap(), 0, 1).unwrap_err();
    assert!(matches!(again, ft_arena::ArenaError::Twice { rank: 0 }), "{again}");
    let (_other, fd) = AgentArena::create(0, 1).unwrap();
    drop(Arena::open(fd, 0, 1).unwrap());
    drop(first);
    Arena::open(agent.descriptor().unwrap(), 0, 1).unwrap();
}

/// A child that the program forks drops its copy and ends; its parent goes on as if nothing had been.
#[test]
fn a_forked_child_ends_without_a_trace() {
    let (agent, fd) = AgentArena::create(0, 1).unwrap();
    let mut rank = Arena::open(fd, 0, 1).unwrap();
    rank.reserve(1 << 22).unwrap();
    // SAFETY: the child drops what is its own and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(rank);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: the pointer outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child did not end by itself");
    assert!(Arena::open(agent.descriptor().unwrap(), 0, 1).is_err(), "it is open here still");
    let mut writing = rank.begin(1, 1, &[(1, 4096)], std::time::Duration::ZERO).unwrap();
    writing.copy(0, &[7; 4096]);
    writing.commit(std::time::Duration::ZERO);
    agent.hash(0).unwrap();
}
