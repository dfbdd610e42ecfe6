//! A real shepherd with real processes below it; the test plays its launcher and its agent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod job;

use ft_sys::channel::{Channel, ChannelError};
use ft_wire::shepherd::{Lifeline, ToAgent, ToShepherd};
use job::{Input, Job, PATIENCE, accept, eventually};
use nix::libc;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_rank_runs_in_a_clean_place_and_its_end_is_told() {
    let mut job = Job::start(Input::Null);
    assert_eq!((job.hello.0, job.hello.1.len()), (7, 0));
    let script = "pwd; ls /proc/$$/fd | tr '\\n' ' '; grep -E '^Sig(Blk|Ign)' /proc/self/status; cat; exit 9";
    let pid = job.run(4, script);
    let ended = ToAgent::Exited { world: 4, rank: 3, pid, status: 9 << 8, oom: false, cpu_limit: false, waited: true };
    assert_eq!((job.hear(), job.hear()), (ended, ToAgent::Emptied { world: 4 }));
    let mut text = String::new();
    job.out.seek(SeekFrom::Start(0)).unwrap();
    job.out.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("/usr\n0 1 2 "), "{text}");
    assert_eq!(text.matches("\t0000000000000000").count(), 2, "{text}");
    let pid = job.run(5, "kill -SEGV $$");
    match job.hear() {
        ToAgent::Exited { world: 5, pid: p, status, .. } => assert_eq!((p, status & 0x7f), (pid, libc::SIGSEGV)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_that_fails_says_what_failed() {
    let mut job = Job::start(Input::Null);
    for (argv, cwd, expected, words) in [
        ("/no/such", "/", 127, "/no/such"),
        ("/etc/passwd", "/", 126, "/etc/passwd"),
        ("/bin/true", "/no/dir", 1, "/no/dir"),
    ] {
        let mut start = job.order(1, "");
        start.argv = vec![argv.into()];
        start.cwd = cwd.into();
        job.say(&ToShepherd::Start(start));
        match job.hear() {
            ToAgent::StartFailed { world: 1, rank: 3, what, status } => {
                assert_eq!(status, expected, "{what}");
                assert!(what.contains(words) && what.contains("(os error "), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(job.stop(1), [ToAgent::Emptied { world: 1 }]);
    job.run(2, "exit 0");
}

#[test]
fn stop_leaves_nobody_whatever_they_do_against_it() {
    let hostile = [
        ("a tree", "for i in 1 2 3; do (sleep 100 & sleep 100) & done; wait", 10),
        ("daemons", "for i in 1 2 3; do setsid sleep 100 & done; exec sleep 100", 4),
        ("orphans", "(setsid bash -c 'setsid sleep 100 & sleep 100 & exit' &); exec sleep 100", 3),
        ("stopped ones", "sleep 100 & kill -STOP $!; trap '' TERM INT HUP; kill -STOP $$", 2),
    ];
    for (name, script, count) in hostile {
        let mut job = Job::start(Input::Null);
        job.run(1, script);
        job.wait_alive(count);
        let begun = Instant::now();
        let heard = job.stop(1);
        assert_eq!(job.alive(), [0; 0], "{name}");
        assert!(begun.elapsed() < PATIENCE / 2, "{name}: {:?}", begun.elapsed());
        assert!(heard.iter().all(|m| matches!(m, ToAgent::Emptied { .. } | ToAgent::Exited { .. })), "{heard:?}");
        job.run(2, "exit 0");
    }
}

#[test]
fn a_stopped_wrapper_does_not_go_on() {
    let mut job = Job::start(Input::Null);
    for world in 1..=20 {
        job.run(world, "for i in 1 2 3; do bash -c 'sleep 100; echo x > $HERE/went-on'; echo x > $HERE/went-on; done");
        job.wait_alive(3);
        job.stop(world);
        assert!(!job.job_dir.parent().unwrap().join("went-on").exists());
    }
}

#[test]
fn stop_outruns_processes_that_fork_and_leave() {
    // Each process lives for a fraction of a millisecond, in a session of its own, and leaves a byte behind.
    let chain = "perl -MPOSIX -e 'open F, \">>$ENV{HERE}/beats\"; $end = time + 100;
        while (time < $end) { if (fork()) { POSIX::_exit(0) } POSIX::setsid(); syswrite F, \"x\" }' & exec sleep 100";
    let bomb = "perl -e 'for (1..7) { fork() } sleep 100'";
    for script in [chain, chain, chain, bomb] {
        let mut job = Job::start(Input::Null);
        let beats = job.job_dir.parent().unwrap().join("beats");
        let count = || fs::metadata(&beats).map_or(0, |file| file.len());
        job.run(1, script);
        if script == bomb {
            job.wait_alive(128);
        } else {
            eventually(|| count() > 100, "the chain");
        }
        let begun = Instant::now();
        job.stop(1);
        let (then, taken) = (count(), begun.elapsed());
        assert_eq!(job.alive(), [0; 0]);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(count(), then, "the chain goes on");
        // Not by its own end. Who wins a round of the race is chance, and on an idle machine there are many.
        assert!(taken < Duration::from_secs(60), "{taken:?}");
    }
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let mut job = Job::start(Input::Null);
    let pid = job.run(1, "setsid sleep 100 & sleep 100 & sleep 0.05; exit 3");
    let ended = ToAgent::Exited { world: 1, rank: 3, pid, status: 3 << 8, oom: false, cpu_limit: false, waited: true };
    assert_eq!((job.hear(), job.hear()), (ended, ToAgent::Emptied { world: 1 }));
    assert_eq!(job.alive(), [0; 0]);
}

#[test]
fn a_new_agent_finds_an_empty_slot_and_the_arenas() {
    let mut job = Job::start(Input::Null);
    for rank in [3, 5] {
        let mut arena = File::from(ft_sys::memory::create_memfd("arena", 0).unwrap());
        write!(arena, "arena of {rank}").unwrap();
        job.agent.send(&ToShepherd::KeepArena { rank }, &[arena.as_fd()]).unwrap();
    }
    job.run(1, "setsid sleep 100 & exec sleep 100");
    job.wait_alive(2);
    let (mine, _theirs) = UnixStream::pair().unwrap();
    job.agent = Channel::from_stream(mine);
    let (agent, (slot, ranks, fds)) = accept(&job.listener);
    job.agent = agent;
    assert_eq!(job.alive(), [0; 0], "the slot was not empty when its shepherd dialled");
    assert_eq!((slot, ranks), (7, vec![3, 5]));
    for (rank, fd) in [3, 5].into_iter().zip(fds) {
        let mut bytes = [0; 10];
        File::from(fd).read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, format!("arena of {rank}").as_bytes());
    }
    job.run(2, "exit 0");
}

#[test]
fn without_an_agent_for_a_while_the_shepherd_waits_and_minds_its_lifeline() {
    let mut job = Job::start(Input::Null);
    job.run(1, "exec sleep 100");
    let (mine, _theirs) = UnixStream::pair().unwrap();
    job.agent = Channel::from_stream(mine);
    job.wait_alive(0);
    std::thread::sleep(Duration::from_millis(100));
    job.lifeline = None;
    let begun = Instant::now();
    assert!(job.ends());
    // As soon as it is heard, and not when it has waited for an agent for long enough.
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn the_launchers_death_ends_everything() {
    let mut job = Job::start(Input::Null);
    fs::create_dir(job.job_dir.join("ckpt")).unwrap();
    fs::write(job.job_dir.join("ckpt/file"), "x").unwrap();
    job.run(1, "setsid sleep 100 & exec sleep 100");
    job.wait_alive(2);
    job.lifeline = None;
    assert!(job.ends());
    assert_eq!(job.alive(), [0; 0]);
    assert!(!job.job_dir.exists());
}

#[test]
fn the_end_of_the_job_ends_everything_below_and_looks_for_no_strays() {
    let mut job = Job::start(Input::Null);
    job.run(1, "setsid sleep 100 & exec sleep 100");
    job.wait_alive(2);
    // Not below this shepherd: when the launcher is dead it would be looked for, by its environment.
    let socket = format!("FT_SOCKET={}", job.job_dir.join(ft_wire::AGENT_SOCKET).display());
    let mut other = Command::new("env").args([&socket, "sleep", "100"]).spawn().unwrap();
    job.lifeline.as_ref().unwrap().write_all(&[Lifeline::OVER]).unwrap();
    job.lifeline = None;
    assert!(job.ends());
    assert_eq!(job.alive(), [0; 0]);
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn the_shepherds_death_takes_the_rank_along() {
    let mut job = Job::start(Input::Null);
    job.run(1, "exec sleep 100");
    job.wait_alive(1);
    job.shepherd.kill().unwrap();
    job.wait_alive(0);
    assert!(matches!(job.agent.receive::<ToAgent>(Some(PATIENCE)), Err(ChannelError::Closed)));
}

#[test]
fn exit_empties_the_slot() {
    let mut job = Job::start(Input::Null);
    job.run(1, "sleep 100 & exec sleep 100");
    job.wait_alive(2);
    job.say(&ToShepherd::Exit);
    assert!(job.ends());
    assert_eq!(job.alive(), [0; 0]);
}

#[test]
fn signals_reach_the_rank_and_stops_everybody() {
    let mut job = Job::start(Input::Null);
    let script =
        "trap 'echo got > $HERE/got' USR1; echo ready > $HERE/ready; while :; do read -t 0.01 < /dev/zero; done";
    job.run(1, script);
    job.wait_file("ready");
    job.say(&ToShepherd::Signal(libc::SIGUSR1));
    assert_eq!(job.wait_file("got"), "got\n");
    let state = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
    };
    job.stop(1);
    // A wrapper, and the rank below it.
    job.run(2, "bash -c 'echo $$ > $HERE/inner; while :; do read -t 0.01 < /dev/zero; done'; exit 0");
    let inner = job.wait_file("inner").trim().parse().unwrap();
    job.say(&ToShepherd::Signal(libc::SIGTSTP));
    eventually(|| state(inner) == 'T', "the stop");
    job.say(&ToShepherd::Signal(libc::SIGCONT));
    eventually(|| state(inner) != 'T', "the end of the stop");
    job.stop(2);
}

#[test]
fn what_waited_for_a_rank_that_ended_by_itself_is_not_for_the_next_one() {
    let mut job = Job::start(Input::Null);
    let first = job.run(1, "sleep 0.3; exit 3");
    job.say(&ToShepherd::SignalWhenCaught { signal: libc::SIGUSR1, again: false });
    let heard = [job.hear(), job.hear()];
    assert!(matches!(heard[0], ToAgent::Exited { pid, status, .. } if (pid, status) == (first, 3 << 8)), "{heard:?}");
    assert_eq!(heard[1], ToAgent::Emptied { world: 1 });
    // Longer than such a signal waits, with a default disposition that it would die of.
    job.run(2, "exec sleep 11");
    std::thread::sleep(Duration::from_secs(7));
    let end = job.hear();
    assert!(matches!(end, ToAgent::Exited { world: 2, status: 0, .. }), "{end:?}");
}

#[test]
fn a_descriptor_gets_its_number() {
    let mut job = Job::start(Input::Null);
    for (world, number) in [(1, 3), (2, 5), (3, 60)] {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mut start = job.order(world, &format!("echo hello >&{number}"));
        start.fd_at = Some(number);
        job.agent.send(&ToShepherd::Start(start), &[theirs.as_fd()]).unwrap();
        drop(theirs);
        let mut text = String::new();
        (&mine).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello\n", "number {number}");
        assert!(matches!(job.hear(), ToAgent::Started { .. }));
        assert!(matches!(job.hear(), ToAgent::Exited { status: 0, .. }));
        assert!(matches!(job.hear(), ToAgent::Emptied { .. }));
    }
}

#[test]
fn every_world_reads_a_file_from_where_the_launcher_stood() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before\nfirst\nsecond\n").unwrap();
    file.seek(SeekFrom::Start(7)).unwrap();
    let mut job = Job::start(Input::File(file, 7));
    job.run(1, "read line; echo $line > $HERE/one; exec sleep 100");
    assert_eq!(job.wait_file("one"), "first\n");
    job.stop(1);
    job.run(2, "tr '\\n' '+' > $HERE/t; (cat $HERE/t; echo) > $HERE/two");
    assert_eq!(job.wait_file("two"), "first+second+\n");
}

#[test]
fn every_world_reads_the_spool_from_its_first_byte() {
    let spool = File::from(ft_sys::memory::create_memfd("spool", 4096).unwrap());
    let mut job = Job::start(Input::Spool(spool.try_clone().unwrap().into()));
    let big = "0123456789abcde\n".repeat(20_000);
    let grow = |job: &Job, text: &str, ended: bool| {
        spool.write_all_at(text.as_bytes(), 4096).unwrap();
        spool.write_all_at(&(text.len() as u64).to_le_bytes(), 0).unwrap();
        spool.write_all_at(&u32::from(ended).to_le_bytes(), 8).unwrap();
        job.lifeline.as_ref().unwrap().write_all(&[Lifeline::GREW]).unwrap();
    };
    job.run(1, "read line; echo $line > $HERE/one; read line; echo $line > $HERE/two; exec sleep 100");
    grow(&job, "first\n", false);
    assert_eq!(job.wait_file("one"), "first\n");
    grow(&job, "first\nsecond\n", false);
    assert_eq!(job.wait_file("two"), "second\n");
    job.stop(1);
    job.run(2, "cat > $HERE/t; (md5sum < $HERE/t) > $HERE/sum; wc -c < $HERE/t > $HERE/count");
    std::thread::sleep(Duration::from_millis(20));
    grow(&job, &big, true);
    assert_eq!(job.wait_file("count"), format!("{}\n", big.len()));
    while !matches!(job.hear(), ToAgent::Emptied { .. }) {}
    // One that reads nothing, and one that closes it.
    job.run(3, "exit 0");
    while !matches!(job.hear(), ToAgent::Emptied { .. }) {}
    job.run(4, "exec <&-; sleep 0.05; exit 0");
    while !matches!(job.hear(), ToAgent::Emptied { .. }) {}
}

#[test]
fn a_hundred_worlds_leave_nothing() {
    let spool = File::from(ft_sys::memory::create_memfd("spool", 4096).unwrap());
    let mut job = Job::start(Input::Spool(spool.into()));
    let pid = job.shepherd.id() as i32;
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let resident = || {
        // What /proc/PID/status has is off by some hundred KiB: the kernel adds up in batches per processor.
        let status = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = status.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut after_ten = (0, 0);
    for world in 1..=100 {
        let child = job.run(world, "setsid sleep 100 & exec sleep 100");
        if world % 3 == 0 {
            ft_sys::process::kill(child, libc::SIGKILL);
            while !matches!(job.hear(), ToAgent::Emptied { .. }) {}
        } else {
            job.stop(world);
        }
        // What died late is told late.
        while job.agent.try_receive::<ToAgent>().unwrap().is_some() {}
        if world == 10 {
            after_ten = (count("fd"), resident());
        }
    }
    eventually(|| ft_sys::process::children(pid).is_empty(), "the last zombie to be waited for");
    eventually(|| count("fd") <= after_ten.0, "the descriptors of the last worlds to be closed");
    assert!(resident() * 100 <= after_ten.1 * 105, "{} KiB, after ten worlds {}", resident(), after_ten.1);
}

#[test]
fn a_large_process_is_gone_before_its_memory_is() {
    let mut job = Job::start(Input::Null);
    // 600 MiB take the kernel some 60 ms and more; who asks for a processor on a busy machine gets it before this one does.
    let fill = "$a = \"x\" x (600 << 20); setpriority(0, 0, 10)";
    let pid = job
        .run(1, &format!("exec perl -e '{fill}; open F, \">$ENV{{HERE}}/up\"; print F \"up\\n\"; close F; sleep 100'"));
    job.wait_file("up");
    job.stop(1);
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    assert_eq!(job.alive(), [0; 0]);
    let is_there = |stat: &String| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']));
    assert!(state.as_ref().is_some_and(is_there), "it was waited for until its memory was gone: {state:?}");
}
