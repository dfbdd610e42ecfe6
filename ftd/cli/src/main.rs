//! `ftrun`: starts an MPI job that survives the failure of its processes, as `mpirun` would start one that does not.

mod cancel;
mod cluster;
mod deaths;
mod family;
mod file_system;
mod front;
mod held;
mod helpers;
mod hosts;
mod in_step;
mod job_dir;
mod keepers;
mod launcher;
mod limits;
mod mpirun;
mod once;
mod options;
mod orphans;
mod output;
mod own_proc;
mod part;
mod program;
mod signals;
mod sink;
mod stdin;
mod step;
mod tasks;
mod variables;

use ft_sys::standard::{self, Standard};
use ft_wire::Flavour;
use ft_wire::launcher::JobSpec;
use held::Held;
use launcher::{LaunchError, Launcher};
use options::{Options, Request};
use program::ProgramError;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Why there is no job; each is one sentence.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Options(#[from] options::OptionError),
    #[error("{option}: {}: {error}", path.display())]
    Directory { option: &'static str, path: PathBuf, error: std::io::Error },
    #[error("the directory in which ftrun was started cannot be used any more: {0}")]
    Here(std::io::Error),
    #[error("FT_CHECKPOINT_TIMEOUT: '{0}' is not a number of seconds from 1 on")]
    Timeout(String),
    #[error("{option}={mpi} is wrong: {} has another MPI linked in; leave the option out", path.display())]
    OtherMpi { option: &'static str, mpi: &'static str, path: PathBuf },
    #[error("there is nothing to be started: the command line asks for help only")]
    NoJob,
    #[error("the agent cannot be reached at {address}, this node's address in MPI's network (peers.mpi): {error}")]
    Bind { address: std::net::IpAddr, error: std::io::Error },
    #[error(transparent)]
    Cluster(#[from] cluster::ClusterError),
    #[error("standard output cannot be written: {0}")]
    Output(std::io::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Helpers(#[from] helpers::Missing),
    #[error(transparent)]
    Build(#[from] ft_sys::build_check::BuildError),
    #[error(transparent)]
    Limit(#[from] limits::LimitError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Proc(#[from] own_proc::ProcError),
    #[error(transparent)]
    Tasks(#[from] tasks::TasksError),
    #[error(transparent)]
    Step(#[from] step::StepError),
}

impl Refusal {
    fn status(&self) -> u8 {
        match self {
            Refusal::Options(_) | Refusal::Timeout(_) | Refusal::OtherMpi { .. } => 2,
            Refusal::Helpers(missing) if missing.is_told() => 2,
            Refusal::Launch(LaunchError::JobDir(error)) if error.is_told() => 2,
            Refusal::Program(error) => error.status(),
            Refusal::Cluster(error) => error.status(),
            Refusal::Directory { .. }
            | Refusal::Here(_)
            | Refusal::NoJob
            | Refusal::Bind { .. }
            | Refusal::Output(_)
            | Refusal::Helpers(_)
            | Refusal::Build(_)
            | Refusal::Limit(_)
            | Refusal::Launch(_)
            | Refusal::Proc(_)
            | Refusal::Tasks(_)
            | Refusal::Step(_) => 1,
        }
    }
}

fn main() -> ExitCode {
    ft_sys::process::die_of_faults();
    // Before anything else is opened, and for both halves.
    if let Err(error) = standard::keep_closed() {
        say(&format!("/dev/null cannot be opened in the place of a standard stream that is closed: {error}"));
        return ExitCode::FAILURE;
    }
    let is_part = std::env::args_os().nth(1).is_some_and(|word| word == ft_wire::part::PART);
    if std::env::args_os().nth(1).is_some_and(|word| word == ft_wire::part::SWEEP) {
        // What dead launchers have left goes when a place for another one is chosen. Nobody is there to hear why not.
        return if job_dir::JobDir::choose().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == ft_wire::step::FRONT) {
        return match front_of_step() {
            Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
            Err(refusal) => {
                // Nobody may be there to read it.
                let _ = writeln!(std::io::stderr(), "srun: error: {refusal}");
                ExitCode::from(refusal.status())
            }
        };
    }
    match front::divide() {
        Ok(Some(status)) => return status,
        Ok(None) => {}
        Err(error) => {
            say(&format!("the launcher cannot be started: {error}{}", limits::hint(&error)));
            return ExitCode::FAILURE;
        }
    }
    if is_part {
        return ExitCode::from(u8::try_from(part::run()).unwrap_or(1));
    }
    match launch() {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(refusal) => {
            say(&refusal.to_string());
            ExitCode::from(refusal.status())
        }
    }
}

/// A sentence of ftrun's own. Nobody may be there to read it.
fn say(sentence: &str) {
    let sentence = format!("ftrun: {sentence}\n");
    let _ = if Standard::Error.was_closed() {
        std::io::stdout().write_all(sentence.as_bytes())
    } else {
        std::io::stderr().write_all(sentence.as_bytes())
    };
}

fn launch() -> Result<i32, Refusal> {
    let options = match options::parse(std::env::args_os())? {
        Request::Run(options) => *options,
        Request::Print(text) => return print(&text),
    };
    options::check_log(std::env::var_os("FT_LOG"))?;
    let names = std::env::vars_os().map(|(name, _)| name);
    let given = options.variables.iter().map(|(name, _)| name);
    variables::warnings(names, given, &options::variables()).iter().for_each(|warning| say(warning));
    ft_sys::slice::shorten();
    ft_sys::process::survive_file_size_limit();
    if let Some(hosts) = &options.hosts {
        return Ok(cluster::run(&options, hosts)?);
    }
    own_proc::check()?;
    let helpers = helpers::Helpers::find()?;
    helpers.check()?;
    let (spec, held) = describe(&options, &helpers)?;
    let soft = limits::raise(options.ranks)?;
    Ok(Launcher::start(options, spec, helpers, held, soft, None)?.run())
}

/// Stands in srun's place: `ftrun --step OPTIONS -- SRUN WORDS…`.
fn front_of_step() -> Result<i32, Refusal> {
    let words: Vec<OsString> =
        std::env::args_os().enumerate().filter(|(at, _)| *at != 1).map(|(_, word)| word).collect();
    let options = match options::parse_step(words.clone())? {
        Request::Run(options) => *options,
        Request::Print(text) => return print(&text),
    };
    let own = words.into_iter().skip(1).take_while(|word| word != "--").collect();
    Ok(step::Front::start(options, own)?.run()?)
}

fn print(text: &str) -> Result<i32, Refusal> {
    // The standard library takes what is not open for a success.
    let written = match Standard::Output.was_closed() {
        true => Err(nix::errno::Errno::EBADF.into()),
        false => std::io::stdout().write_all(text.as_bytes()),
    };
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Refusal::Output(error)),
        _ => Ok(0),
    }
}

/// The job, except for its name and directory.
fn describe(options: &Options, helpers: &helpers::Helpers) -> Result<(JobSpec, Held), Refusal> {
    let directory = working_directory(options)?;
    let environment = environment(options, &directory);
    let value = |name| environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_os_str());
    // The client library reads it in the ranks, where nobody could complain once.
    if let Some(text) = value("FT_CHECKPOINT_TIMEOUT").filter(|text| !text.is_empty())
        && text.to_str().and_then(|text| text.parse::<u64>().ok()).is_none_or(|seconds| seconds == 0)
    {
        return Err(Refusal::Timeout(text.to_string_lossy().into_owned()));
    }
    let path = value("PATH");
    let mut argv = options.command.clone();
    let program = program::find(&argv[0], path, &directory)?;
    let held = Held::open(&program, &directory).map_err(|error| ProgramError::Io { path: program.clone(), error })?;
    let linked_in = linked_in(options, &program)?;
    let expect_pmix = linked_in == Some(Flavour::OpenMpi) || program::is_linked_with_open_mpi(&program);
    argv[0] = program.into_os_string();
    let bytes = OsString::into_vec;
    let spec = JobSpec {
        job: String::new(),
        world_size: options.ranks,
        mode: options.mode.to_string(),
        argv: argv.into_iter().map(bytes).collect(),
        env: environment.into_iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        cwd: bytes(directory.into_os_string()),
        job_dir: PathBuf::new(),
        max_failures: options.max_failures,
        grace_ms: u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX),
        recover_aborts: options.recover_aborts,
        mpi: options.mpi.to_string(),
        preload: helpers.preload.clone(),
        ft_pmix: helpers.pmix.clone(),
        ft_ship: helpers.ship.clone(),
        linked_in,
        expect_pmix,
        copy_rate: options.copy_rate,
        verbose: options.verbose,
        nice: None,
        summary: options.summary,
        injections: options.injections.clone(),
        cluster: None,
    };
    Ok((spec, held))
}

/// The MPI that is served from the start, because nothing can be preloaded in front of it: what the user has said, or what is
/// found in the program's file.
fn linked_in(options: &Options, program: &std::path::Path) -> Result<Option<Flavour>, Refusal> {
    let found = program::linked_in(program);
    let told = match options.mpi {
        "openmpi" => Flavour::OpenMpi,
        "mpich" => Flavour::Mpich,
        _ => return Ok(found.first().copied()),
    };
    if !found.is_empty() && !found.contains(&told) {
        let (option, mpi, path) = (options.mpi_option, options.mpi, program.to_path_buf());
        return Err(Refusal::OtherMpi { option, mpi, path });
    }
    Ok(Some(told))
}

fn working_directory(options: &Options) -> Result<PathBuf, Refusal> {
    let Some(directory) = &options.directory else { return std::env::current_dir().map_err(Refusal::Here) };
    let directory = if directory.is_absolute() {
        directory.clone()
    } else {
        std::env::current_dir().map_err(Refusal::Here)?.join(directory)
    };
    let directory = program::plain(&directory);
    let refuse = |error| Refusal::Directory { option: "--chdir", path: directory.clone(), error };
    match std::fs::metadata(&directory) {
        Ok(metadata) if metadata.is_dir() => match nix::unistd::access(&directory, nix::unistd::AccessFlags::X_OK) {
            Ok(()) => Ok(directory),
            Err(errno) => Err(refuse(errno.into())),
        },
        Ok(_) => Err(refuse(std::io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(refuse(error)),
    }
}

/// The environment of the ranks, before what the agent adds.
fn environment(options: &Options, directory: &std::path::Path) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut set = |name: &OsString, value: OsString| {
        environment.retain(|(other, _)| other != name);
        environment.push((name.clone(), value));
    };
    if options.directory.is_some() {
        set(&"PWD".into(), directory.into());
    }
    for (name, value) in &options.variables {
        value.as_ref().inspect(|value| set(name, (*value).clone()));
    }
    missing_variables(options);
    environment
}

/// What is to be passed on and is not there.
fn missing_variables(options: &Options) {
    let named = options.variables.iter().filter(|(_, value)| value.is_none());
    for (name, _) in named.filter(|(name, _)| std::env::var_os(name).is_none()) {
        say(&format!("-x {}: there is no such variable in the environment", name.to_string_lossy()));
    }
}
