//! A real `ftrun` with real shepherds; the test plays the agent.
//!
//! What ftrun starts as `ft-agent` is a script that starts this test program again ([`a_stand_in_for_the_agent`]); that
//! process hands both of its inherited descriptors to the test and only stays to be killed.

#![allow(clippy::unwrap_used)]

use ft_sys::channel::Channel;
use ft_sys::death::is_past_user_code;
use ft_wire::ask::{Event, Kind};
use ft_wire::history::MOST;
use ft_wire::launcher::{Before, JobSpec, ToAgent, ToLauncher};
use ft_wire::shepherd::{self, Start, ToShepherd};
use ft_wire::toll::{Sums, Toll};
use ft_wire::{Rank, Role, Slot};
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const CONTROL: &str = "FT_TEST_CONTROL";

#[test]
fn a_stand_in_for_the_agent() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let Some((launcher, listen)) = number("FT_LAUNCHER_FD").zip(number("FT_LISTEN_FD")) else { return };
    let take = |fd| ft_sys::process::take_inherited_fd(fd).unwrap();
    let (launcher, listen) = (take(launcher), take(listen));
    let mut control = Channel::from_stream(UnixStream::connect(std::env::var(CONTROL).unwrap()).unwrap());
    use std::os::fd::AsFd;
    control.send(&std::process::id(), &[launcher.as_fd(), listen.as_fd()]).unwrap();
    drop((launcher, listen));
    std::process::exit(control.receive::<i32>(None).map_or(0, |(status, _)| status));
}

/// Where the shepherd was built; alone, this package does not build it.
fn ft_shepherd() -> PathBuf {
    static BUILT: Once = Once::new();
    let path = Path::new(env!("CARGO_BIN_EXE_ftrun")).with_file_name("ft-shepherd");
    // Also when there is one: it may be of an older build.
    BUILT.call_once(|| {
        let built = Command::new(env!("CARGO")).args(["build", "--quiet", "-p", "ft-shepherd"]).status().unwrap();
        assert!(built.success());
    });
    path
}

struct Agent {
    pid: i32,
    control: Channel,
    link: Channel,
    listener: UnixListener,
    spec: JobSpec,
    slots: Vec<Slot>,
    before: Option<Before>,
    store: OwnedFd,
    shepherds: BTreeMap<Slot, (i32, Channel)>,
}

impl Agent {
    fn say(&mut self, message: &ToLauncher) {
        self.link.send(message, &[]).unwrap();
    }

    fn hear(&mut self) -> ToAgent {
        loop {
            match self.link.receive(Some(PATIENCE)).unwrap().0 {
                ToAgent::Ask => self.say(&ToLauncher::Here { absent: Vec::new(), complete: true }),
                said => return said,
            }
        }
    }

    /// Waits for the shepherds of these slots.
    fn meet(&mut self, slots: &[Slot]) {
        while !slots.iter().all(|slot| self.shepherds.contains_key(slot)) {
            let (stream, _) = self.listener.accept().unwrap();
            stream.set_nonblocking(false).unwrap();
            let mut channel = Channel::from_stream(stream);
            assert_eq!(channel.exchange(Role::Agent, PATIENCE).unwrap().role, Role::Shepherd);
            match channel.receive::<shepherd::ToAgent>(Some(PATIENCE)).unwrap().0 {
                shepherd::ToAgent::Hello { slot, pid, .. } => self.shepherds.insert(slot, (pid, channel)),
                other => panic!("not a hello: {other:?}"),
            };
        }
    }

    fn told_by(&mut self, slot: Slot) -> shepherd::ToAgent {
        self.shepherds.get_mut(&slot).unwrap().1.receive(Some(PATIENCE)).unwrap().0
    }

    fn order(&mut self, slot: Slot, message: &ToShepherd) {
        self.shepherds.get_mut(&slot).unwrap().1.send(message, &[]).unwrap();
    }

    /// Runs a script on a slot, as the rank of the same number.
    fn run(&mut self, world: u64, slot: Slot, script: &str) {
        self.run_rank(world, slot, slot, script);
    }

    fn run_rank(&mut self, world: u64, slot: Slot, rank: Rank, script: &str) {
        let start = Start {
            world,
            epoch: world,
            rank,
            argv: ["/bin/bash", "-c", script].iter().map(|word| word.as_bytes().to_vec()).collect(),
            env: self.spec.variables(rank).cloned().collect(),
            cwd: self.spec.programs[0].cwd.clone(),
            processors: Vec::new(),
            held: 0,
            stdin: slot == 0,
            fd_at: None,
        };
        self.order(slot, &ToShepherd::Start(start));
        while !matches!(self.told_by(slot), shepherd::ToAgent::Started { .. }) {}
    }

    fn wait_empty(&mut self, slot: Slot) {
        while !matches!(self.told_by(slot), shepherd::ToAgent::Emptied { .. }) {}
    }

    fn stop(&mut self, world: u64, slot: Slot) {
        self.order(slot, &ToShepherd::Stop { world, over: false, refused: false });
        self.wait_empty(slot);
    }

    /// The job is over. As the real one does, it goes when ftrun closes the link.
    fn end(mut self, status: i32, reason: Option<&str>) {
        self.say(&ToLauncher::End { status, reason: reason.map(str::to_string), left_out: false, unrecorded: false });
        // Until the launcher closes the link; it may have asked before.
        while self.link.receive::<ToAgent>(Some(PATIENCE)).is_ok() {}
    }
}

/// A program of this build, as ftrun wants them, that executes this test's own stand-in for the agent.
fn stand_in() -> &'static Path {
    const SOURCE: &str = r#"
        #include <fcntl.h>
        #include <unistd.h>
        __attribute__((section(".note.ftd"), used, aligned(4)))
        static const struct { unsigned owner_bytes, text_bytes, kind; char owner[4], text[48]; } note =
            { 4, 48, 1, "ftd", BUILD };
        int main(void) {
            dup2(open("/dev/null", O_WRONLY), 1);
            execl(TEST, TEST, "--exact", "a_stand_in_for_the_agent", (char *)0);
            return 127;
        }
    "#;
    static MADE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("stand_in.c"), dir.path().join("stand_in"));
        fs::write(&source, SOURCE).unwrap();
        let define = |name: &str, text: &str| format!("-D{name}={text:?}");
        let test = std::env::current_exe().unwrap();
        let defines = [define("BUILD", &ft_sys::build::noted()), define("TEST", test.to_str().unwrap())];
        assert!(Command::new("cc").args(defines).arg(&source).arg("-o").arg(&program).status().unwrap().success());
        (dir, program)
    });
    program
}

struct Job {
    ftrun: Child,
    control: UnixListener,
    dir: tempfile::TempDir,
    memory: tempfile::TempDir,
    /// Public scenarios compare what is in shared memory before and after: none runs meanwhile.
    _machine: Flock<File>,
}

/// How a test starts ftrun.
struct Setup<'a> {
    options: &'a [&'a str],
    stdin: Stdio,
    /// `None`: a file.
    stdout: Option<Stdio>,
    /// Standard error is the same file as standard output.
    together: bool,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Setup { options: &["-n", "2"], stdin: Stdio::null(), stdout: None, together: false }
    }
}

impl Job {
    fn start(setup: Setup<'_>) -> (Job, Agent) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let machine = OpenOptions::new().create(true).append(true).open("/tmp/ftd-tests-public.lock").unwrap();
        let machine = Flock::lock(machine, FlockArg::LockShared).unwrap();
        let (libexec, memory) = (at("libexec"), tempfile::tempdir_in("/dev/shm").unwrap());
        fs::create_dir(&libexec).unwrap();
        std::os::unix::fs::symlink(ft_shepherd(), libexec.join("ft-shepherd")).unwrap();
        for name in ["ft-agent", "ft-pmix", "libft_preload.so"] {
            std::os::unix::fs::symlink(stand_in(), libexec.join(name)).unwrap();
        }
        let control = UnixListener::bind(at("control")).unwrap();
        let out = File::create(at("out")).unwrap();
        let err = if setup.together { out.try_clone().unwrap() } else { File::create(at("err")).unwrap() };
        // Tests that run under nohup would have ftrun ignore SIGHUP.
        let ftrun = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_ftrun")])
            .args(setup.options)
            .args(["/bin/bash", "argument"])
            .env("FT_LIBEXEC", &libexec)
            .env("FT_MEMORY_DIR", memory.path())
            .env(CONTROL, at("control"))
            .env("HERE", dir.path())
            .stdin(setup.stdin)
            .stdout(setup.stdout.unwrap_or_else(|| out.into()))
            .stderr(err)
            .spawn()
            .unwrap();
        let mut job = Job { ftrun, control, dir, memory, _machine: machine };
        let mut agent = job.next_agent();
        let slots = agent.slots.clone();
        agent.meet(&slots);
        (job, agent)
    }

    fn next_agent(&mut self) -> Agent {
        let until = Instant::now() + PATIENCE;
        self.control.set_nonblocking(true).unwrap();
        let stream = loop {
            match self.control.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => assert!(self.ftrun.try_wait().unwrap().is_none(), "ftrun ended: {}", self.err()),
            }
            assert!(Instant::now() < until, "no agent was started");
            std::thread::sleep(Duration::from_millis(1));
        };
        stream.set_nonblocking(false).unwrap();
        let mut control = Channel::from_stream(stream);
        let (pid, mut fds) = control.receive::<u32>(Some(PATIENCE)).unwrap();
        let (listener, link) = (fds.pop().unwrap(), fds.pop().unwrap());
        let mut link = Channel::from_stream(link);
        assert_eq!(link.exchange(Role::Agent, PATIENCE).unwrap().role, Role::Launcher);
        match link.receive(Some(PATIENCE)).unwrap() {
            (ToAgent::Job { spec, slots, before }, mut fds) => Agent {
                pid: pid as i32,
                control,
                link,
                listener: listener.into(),
                spec,
                slots: slots.iter().map(|(slot, _)| *slot).collect(),
                before,
                store: fds.swap_remove(0),
                shepherds: BTreeMap::new(),
            },
            other => panic!("not a job: {other:?}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn out(&self) -> String {
        fs::read_to_string(self.path("out")).unwrap_or_default()
    }

    fn err(&self) -> String {
        fs::read_to_string(self.path("err")).unwrap_or_default()
    }

    fn wait_out(&self, text: &str) {
        eventually(|| self.out().contains(text), || format!("{text:?} in {:?}", self.out()));
    }

    fn signal(&self, signal: i32) {
        ft_sys::process::kill(self.ftrun.id() as i32, signal);
    }

    /// Processes of this job that can still do something; the stand-ins included.
    fn alive(&self) -> Vec<i32> {
        let mark = format!("{CONTROL}={}", self.path("control").display());
        let is_ours = |pid: &i32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(is_ours)
            .filter(|pid| !is_past_user_code(*pid).unwrap())
            .collect()
    }

    fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.ftrun.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "ftrun hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the end; nothing may be left.
    fn status(&mut self) -> i32 {
        let status = self.ended().code().unwrap();
        self.assert_clean();
        status
    }

    fn assert_clean(&self) {
        let files = || fs::read_dir(self.memory.path()).unwrap().flatten().map(|f| f.path()).collect::<Vec<_>>();
        eventually(
            || self.alive().is_empty() && files().is_empty(),
            || format!("the end of {:?} and {:?}", self.alive(), files()),
        );
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.ftrun.kill();
        let _ = self.ftrun.wait();
        for pid in self.alive() {
            ft_sys::process::kill(pid, libc::SIGKILL);
        }
    }
}

fn eventually(what: impl Fn() -> bool, text: impl Fn() -> String) {
    let until = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < until, "waited in vain for {}", text());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_agent_learns_what_the_job_is_and_says_how_it_ends() {
    let options = ["-n", "3", "--ft=reinit", "-x", "PROBE=a b", "--chdir", "/usr", "--ft-max-failures=9"];
    let (mut job, mut agent) = Job::start(Setup { options: &options, ..Setup::default() });
    let spec = &agent.spec;
    assert_eq!(spec.programs[0].argv, [b"/bin/bash".to_vec(), b"argument".to_vec()]);
    assert_eq!((spec.world_size, spec.mode.as_str(), spec.max_failures), (3, "reinit", 9));
    assert_eq!(
        (spec.programs[0].cwd.as_slice(), spec.recover_aborts, spec.mpi.as_str()),
        (&b"/usr"[..], false, "auto")
    );
    assert_eq!(spec.variable(2, b"PROBE"), Some(&b"a b"[..]));
    assert_eq!((spec.expect_pmix, spec.programs[0].linked_in), (false, None));
    assert_eq!(fs::metadata(&spec.job_dir).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(agent.slots, [0, 1, 2]);
    for slot in 0..3 {
        agent.run(1, slot, &format!("pwd; echo rank {slot} $PROBE; echo complaint {slot} >&2"));
    }
    (0..3).for_each(|slot| agent.wait_empty(slot));
    agent.end(7, Some("one sentence"));
    assert_eq!(job.status(), 7);
    assert_eq!(job.err().lines().last(), Some("ftrun: one sentence"));
    for slot in 0..3 {
        assert!(job.out().contains(&format!("rank {slot} a b\n")), "{}", job.out());
        assert!(job.err().contains(&format!("complaint {slot}\n")), "{}", job.err());
    }
    assert_eq!(job.out().matches("/usr\n").count(), 3);
}

#[test]
fn tags_follow_the_placement() {
    let options = ["-n", "2", "--tag-output"];
    let (mut job, mut agent) = Job::start(Setup { options: &options, ..Setup::default() });
    agent.run_rank(1, 0, 1, "echo one; echo two >&2; echo -n unfinished");
    job.wait_out("unfinished");
    agent.end(0, None);
    assert_eq!(job.status(), 0);
    assert_eq!(job.out().trim_end(), "[1]<stdout>: one\n[1]<stdout>: unfinished");
    assert_eq!(job.err(), "[1]<stderr>: two\n");
}

#[test]
fn what_the_new_world_writes_comes_below_the_block() {
    let (mut job, mut agent) = Job::start(Setup { together: true, ..Setup::default() });
    let recover = |job: &Job, agent: &mut Agent, world: u64| {
        // More than a pipe takes: the last of it is on its way when the world ends.
        let script =
            format!("for i in {{1..9999}}; do echo {world} before $i; done; touch $HERE/{world}; exec sleep 100");
        agent.run(world, 0, &script);
        eventually(|| job.path(&world.to_string()).exists(), || "the rank".into());
        agent.stop(world, 0);
        agent.say(&ToLauncher::Drain { world });
        assert_eq!(agent.hear(), ToAgent::Drained { world });
    };
    recover(&job, &mut agent, 1);
    agent.run(2, 0, "echo after; touch $HERE/after; exec sleep 100");
    eventually(|| job.path("after").exists(), || "the rank".into());
    std::thread::sleep(Duration::from_millis(100));
    assert!(job.out().ends_with("1 before 9999\n"), "{}", &job.out()[job.out().len() - 100..]);
    agent.say(&ToLauncher::Recovered {
        epoch: 2,
        block: "ftd: recovery\nftd:   failed\n".into(),
        toll: Box::default(),
    });
    job.wait_out("after\n");
    assert!(job.out().ends_with("1 before 9999\nftd: recovery\nftd:   failed\nafter\n"));
    agent.stop(2, 0);
    // A recovery whose end nobody tells holds nothing back for ever.
    recover(&job, &mut agent, 3);
    agent.run(4, 0, "echo late; exec sleep 100");
    job.wait_out("late\n");
    agent.end(0, None);
    assert_eq!(job.status(), 0);
}

#[test]
fn the_next_agent_finds_slots_and_store() {
    let (mut job, mut agent) = Job::start(Setup::default());
    agent.run(1, 0, "setsid sleep 100 & exec sleep 100");
    File::from(agent.store.try_clone().unwrap()).write_all_at(b"the record", 0).unwrap();
    ft_sys::process::kill(agent.pid, libc::SIGKILL);
    drop(agent);
    let mut agent = job.next_agent();
    assert_eq!(agent.slots, [0, 1]);
    agent.meet(&[0, 1]);
    assert_eq!(job.alive().len(), 5, "more than ftrun, twice, an agent and two shepherds: {:?}", job.alive());
    let mut record = [0; 10];
    File::from(agent.store.try_clone().unwrap()).read_exact_at(&mut record, 0).unwrap();
    assert_eq!(&record, b"the record");
    eventually(|| job.err().lines().count() == 1, || format!("one sentence: {}", job.err()));
    agent.run(2, 0, "exit 0");
    agent.end(0, None);
    assert_eq!(job.status(), 0);
}

#[test]
fn the_next_agent_knows_what_was_told() {
    let (mut job, mut agent) = Job::start(Setup::default());
    assert_eq!(agent.before, None);
    let event = |n: u64| Event {
        at_ms: n,
        epoch: 1,
        world: 1,
        kind: Kind::Notice,
        text: format!("event {n}"),
        version: None,
        status: None,
    };
    agent.say(&ToLauncher::NoticeOnce("once for all".into()));
    (0..MOST as u64 + 2).for_each(|n| agent.say(&ToLauncher::Happened(event(n))));
    // It dies before it says anything of the toll by itself.
    let toll = Toll { sums: Sums { over: 2, survived: 1, ..Sums::default() }, ..Toll::default() };
    let block = "ftd: recovery\n".to_string();
    agent.say(&ToLauncher::Recovered { epoch: 2, block, toll: Box::new(toll.clone()) });
    eventually(|| job.err().contains("ftd: recovery\n"), || format!("the block: {}", job.err()));
    ft_sys::process::kill(agent.pid, libc::SIGKILL);
    drop(agent);
    let mut agent = job.next_agent();
    let before = agent.before.take().unwrap();
    assert_eq!((before.reported, before.toll.sums), (2, toll.sums));
    assert_eq!(before.said.into_iter().collect::<Vec<_>>(), ["once for all"]);
    let known: Vec<Event> = before.history.iter().cloned().collect();
    assert_eq!(known, (2..MOST as u64 + 2).map(event).collect::<Vec<_>>(), "the newest, in their order");
    assert_eq!((before.history.next(), before.history.since(MOST as u64 + 1).count()), (MOST as u64 + 2, 1));
    assert_eq!(job.err().matches("once for all").count(), 1);
    agent.meet(&[0, 1]);
    agent.end(0, None);
    assert_eq!(job.status(), 0);
}

#[test]
fn an_agent_that_always_dies_ends_the_job() {
    let (mut job, mut agent) = Job::start(Setup::default());
    for _ in 0..5 {
        ft_sys::process::kill(agent.pid, libc::SIGKILL);
        drop(agent);
        agent = job.next_agent();
    }
    ft_sys::process::kill(agent.pid, libc::SIGKILL);
    drop(agent);
    assert_eq!(job.status(), 1);
    assert!(job.err().lines().last().unwrap().contains("SIGKILL"), "{}", job.err());
}

#[test]
fn an_agent_that_gives_up_is_not_asked_again() {
    let (mut job, mut agent) = Job::start(Setup::default());
    agent.control.send(&1i32, &[]).unwrap();
    // Before the link closes here: what counts is how the process ended.
    eventually(|| is_past_user_code(agent.pid).unwrap(), || "the agent's end".into());
    drop(agent);
    assert_eq!(job.status(), 1);
    assert_eq!(job.err().lines().count(), 1, "{}", job.err());
}

#[test]
fn a_lost_shepherd_is_told_when_all_below_it_is_gone_and_replaced_on_demand() {
    let (mut job, mut agent) = Job::start(Setup::default());
    agent.run(1, 1, "setsid bash -c 'setsid sleep 100 & exec sleep 100' & exec sleep 100");
    // ftrun, twice, agent, two shepherds, and three below.
    eventually(|| job.alive().len() == 8, || format!("three processes: {:?}", job.alive()));
    ft_sys::process::kill(agent.shepherds[&1].0, libc::SIGKILL);
    assert_eq!(agent.hear(), ToAgent::SlotDying { slot: 1 });
    assert_eq!(agent.hear(), ToAgent::SlotGone { slot: 1 });
    assert_eq!(job.alive().len(), 4, "{:?}", job.alive());
    agent.say(&ToLauncher::NeedSlot);
    assert!(matches!(agent.hear(), ToAgent::SlotAdded { slot: 2, .. }));
    agent.meet(&[2]);
    agent.run(2, 2, "echo hello from slot 2");
    agent.wait_empty(2);
    // The next agent is told of the slots that there are.
    ft_sys::process::kill(agent.pid, libc::SIGKILL);
    drop(agent);
    let agent = job.next_agent();
    assert_eq!(agent.slots, [0, 2]);
    agent.end(0, None);
    assert_eq!(job.status(), 0);
    assert_eq!(job.out(), "hello from slot 2\n");
}

#[test]
fn signals_are_passed_on_and_the_second_interrupt_needs_no_agent() {
    let (mut job, mut agent) = Job::start(Setup::default());
    agent.run(1, 0, "trap '' INT TERM; sleep 100 & wait; exec sleep 100");
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        job.signal(signal);
        assert_eq!(agent.hear(), ToAgent::Signal(signal));
    }
    job.signal(libc::SIGTSTP);
    assert!(matches!(agent.hear(), ToAgent::Signal(libc::SIGTSTP | libc::SIGSTOP)));
    let stat = format!("/proc/{}/stat", job.ftrun.id());
    eventually(|| fs::read_to_string(&stat).unwrap().contains(") T "), || "the stop".into());
    job.signal(libc::SIGCONT);
    assert_eq!(agent.hear(), ToAgent::Signal(libc::SIGCONT));
    job.signal(libc::SIGINT);
    assert_eq!(agent.hear(), ToAgent::Cancel { signal: libc::SIGINT });
    // What comes within 100 ms is the same one.
    std::thread::sleep(Duration::from_millis(110));
    job.signal(libc::SIGINT);
    assert_eq!(job.status(), 130);
}

#[test]
fn a_cancelled_job_ends_as_the_agent_says() {
    for (signal, status) in [(libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let (mut job, mut agent) = Job::start(Setup::default());
        job.signal(signal);
        assert_eq!(agent.hear(), ToAgent::Cancel { signal });
        agent.end(status, Some("cancelled"));
        assert_eq!(job.status(), status);
    }
}

#[test]
fn nothing_outlives_a_killed_ftrun() {
    let (mut job, mut agent) = Job::start(Setup::default());
    fs::create_dir(Path::new(&agent.spec.job_dir).join("ckpt")).unwrap();
    agent.run(1, 0, "setsid sleep 100 & exec sleep 100");
    job.signal(libc::SIGKILL);
    job.ended();
    assert!(agent.link.receive::<ToAgent>(Some(PATIENCE)).is_err());
    drop(agent);
    job.assert_clean();
}

#[test]
fn every_world_reads_standard_input_from_its_first_byte() {
    let (mut job, mut agent) = Job::start(Setup { stdin: Stdio::piped(), ..Setup::default() });
    let mut input = job.ftrun.stdin.take().unwrap();
    agent.run(1, 0, "read line; echo first $line; read line; echo second $line; exec sleep 100");
    writeln!(input, "one").unwrap();
    job.wait_out("first one\n");
    writeln!(input, "two").unwrap();
    job.wait_out("second two\n");
    agent.stop(1, 0);
    agent.run(2, 0, "md5sum");
    input.write_all(&b"more\n".repeat(300_000)).unwrap();
    drop(input);
    agent.run(2, 1, "wc -c");
    agent.wait_empty(0);
    agent.wait_empty(1);
    agent.end(0, None);
    assert_eq!(job.status(), 0);
    let expected =
        format!("yes more | head -n 300000 | (echo one; echo two; cat) | md5sum > {}", job.path("sum").display());
    assert!(Command::new("bash").args(["-c", &expected]).status().unwrap().success());
    assert!(job.out().contains(&fs::read_to_string(job.path("sum")).unwrap()), "{}", job.out());
    assert!(job.out().contains("\n0\n"), "rank 1 read something: {}", job.out());
}

#[test]
fn input_that_nobody_reads_takes_no_memory() {
    let (mut job, mut agent) = Job::start(Setup { stdin: Stdio::piped(), ..Setup::default() });
    let mut input = job.ftrun.stdin.take().unwrap();
    agent.run(1, 0, "exec sleep 100");
    let writer = std::thread::spawn(move || {
        let mut written = 0u64;
        while input.write_all(&[b'x'; 1 << 16]).is_ok() {
            written += 1 << 16;
        }
        written
    });
    std::thread::sleep(Duration::from_millis(1500));
    agent.end(0, None);
    assert_eq!(job.status(), 0);
    let written = writer.join().unwrap();
    assert!(written < 100 << 20, "{} MiB were taken", written >> 20);
}

#[test]
fn a_slow_reader_holds_up_nobody_and_nothing_is_lost() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (mut job, mut agent) = Job::start(Setup { stdout: Some(writer.into()), ..Setup::default() });
    agent.run(1, 0, "for i in {1..400000}; do echo line $i; done; touch $HERE/done");
    std::thread::sleep(Duration::from_millis(300));
    job.signal(libc::SIGUSR1);
    assert_eq!(agent.hear(), ToAgent::Signal(libc::SIGUSR1));
    assert!(!job.path("done").exists(), "everything was read although nobody reads it");
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    agent.wait_empty(0);
    agent.end(0, None);
    assert_eq!(job.status(), 0);
    let text = reading.join().unwrap().unwrap();
    assert!(text.lines().enumerate().all(|(n, line)| line == format!("line {}", n + 1)));
    assert_eq!(text.lines().count(), 400_000);
}

#[test]
fn a_reader_that_leaves_does_not_end_the_job() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut job, mut agent) = Job::start(Setup { stdout: Some(writer.into()), ..Setup::default() });
    drop(reader);
    agent.run(1, 0, "for i in {1..10000}; do echo line $i; done; echo done >&2");
    agent.wait_empty(0);
    agent.end(0, None);
    assert_eq!(job.status(), 0);
    assert_eq!(job.err(), "done\n");
}
