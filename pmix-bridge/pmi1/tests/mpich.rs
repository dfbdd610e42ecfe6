//! Worlds of real MPI programs of the MPICH family.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod names;

use ft_pmi1::{Action, Event, OVERSUBSCRIBED, World};
use names::Names;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

struct Mpi {
    name: &'static str,
    mpicc: PathBuf,
    env: Vec<(String, String)>,
}

fn mpich4() -> Option<Mpi> {
    let mpicc = PathBuf::from("/usr/bin/mpicc.mpich");
    if !mpicc.exists() {
        println!("skipped: {} is not there (apt install libmpich-dev)", mpicc.display());
        return None;
    }
    Some(Mpi { name: "MPICH 4", mpicc, env: Vec::new() })
}

fn mpich5(compiler: &str) -> Option<Mpi> {
    let Some(venv) = std::env::var_os("FT_TEST_MPICH5") else {
        println!("skipped: FT_TEST_MPICH5 is not set");
        return None;
    };
    Some(Mpi { name: "MPICH 5", mpicc: Path::new(&venv).join("bin").join(compiler), env: Vec::new() })
}

/// Intel MPI has no compiler in its wheel; it has MPICH's ABI, so MPICH's compiler serves.
fn intel() -> Option<Mpi> {
    let Some(venv) = std::env::var_os("FT_TEST_IMPI").map(PathBuf::from) else {
        println!("skipped: FT_TEST_IMPI is not set");
        return None;
    };
    let env = vec![("LD_LIBRARY_PATH".to_string(), venv.join("lib").to_str().unwrap().to_string())];
    Some(Mpi { name: "Intel MPI", env, ..mpich5("mpicc")? })
}

fn kinds() -> Vec<Mpi> {
    [mpich4(), mpich5("mpicc"), mpich5("mpicc_abi"), intel()].into_iter().flatten().collect()
}

#[derive(Debug, Default)]
struct Story {
    output: String,
    succeeded: bool,
    initialized: Vec<u32>,
    finalized: Vec<u32>,
    aborts: Vec<(u32, i32)>,
    spawns: Vec<String>,
    barriers: usize,
    /// Shared memory that was left behind.
    left: Vec<String>,
}

fn compile(mpi: &Mpi, folder: &Path) -> PathBuf {
    let program = folder.join("world");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/world.c");
    let mut path = mpi.mpicc.parent().unwrap().to_path_buf().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let output =
        Command::new(&mpi.mpicc).env("PATH", path).arg("-o").arg(&program).arg(&source).arg("-ldl").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A world under way, with an agent of one node.
struct Driver<'a> {
    mpi: &'a Mpi,
    world: World,
    names: Names,
    links: HashMap<u32, UnixStream>,
    story: Story,
    /// How long barriers are held.
    hold: Duration,
}

/// Runs a world of `size` ranks to its end, as an agent with one node would. Barriers are held for `hold`.
fn run(mpi: &Mpi, what: &str, size: u32, hold: Duration) -> Story {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(mpi, folder.path());
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let name = format!("ftd-test.{}.{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
    let world = World::new(&name, vec![0; size as usize], 0).unwrap();
    let (names, links, story) = (Names::default(), HashMap::new(), Story::default());
    let mut driver = Driver { mpi, world, names, links, story, hold };
    let (said, hear) = mpsc::channel::<(u32, Vec<u8>)>();
    let mut ranks: Vec<Child> = Vec::new();
    for rank in 0..size {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ranks.push(command(&driver, &program, what, rank, size, theirs).spawn().unwrap());
        let mut reader = ours.try_clone().unwrap();
        driver.links.insert(rank, ours);
        let said = said.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if said.send((rank, bytes[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
    }
    let began = Instant::now();
    loop {
        let ended = ranks.iter_mut().all(|rank| rank.try_wait().unwrap().is_some());
        let Ok((rank, bytes)) = hear.recv_timeout(Duration::from_millis(20)) else {
            if ended {
                break;
            }
            if began.elapsed() > LIMIT || !driver.story.aborts.is_empty() {
                ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
            }
            assert!(began.elapsed() < LIMIT, "{}: the world did not end: {:?}", mpi.name, driver.story);
            continue;
        };
        driver.take(rank, &bytes);
    }
    let story = driver.end(ranks);
    println!("{}: {what}, {size} ranks: {:?}, {} barriers", mpi.name, began.elapsed(), story.barriers);
    story
}

fn command(driver: &Driver<'_>, program: &Path, what: &str, rank: u32, size: u32, theirs: UnixStream) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars() {
        if ["PMIX_", "PMI_", "OMPI_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // The connection stands where standard input is: so no other child inherits it.
    command.stdin(Stdio::from(OwnedFd::from(theirs))).env("PMI_FD", "0");
    command.envs(driver.world.environment(rank)).envs(driver.mpi.env.iter().cloned());
    if size as usize > std::thread::available_parallelism().unwrap().get() {
        command.env(OVERSUBSCRIBED.0, OVERSUBSCRIBED.1);
    }
    command.env("FT_RANK", rank.to_string()).env("FT_SIZE", size.to_string());
    command.arg(what).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Driver<'_> {
    /// What a rank says, and what follows from it.
    fn take(&mut self, rank: u32, bytes: &[u8]) {
        let mut actions = self.world.receive(rank, bytes).unwrap();
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Send { rank, bytes } => (&self.links[&rank]).write_all(&bytes).unwrap(),
                    Action::Event(Event::Initialized { rank }) => self.story.initialized.push(rank),
                    Action::Event(Event::Finalized { rank }) => self.story.finalized.push(rank),
                    Action::Event(Event::Entered { .. }) => {}
                    Action::Event(Event::Aborted { rank, code, .. }) => self.story.aborts.push((rank, code)),
                    Action::Event(Event::SpawnRefused { command, .. }) => self.story.spawns.push(command),
                    Action::Event(Event::BarrierReady { .. }) => {
                        self.story.barriers += 1;
                        std::thread::sleep(self.hold);
                        actions = self.world.barrier_complete([]).unwrap();
                    }
                    Action::Event(Event::Name { rank, request }) => {
                        actions = self.world.answer_name(rank, self.names.handle(&request)).unwrap();
                    }
                    Action::Event(event @ (Event::Broken { .. } | Event::Full { .. })) => {
                        panic!("{}: {event:?}", self.mpi.name)
                    }
                }
            }
        }
    }

    /// What is left, and what the ranks have said.
    fn end(mut self, ranks: Vec<Child>) -> Story {
        for file in self.world.shared_memory_files() {
            if std::fs::remove_file(&file).is_ok() {
                self.story.left.push(file);
            }
        }
        self.story.succeeded = true;
        for mut rank in ranks {
            let status = rank.wait().unwrap();
            self.story.succeeded &= status.success();
            rank.stdout.take().unwrap().read_to_string(&mut self.story.output).unwrap();
            rank.stderr.take().unwrap().read_to_string(&mut self.story.output).unwrap();
            if !status.success() {
                self.story.output += &format!("{status:?} signal {:?}\n", status.signal());
            }
        }
        self.story
    }
}

#[test]
fn worlds_run_to_their_end() {
    for mpi in kinds() {
        for size in [1, 2, 4] {
            let mut story = run(&mpi, "sum", size, Duration::from_millis(50));
            assert!(story.succeeded && story.output.contains(&format!("{size} ranks")), "{}: {story:?}", mpi.name);
            story.initialized.sort_unstable();
            story.finalized.sort_unstable();
            let all: Vec<_> = (0..size).collect();
            assert_eq!((&story.initialized, &story.finalized), (&all, &all), "{}", mpi.name);
            assert!(story.barriers > 0, "{}", mpi.name);
            assert!(story.left.is_empty(), "{}: {story:?}", mpi.name);
        }
    }
}

#[test]
fn names_are_published_found_and_withdrawn() {
    for mpi in kinds() {
        let story = run(&mpi, "names", 2, Duration::ZERO);
        assert!(story.succeeded, "{}: {story:?}", mpi.name);
    }
}

#[test]
fn spawning_is_refused_and_the_world_goes_on() {
    for mpi in kinds() {
        let story = run(&mpi, "spawn", 2, Duration::ZERO);
        assert!(story.succeeded, "{}: {story:?}", mpi.name);
        // MPICH 4.0 over UCX and Intel MPI (without I_MPI_SPAWN) refuse by themselves and ask nobody.
        let asked = if mpi.name == "MPICH 5" { vec!["/bin/true".to_string()] } else { vec![] };
        assert_eq!(story.spawns, asked, "{}", mpi.name);
    }
}

#[test]
fn an_abort_is_told_with_its_code() {
    for mpi in kinds() {
        let story = run(&mpi, "abort", 2, Duration::ZERO);
        assert_eq!(story.aborts, [(1, 7)], "{}: {story:?}", mpi.name);
        // Its ranks were killed. If this fails, MPICH 5 names its files in another way, and nobody removes them.
        assert_eq!(story.left.len(), usize::from(mpi.name == "MPICH 5"), "{}: {story:?}", mpi.name);
    }
}

#[test]
fn waiting_ranks_give_the_processor_away_where_their_own_launcher_has_them_do_so() {
    let cpus = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    if cpus > 16 {
        println!("skipped: too many processors ({cpus}) to have more ranks than those");
        return;
    }
    for mpi in kinds() {
        let story = run(&mpi, "sched", cpus + 1, Duration::ZERO);
        assert!(story.succeeded, "{}: {story:?}", mpi.name);
        // MPICH 4 never does.
        assert_eq!(story.output.contains("yields"), mpi.name != "MPICH 4", "{}: {story:?}", mpi.name);
    }
}
