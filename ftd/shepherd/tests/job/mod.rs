//! A real shepherd with real processes below it; the test plays its launcher and its agent.

#![allow(dead_code, reason = "not every test needs everything")]

use ft_sys::channel::Channel;
use ft_sys::death::is_past_user_code;
use ft_wire::Role;
use ft_wire::shepherd::{Start, ToAgent, ToShepherd};
use nix::libc;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);

/// Descriptors are passed on by number; two tests must not start shepherds at the same time.
static STARTING: Mutex<()> = Mutex::new(());
static MARKS: AtomicU32 = AtomicU32::new(0);

pub enum Input {
    Null,
    File(File, u64),
    Spool(OwnedFd),
}

pub struct Job {
    pub shepherd: Child,
    pub lifeline: Option<UnixStream>,
    pub listener: UnixListener,
    pub agent: Channel,
    pub hello: (u32, Vec<u32>, Vec<OwnedFd>),
    pub job_dir: PathBuf,
    pub out: File,
    /// Stands in the environment of every process of the job.
    mark: String,
    _dir: tempfile::TempDir,
}

pub fn accept(listener: &UnixListener) -> (Channel, (u32, Vec<u32>, Vec<OwnedFd>)) {
    let (stream, _) = listener.accept().unwrap();
    let mut channel = Channel::from_stream(stream);
    assert_eq!(channel.exchange(Role::Agent, PATIENCE).unwrap().role, Role::Shepherd);
    match channel.receive::<ToAgent>(Some(PATIENCE)).unwrap() {
        (ToAgent::Hello { slot, arenas, .. }, fds) => (channel, (slot, arenas, fds)),
        other => panic!("not a hello: {other:?}"),
    }
}

impl Job {
    pub fn start(input: Input) -> Job {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let job_dir = dir.path().join("ftd-job");
        let mut lock = ft_sys::job_dir::announce(&job_dir).unwrap();
        fs::create_dir(&job_dir).unwrap();
        ft_sys::job_dir::state_directory(&job_dir, &mut lock).unwrap();
        // A launcher that is dead.
        drop(lock);
        let socket = job_dir.join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ft-shepherd"));
        command.args(["--slot", "7", "--socket"]).arg(&socket);
        let guard = STARTING.lock().unwrap();
        let pass = |fd: &dyn AsRawFd, borrowed: std::os::fd::BorrowedFd<'_>| {
            ft_sys::process::pass_through_exec(borrowed).unwrap();
            fd.as_raw_fd().to_string()
        };
        command.args(["--lifeline", &pass(&theirs, theirs.as_fd())]);
        match &input {
            Input::Null => {}
            Input::File(file, offset) => {
                command.args(["--stdin-file", &pass(file, file.as_fd()), &offset.to_string()]);
            }
            Input::Spool(fd) => drop(command.args(["--stdin-spool", &pass(fd, fd.as_fd())])),
        }
        let out = tempfile::tempfile().unwrap();
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(Stdio::inherit());
        let shepherd = command.spawn().unwrap();
        drop((theirs, input, guard));
        let (agent, hello) = accept(&listener);
        let mark = format!("FT_TEST_MARK={}.{}", std::process::id(), MARKS.fetch_add(1, Ordering::Relaxed));
        Job { shepherd, lifeline: Some(ours), listener, agent, hello, job_dir, out, mark, _dir: dir }
    }

    pub fn say(&mut self, message: &ToShepherd) {
        self.agent.send(message, &[]).unwrap();
    }

    pub fn hear(&mut self) -> ToAgent {
        self.agent.receive(Some(3 * PATIENCE)).unwrap().0
    }

    pub fn order(&self, world: u64, script: &str) -> Start {
        let mark = self.mark.split_once('=').unwrap();
        Start {
            world,
            epoch: world,
            rank: 3,
            argv: ["/bin/bash", "-c", script].iter().map(|word| word.as_bytes().to_vec()).collect(),
            env: vec![
                (mark.0.into(), mark.1.into()),
                (b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()),
                (b"HERE".to_vec(), self.job_dir.parent().unwrap().as_os_str().as_encoded_bytes().to_vec()),
            ],
            cwd: b"/usr".to_vec(),
            processors: Vec::new(),
            held: 0,
            stdin: true,
            fd_at: None,
        }
    }

    /// Starts a script; its pid.
    pub fn run(&mut self, world: u64, script: &str) -> i32 {
        let start = self.order(world, script);
        self.say(&ToShepherd::Start(start));
        loop {
            match self.hear() {
                ToAgent::Started { world: w, rank: 3, pid } if w == world => return pid,
                // The end of one that was killed is told when the kernel has let go of it.
                ToAgent::Exited { world: w, .. } if w < world => {}
                other => panic!("not started: {other:?}"),
            }
        }
    }

    /// Processes of this job that can still do something.
    pub fn alive(&self) -> Vec<i32> {
        let is_ours = |pid: &i32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|byte| *byte == 0).any(|entry| entry == self.mark.as_bytes()))
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(is_ours)
            .filter(|pid| !is_past_user_code(*pid).unwrap())
            .collect()
    }

    pub fn wait_alive(&self, count: usize) {
        eventually(|| self.alive().len() == count, &format!("{count} processes, not {:?}", self.alive()));
    }

    pub fn wait_file(&self, name: &str) -> String {
        let path = self.job_dir.parent().unwrap().join(name);
        eventually(|| fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')), name);
        fs::read_to_string(&path).unwrap()
    }

    pub fn stop(&mut self, world: u64) -> Vec<ToAgent> {
        self.say(&ToShepherd::Stop { world, over: false, refused: false });
        let mut heard = Vec::new();
        loop {
            heard.push(self.hear());
            if heard.last() == Some(&ToAgent::Emptied { world }) {
                return heard;
            }
        }
    }

    pub fn ends(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.shepherd.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.shepherd.kill();
        let _ = self.shepherd.wait();
        for pid in self.alive() {
            ft_sys::process::kill(pid, libc::SIGKILL);
        }
    }
}

pub fn eventually(what: impl Fn() -> bool, text: &str) {
    let until = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < until, "waited in vain for {text}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
