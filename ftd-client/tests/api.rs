//! The C interface against a fake agent: every call, every error.
#![allow(clippy::unwrap_used)]

mod fake;

use fake::{FakeAgent, Manner, built, compile};
use ft_arena::PlaceState;
use ft_wire::client::ToAgent;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A directory with the library under its installed name, and the driver.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = PROGRAMS.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy(built("libftd_client.so"), directory.path().join("libftd_client.so.0")).unwrap();
        build("cc", "c/driver.c", &["-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE"], directory.path());
        directory
    });
    directory.path()
}

fn build(compiler: &str, source: &str, options: &[&str], directory: &Path) -> PathBuf {
    let library = directory.join("libftd_client.so.0");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let all = [options, &[include, library.to_str().unwrap(), &rpath]].concat();
    compile(compiler, source, &all, directory)
}

fn command(agent: Option<&FakeAgent>, ops: &str) -> Command {
    let mut command = Command::new(programs().join("driver"));
    command.args(ops.split_whitespace());
    clean(&mut command, agent);
    command
}

/// Gives a command the environment of a rank of this agent, or of no job at all.
fn clean(command: &mut Command, agent: Option<&FakeAgent>) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FT_") || name.starts_with("PMI")) {
        command.env_remove(name);
    }
    if let Some(agent) = agent {
        command.envs(agent.env());
    }
}

/// Runs the driver; returns its lines, and what it said on stderr.
fn run(agent: Option<&FakeAgent>, ops: &str) -> (Vec<String>, String) {
    run_command(command(agent, ops))
}

fn run_command(mut command: Command) -> (Vec<String>, String) {
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}: {err}", output.status);
    (String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect(), err)
}

/// Where a version stands in the output is noted when the program's buffers are empty, read or not, and only where standard output is
/// the pipe that ftd has made.
#[test]
fn a_version_is_noted_behind_what_was_printed_before_it() {
    for named in [true, false] {
        let agent = FakeAgent::new();
        let reader = ft_sys::printed::Reader::of(&*agent.sheet).unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        let name = ft_sys::standard::SlotsPipe::name(write.as_fd()).unwrap();
        let mut command = command(Some(&agent), "init protect:1:100:7 checkpoint:3 due due checkpoint:8 finalize");
        command.env("FT_STDOUT", if named { &name } else { "1:2" }).stdout(write);
        assert!(command.status().unwrap().success());
        drop(command);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut read, &mut text).unwrap();
        let before = |version: &str| named.then(|| text.find(version).unwrap() as u64);
        let notes: Vec<_> = reader.notes(0, 0).0.into_iter().map(|n| (n.world, n.epoch, n.version, n.at)).collect();
        let second = text.rfind("checkpoint 0").unwrap() as u64;
        assert_eq!(notes, [(1, 1, 3, before("checkpoint 0")), (1, 1, 8, named.then_some(second))], "{text}");
    }
}

#[test]
fn without_ftd_the_program_runs_and_one_rank_says_so() {
    let ops = "init protect:1:100:7 restore checkpoint:1 checkpoint:1 checkpoint:2 due null:3 finalize finalize";
    let (lines, err) = run(None, ops);
    assert_eq!(
        lines,
        [
            "init 0 state 0",
            "protect 0",
            "restore 1 version 0",
            "checkpoint 0",
            "checkpoint 5",
            "checkpoint 0",
            "due 0 0",
            "null 3",
            "finalize 0",
            "finalize 0"
        ]
    );
    assert_eq!(err.matches("protect nothing").count(), 1, "{err}");
    assert_eq!(err.lines().count(), 3, "{err}");
    for (variable, rank, lines) in [("PMIX_RANK", "0", 1), ("PMIX_RANK", "3", 0), ("PMI_RANK", "1", 0)] {
        let mut command = command(None, "init checkpoint:1");
        command.env(variable, rank);
        assert_eq!(run_command(command).1.lines().count(), lines, "{variable}={rank}");
    }
    let agent = FakeAgent::new();
    let mut command = command(Some(&agent), "init checkpoint:1");
    command.env("FT_MODE", "none");
    assert_eq!(run_command(command).0, ["init 0 state 0", "checkpoint 0"]);
    assert!(agent.messages().is_empty());
}

#[test]
fn what_was_checkpointed_comes_back_in_the_next_process() {
    let agent = FakeAgent::new();
    let big = 5 << 20;
    let ops = format!(
        "init init restore protect:1:8:1 protect:2:{big}:2 restore checkpoint:10 protect:2:{big}:3 checkpoint:20 due finalize"
    );
    let (lines, err) = run(Some(&agent), &ops);
    assert_eq!(
        lines,
        [
            "init 0 state 0",
            "init 0 state 0",
            "restore 2 version 0",
            "protect 0",
            "protect 0",
            "restore 1 version 0",
            "checkpoint 0",
            "protect 0",
            "checkpoint 0",
            "due 0 1",
            "finalize 0"
        ]
    );
    assert_eq!(err, "ftd: rank 0: ft_restore before ft_protect: there is no region to restore into\n");
    let whole: Vec<_> = agent.arena.scan().into_iter().filter(|info| info.is_whole()).collect();
    assert_eq!(whole.iter().map(|info| (info.place, info.version)).collect::<Vec<_>>(), [(0, 10), (1, 20)]);
    agent.messages();

    agent.restart();
    let ops = format!(
        "init protect:1:8:0 restore bytes:1 protect:2:{big}:0 restore bytes:2 checkpoint:20 checkpoint:21 restore"
    );
    let (lines, err) = run(Some(&agent), &ops);
    assert_eq!(
        lines,
        [
            "init 0 state 1",
            "protect 0",
            "restore 0 version 20",
            "bytes 1 all",
            "protect 0",
            "restore 0 version 20",
            "bytes 3 all",
            "checkpoint 5",
            "checkpoint 0",
            "restore 2 version 0"
        ]
    );
    assert!(err.contains("version 20 is not greater than version 20"), "{err}");
    let restored = agent.messages().into_iter().filter(|m| matches!(m, ToAgent::Restored { version: 20 })).count();
    assert_eq!(restored, 1);
}

#[test]
fn sizes_that_do_not_match_restore_nothing() {
    let agent = FakeAgent::new();
    run(Some(&agent), "init protect:1:100:1 protect:2:200:2 checkpoint:1 due");
    agent.restart();
    let (lines, err) = run(
        Some(&agent),
        "init protect:1:100:9 protect:2:199:9 restore bytes:1 bytes:2 out:2 protect:3:5:5 restore bytes:1 out:3 restore bytes:1",
    );
    assert_eq!(lines[3..6], ["restore 4 version 0", "bytes 9 all", "bytes 9 all"]);
    assert_eq!(lines[8..10], ["restore 4 version 0", "bytes 9 all"]);
    assert_eq!(lines[11..], ["restore 0 version 1", "bytes 1 all"]);
    assert_eq!(
        err,
        "ftd: rank 0: version 1 holds 200 bytes of region 2, but 199 bytes are protected now: nothing was restored\n\
         ftd: rank 0: version 1 does not hold region 3, which is protected now: nothing was restored\n"
    );
    let reasons = |m: ToAgent| match m {
        ToAgent::NotRestored { reason } => Some(reason),
        _ => None,
    };
    let reasons: Vec<String> = agent.messages().into_iter().filter_map(reasons).collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons[0].starts_with("version 1 holds 200 bytes of region 2"), "{reasons:?}");
}

#[test]
fn wrong_calls_are_told() {
    let agent = FakeAgent::new();
    let (lines, err) = run(
        Some(&agent),
        "protect:1:8:1 checkpoint:1 restore due finalize init null:1 fork:7 finalize init checkpoint:1",
    );
    assert_eq!(
        lines,
        [
            "protect 2",
            "checkpoint 2",
            "restore 2 version 0",
            "due 2 -1",
            "finalize 2",
            "init 0 state 0",
            "null 3",
            "child 12",
            "finalize 0",
            "init 2 state -1",
            "checkpoint 2"
        ]
    );
    assert!(err.contains("ftd: rank 0: region 1 of 8 bytes has a null pointer\n"), "{err}");
    assert_eq!(err.lines().count(), 9, "{err}");
    agent.restart();
    let (lines, _) = run(Some(&agent), "init protect:1:8:1 checkpoint:1 restore checkpoint:1");
    assert_eq!(lines[2..], ["checkpoint 2", "restore 1 version 0", "checkpoint 0"]);
}

#[test]
fn registered_functions_are_called_before_the_copy() {
    for agent in [None, Some(FakeAgent::new())] {
        let ops = "checkpoint:1 on:1 nofunction init on:2 on:1 inside protect:1:100:7 checkpoint:1 finalize on:3 checkpoint:2";
        let (lines, err) = run(agent.as_ref(), ops);
        let expected = [
            "checkpoint 2",
            "on 0",
            "nofunction 3",
            "init 0 state 0",
            "on 0",
            "on 0",
            "inside 0",
            "protect 0",
            "inside 2",
            "called 2",
            "called 1",
            "checkpoint 0",
            "finalize 0",
            "on 2",
            "checkpoint 2",
        ];
        assert_eq!(lines, expected, "{err}");
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_leaves_the_older_one() {
    let agent = FakeAgent::new();
    agent.behave(Manner::Small(1 << 20));
    let (lines, err) =
        run(Some(&agent), "init protect:1:1000:4 checkpoint:1 protect:2:3000000:5 checkpoint:2 out:2 checkpoint:2 due");
    assert_eq!(lines[2..], ["checkpoint 0", "protect 0", "checkpoint 6", "out 0", "checkpoint 0", "due 0 1"]);
    assert!(
        err.contains(
            "version 2 was not written: three places of 4194304 bytes do not fit; older versions are untouched"
        ),
        "{err}"
    );
    assert_eq!(agent.arena.scan().iter().filter(|info| agent.arena.verify(info.place).is_ok()).count(), 2);
}

#[test]
fn a_rank_waits_for_a_place_within_bounds() {
    let agent = FakeAgent::new();
    agent.behave(Manner::Miser);
    let mut command =
        command(Some(&agent), "init protect:1:1000:4 checkpoint:1 checkpoint:2 checkpoint:3 checkpoint:4");
    command.env("FT_CHECKPOINT_TIMEOUT", "1");
    let started = Instant::now();
    let (lines, err) = run_command(command);
    assert_eq!(lines[2..], ["checkpoint 0", "checkpoint 0", "checkpoint 0", "checkpoint 7"]);
    assert!(started.elapsed() >= Duration::from_secs(1) && started.elapsed() < Duration::from_secs(20));
    assert!(err.contains("version 4 was not written"), "{err}");
    assert!(err.contains("for 1 s (FT_CHECKPOINT_TIMEOUT): rank 7 lacks what 4 follows\n"), "{err}");
}

#[test]
fn an_agent_that_does_not_say_who_is_missing_costs_the_call_no_more_than_that() {
    let agent = FakeAgent::new();
    agent.behave(Manner::SilentMiser);
    let words = "init protect:1:10:1 checkpoint:1 checkpoint:2 checkpoint:3 checkpoint:4 due finalize";
    let mut command = command(Some(&agent), words);
    command.env("FT_CHECKPOINT_TIMEOUT", "1");
    let (lines, err) = run_command(command);
    assert_eq!(lines[5..], ["checkpoint 7", "due 0 1", "finalize 0"]);
    assert!(
        err.contains("(FT_CHECKPOINT_TIMEOUT): the agent, which knows who is missing, did not say it within 2 s"),
        "{err}"
    );
}

#[test]
fn an_agent_of_another_release_or_without_a_place_is_told() {
    let agent = FakeAgent::new();
    agent.behave(Manner::OtherRelease);
    let (lines, err) = run(Some(&agent), "init checkpoint:1");
    assert_eq!(lines, ["init 9 state -1", "checkpoint 2"]);
    assert!(err.contains("different releases of ftd"), "{err}");
    agent.behave(Manner::Refuses);
    let (lines, err) = run(Some(&agent), "init");
    assert_eq!(lines, ["init 10 state -1"]);
    assert_eq!(err, "ftd: rank 0: the agent of this job refused this process: there is a younger process of rank 0\n");
}

#[test]
fn an_agent_that_dies_is_an_error_at_once() {
    let agent = FakeAgent::new();
    agent.behave(Manner::Dies);
    let started = Instant::now();
    let (lines, err) = run(Some(&agent), "init protect:1:10:1 checkpoint:1 checkpoint:1 due finalize");
    assert_eq!(lines[2..], ["checkpoint 8", "checkpoint 8", "due 8 -1", "finalize 0"]);
    assert!(err.contains("does not answer while asking for checkpoint memory"), "{err}");
    assert!(started.elapsed() < Duration::from_secs(20));
    let mut command = command(Some(&agent), "init");
    command.env("FT_SOCKET", "/nonexistent/agent.sock");
    let (lines, err) = run_command(command);
    assert_eq!(lines, ["init 8 state -1"]);
    assert!(err.contains("/nonexistent/agent.sock"), "{err}");
}

#[test]
fn flipped_bytes_are_found_and_the_older_version_is_used() {
    let agent = FakeAgent::new();
    run(Some(&agent), "init protect:1:5000:1 checkpoint:1 protect:1:5000:2 checkpoint:2 due");
    let newest = agent.arena.scan().into_iter().max_by_key(|info| info.version).unwrap();
    assert!(matches!(newest.state, PlaceState::Complete { .. }));
    let path = format!("/proc/self/fd/{}", agent.arena.as_fd().as_raw_fd());
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, &[0xff], ((u64::from(newest.place) + 1) << 40) + 4096 + 123).unwrap();
    agent.restart();
    let (lines, _) = run(Some(&agent), "init protect:1:5000:0 restore bytes:1");
    assert_eq!(lines[2..], ["restore 0 version 1", "bytes 1 all"]);
}

#[test]
fn deaths_at_the_gates_leave_what_they_should() {
    for (gate, ops, newest) in [
        ("client.copying", "init protect:1:50000:1 checkpoint:1 protect:1:50000:2 checkpoint:2", 1),
        ("client.copied", "init protect:1:50000:1 checkpoint:1 protect:1:50000:2 checkpoint:2", 1),
        ("client.committed", "init protect:1:50000:1 checkpoint:1 protect:1:50000:2 checkpoint:2", 2),
        ("client.restoring", "init protect:1:50000:9 restore", 1),
    ] {
        let agent = FakeAgent::new();
        if gate == "client.restoring" {
            run(Some(&agent), "init protect:1:50000:1 checkpoint:1 due");
            agent.restart();
        }
        let nth = if gate == "client.restoring" { 1 } else { 2 };
        let gates = tempfile::tempdir().unwrap();
        let mut command = command(Some(&agent), ops);
        command.env("FT_GATE", format!("{gate}:0:{nth}")).env("FT_GATE_DIR", gates.path()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let place = gates.path().join(format!("{gate}.0"));
        let started = Instant::now();
        while !place.exists() {
            assert!(started.elapsed() < Duration::from_secs(30), "{gate} was not reached");
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // As a new agent does: what is whole and has no checksum gets one.
        for info in agent.arena.scan().into_iter().filter(|info| info.state == PlaceState::Copied) {
            let (info, checksum) = agent.arena.hash(info.place).unwrap();
            agent.arena.set_complete(info.place, info.sequence, checksum);
        }
        agent.restart();
        let (lines, _) = run(Some(&agent), "init protect:1:50000:0 restore bytes:1 checkpoint:77");
        assert_eq!(
            lines[2..],
            [format!("restore 0 version {newest}"), format!("bytes {newest} all"), "checkpoint 0".into()],
            "{gate}"
        );
    }
}

#[test]
fn header_and_library_agree() {
    let header = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/include/ft.h")).unwrap();
    let fortran = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/fortran/ft.f90")).unwrap();
    let codes: Vec<(String, i32)> = header
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .filter(|(name, _)| name.starts_with("FT_"))
        .map(|(name, rest)| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            (name.to_string(), digits.parse().unwrap())
        })
        .collect();
    assert_eq!(codes.len(), 18);
    for (name, code) in &codes {
        assert!(fortran.contains(&format!("{name} = {code}")), "{name} = {code} in ft.f90");
    }
    let errors = [
        (ftd_client::Error::Nothing, "FT_ERR_NONE"),
        (ftd_client::Error::Order(""), "FT_ERR_ORDER"),
        (ftd_client::Error::Left { version: 0, left: String::new() }, "FT_ERR_ORDER"),
        (ftd_client::Error::Argument(String::new()), "FT_ERR_ARGUMENT"),
        (ftd_client::Error::Missing { version: 0, id: 0 }, "FT_ERR_SIZE"),
        (ftd_client::Error::Version { version: 0, last: 0 }, "FT_ERR_VERSION"),
        (ftd_client::Error::Memory { version: 0, reason: String::new() }, "FT_ERR_MEMORY"),
        (ftd_client::Error::Timeout { version: 0, waited: Duration::ZERO, whom: String::new() }, "FT_ERR_TIMEOUT"),
        (ftd_client::Error::Confused { doing: "" }, "FT_ERR_AGENT"),
        (ftd_client::Error::Mixed(String::new()), "FT_ERR_MIXED"),
        (ftd_client::Error::Refused(String::new()), "FT_ERR_REFUSED"),
        (ftd_client::Error::Child { pid: 0, owner: 0 }, "FT_ERR_CHILD"),
        (ftd_client::Error::Internal(String::new()), "FT_ERR_INTERNAL"),
    ];
    for (error, name) in errors {
        let (_, code) = codes.iter().find(|(known, _)| known == name).unwrap();
        assert_eq!(error.code(), *code, "{name}");
    }
}

#[test]
fn the_fortran_module_takes_scalars_and_arrays() {
    let directory = tempfile::tempdir().unwrap();
    let module = directory.path().join("ft.o");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/fortran/ft.f90");
    let strict = ["-std=f2018", "-Wall", "-Wextra", "-Werror"];
    let mut gfortran = Command::new("gfortran");
    gfortran.args(strict).arg("-c").arg("-J").arg(directory.path()).arg("-o").arg(&module).arg(source);
    match gfortran.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("gfortran is not installed: the Fortran module was not tried");
            return;
        }
        result => {
            let output = result.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    std::fs::copy(programs().join("libftd_client.so.0"), directory.path().join("libftd_client.so.0")).unwrap();
    let modules = format!("-I{}", directory.path().display());
    let options = [&strict[..3], &["-Wno-compare-reals", &modules, module.to_str().unwrap()]].concat();
    let program = build("gfortran", "c/fortran.f90", &options, directory.path());
    let agent = FakeAgent::new();
    for (mode, said) in [
        ("write", "version -1 is negative"),
        ("read", ""),
        ("long", ""),
        ("short", "version 3000000000 does not fit into the integer of 32 bits"),
    ] {
        let mut command = Command::new(&program);
        command.arg(mode);
        clean(&mut command, Some(&agent));
        let (lines, err) = run_command(command);
        assert_eq!(lines, ["fine"], "{mode}: {err}");
        assert!(err.contains(said), "{mode}: {err}");
        agent.restart();
    }
}

#[test]
fn the_header_is_good_for_cxx() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("t.cc");
    std::fs::write(&source, "#include <ft.h>\nint main() { return ft_strerror(FT_OK) == nullptr; }\n").unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    for extra in ["-std=c++11", "-std=c++20", "-DFT_NO_IOSTREAM"] {
        let mut compiler = Command::new("c++");
        compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", include, extra]).arg(&source);
        match compiler.status() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => eprintln!("no C++ compiler: not tried"),
            status => assert!(status.unwrap().success(), "{extra}"),
        }
    }
}
