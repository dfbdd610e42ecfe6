//! What a file-size limit does to arenas. A test binary of its own: its one test forks, and the child may not need a lock that
//! another test holds.

use ft_arena::{AgentArena, Arena};

/// Below `ulimit -f` an arena is smaller, or refused with a sentence. In a child: the limit is the whole process's.
#[test]
fn a_file_size_limit_makes_an_arena_smaller() {
    let under = |limit: u64, check: fn()| {
        // SAFETY: the child makes its checks and leaves by _exit; it has no other threads to wait for.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: the pointer outlives the call.
            let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
            let passed = set == 0 && std::panic::catch_unwind(check).is_ok();
            // SAFETY: as above.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: the pointer outlives the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "under {limit} bytes");
    };
    under(1024, || {
        let sentence = AgentArena::create(0, 1).unwrap_err().to_string();
        assert!(sentence.contains("file-size limit (ulimit -f) of 1024 bytes"), "{sentence}");
    });
    under(64 << 20, || {
        let (agent, fd) = AgentArena::create(0, 1).unwrap();
        assert_eq!(agent.place_limit(), 16 << 20);
        let mut rank = Arena::open(fd, 0, 1).unwrap();
        let sentence = rank.reserve((16 << 20) + 1).unwrap_err().to_string();
        assert!(sentence.contains("room for 16777216 bytes each"), "{sentence}");
        rank.reserve(16 << 20).unwrap();
        for version in 1..=3u8 {
            let mut writing = rank.begin(version.into(), 1, &[(1, 15 << 20)], std::time::Duration::ZERO).unwrap();
            writing.copy(0, &vec![version; 15 << 20]);
            writing.commit(std::time::Duration::ZERO);
        }
        assert_eq!((0..3).filter(|place| agent.hash(*place).is_ok()).count(), 3);
    });
}
