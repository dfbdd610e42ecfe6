//! `ftrun`: starts an MPI job that survives the failure of its processes, as `mpirun` would start one that does not.

mod batch;
mod beside;
mod binding;
mod cancel;
mod cluster;
#[cfg(test)]
mod completion;
mod connection;
mod deaths;
mod ends;
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
mod link;
mod mpirun;
mod once;
mod options;
mod orphans;
mod output;
mod own_proc;
mod part;
mod program;
mod rank_files;
mod script;
mod signals;
mod sink;
mod stdin;
mod step;
mod tasks;
mod time_limit;
mod tolls;
mod variables;

use ft_sys::standard::{self, Standard};
use ft_wire::Flavour;
use ft_wire::launcher::{Binding, JobSpec, Program};
use ftd_core::binding::{Bind, BindError, Policy};
use held::Held;
use hosts::Hosts;
use launcher::{LaunchError, Launcher};
use options::{Options, Request};
use program::ProgramError;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
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
    Processors(#[from] BindError),
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
            Refusal::Options(_) | Refusal::Processors(_) | Refusal::Timeout(_) | Refusal::OtherMpi { .. } => 2,
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
    if let Some(status) = script::asked_for(std::env::args_os().skip(1)) {
        return status;
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

/// Says which variables mean nothing to ftd, or do not reach the ranks.
fn warn_of_variables(options: &Options, say: impl Fn(&str)) {
    let names = std::env::vars_os().map(|(name, _)| name);
    let given = options.given.iter().map(|(option, name)| (option.as_str(), name.as_os_str()));
    variables::warnings(names, given, &options::variables()).iter().for_each(|warning| say(warning));
}

fn launch() -> Result<i32, Refusal> {
    let options = match options::parse(std::env::args_os())? {
        Request::Run(options) => *options,
        Request::Print(text) => return print(&text),
    };
    options::check_log(std::env::var_os("FT_LOG"), std::env::var_os(ft_sys::log::LOG_DIR))?;
    warn_of_variables(&options, say);
    options.hosts.iter().flat_map(Hosts::notes).for_each(|note| say(&note));
    ft_sys::slice::shorten();
    ft_sys::process::survive_file_size_limit();
    if let Some(hosts) = cluster::needed(&options)? {
        return Ok(cluster::run(&options, hosts)?);
    }
    own_proc::check()?;
    let helpers = helpers::Helpers::find()?;
    helpers.check()?;
    let (spec, held) = describe(&options, options.ranks, &helpers)?;
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
    options::check_log(std::env::var_os("FT_LOG"), std::env::var_os(ft_sys::log::LOG_DIR))?;
    // Nobody may be there to read it.
    warn_of_variables(&options, |warning| drop(writeln!(std::io::stderr(), "srun: {warning}")));
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

/// The job, except for its name and directory, and what is held open of each of its programs.
fn describe(options: &Options, here: u32, helpers: &helpers::Helpers) -> Result<(JobSpec, Vec<Held>), Refusal> {
    let mut held = Holding::default();
    let environment = environment(options);
    let (mut programs, mut expect_pmix) = (Vec::new(), false);
    for program in &options.programs {
        let described = describe_program(options, program, &environment, &mut held)?;
        let path = OsStr::from_bytes(described.argv.first().map_or(&[], |path| path));
        expect_pmix |= match described.linked_in {
            Some(flavour) => flavour == Flavour::OpenMpi,
            None => program::is_linked_with_open_mpi(path.as_ref()),
        };
        programs.push(described);
    }
    missing_variables(options);
    if let Some(name) = &options.output_name {
        let refuse = |(path, error)| Refusal::Directory { option: "--output-filename", path, error };
        rank_files::make_directory(name).map_err(refuse)?;
    }
    let (policy, note) = binding(options, here, &environment)?;
    let spec = JobSpec {
        job: String::new(),
        world_size: options.ranks,
        mode: options.mode.to_string(),
        programs,
        env: environment.into_iter().map(|(name, value)| (name.into_vec(), value.into_vec())).collect(),
        job_dir: PathBuf::new(),
        max_failures: options.max_failures,
        grace_ms: u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX),
        recover_aborts: options.recover_aborts,
        mpi: options.mpi.to_string(),
        preload: helpers.preload.clone(),
        ft_pmix: helpers.pmix.clone(),
        ft_ship: helpers.ship.clone(),
        expect_pmix,
        copy_rate: options.copy_rate,
        fabric: None,
        verbose: options.verbose,
        nice: None,
        summary: options.summary,
        binding: Some(Binding { policy: policy.to_string(), report: options.report_bindings, note }),
        injections: options.injections.clone(),
        node: None,
        cluster: None,
    };
    Ok((spec, held.all))
}

/// How the ranks are bound, of whom so many are on this machine. What the user has not said is for machines that nobody else uses.
fn binding(options: &Options, here: u32, environment: &Variables) -> Result<(Policy, Option<String>), BindError> {
    let set = |variables: &Variables| {
        let value = variables.iter().find(|(name, _)| name == "OMP_PROC_BIND").map(|(_, value)| value);
        value.is_some_and(|value| !value.is_empty() && !value.eq_ignore_ascii_case("false"))
    };
    let own = |program: &options::Program| {
        let own = program.variables.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        set(&own.collect())
    };
    let pinned = set(environment) || options.programs.iter().any(own);
    let policy = Policy { pinned, ..options.binding.policy };
    let allowed = ft_sys::topology::allowed();
    if options.binding.explicit {
        let place = |one: ft_sys::topology::Processor| ftd_core::binding::Processor {
            package: one.package,
            domain: one.domain,
            core: one.core,
            number: one.number,
        };
        let processors: Vec<_> = ft_sys::topology::of(&allowed).into_iter().map(place).collect();
        ftd_core::binding::assign(&processors, &policy, here as usize)?;
    } else if !pinned
        && here as usize <= allowed.len()
        && let Some(pid) = beside::another(&job_dir::memory(), &allowed)
    {
        let note = format!(
            "another ftrun (process {pid}) runs here, on the same processors: this one's ranks are not bound (--bind-to core binds them)"
        );
        return Ok((Policy { bind: Bind::None, ..policy }, Some(note)));
    }
    Ok((policy, None))
}

/// Programs with their directories, each once.
#[derive(Default)]
struct Holding {
    paths: Vec<(PathBuf, PathBuf)>,
    all: Vec<Held>,
}

impl Holding {
    /// The place of this one.
    fn hold(&mut self, program: &Path, directory: &Path) -> Result<u32, ProgramError> {
        let known = self.paths.iter().position(|(other, place)| other == program && place == directory);
        let place = match known {
            Some(place) => place,
            None => {
                let path = program.to_path_buf();
                self.all.push(Held::open(program, directory).map_err(|error| ProgramError::Io { path, error })?);
                self.paths.push((program.into(), directory.into()));
                self.all.len() - 1
            }
        };
        Ok(u32::try_from(place).unwrap_or(u32::MAX))
    }
}

fn describe_program(
    options: &Options,
    program: &options::Program,
    environment: &[(OsString, OsString)],
    held: &mut Holding,
) -> Result<Program, Refusal> {
    let directory = working_directory(program)?;
    let own = own_environment(program, &directory);
    let value = |name: &str| {
        let find = |all: &'_ [(OsString, OsString)]| all.iter().position(|(other, _)| other == name);
        find(&own).map(|at| &own[at].1).or_else(|| find(environment).map(|at| &environment[at].1))
    };
    // The client library reads it in the ranks, where nobody could complain once.
    if let Some(text) = value("FT_CHECKPOINT_TIMEOUT").filter(|text| !text.is_empty())
        && text.to_str().and_then(|text| text.parse::<u64>().ok()).is_none_or(|seconds| seconds == 0)
    {
        return Err(Refusal::Timeout(text.to_string_lossy().into_owned()));
    }
    let mut argv = program.command.clone();
    let path = program::find(&argv[0], value("PATH").map(OsString::as_os_str), &directory)?;
    let held = held.hold(&path, &directory)?;
    let linked_in = linked_in(options, &path)?;
    argv[0] = path.into_os_string();
    let bytes = OsString::into_vec;
    Ok(Program {
        ranks: program.ranks,
        argv: argv.into_iter().map(bytes).collect(),
        env: own.into_iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        cwd: bytes(directory.into_os_string()),
        linked_in,
        held,
    })
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

fn working_directory(program: &options::Program) -> Result<PathBuf, Refusal> {
    let Some(directory) = &program.directory else { return std::env::current_dir().map_err(Refusal::Here) };
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

type Variables = Vec<(OsString, OsString)>;

fn set(variables: &mut Variables, name: &OsStr, value: &OsStr) {
    variables.retain(|(other, _)| other != name);
    variables.push((name.into(), value.into()));
}

/// The environment of all ranks, before what the agent adds.
fn environment(options: &Options) -> Variables {
    let mut environment = std::env::vars_os().collect();
    options.variables.iter().for_each(|(name, value)| set(&mut environment, name, value));
    environment
}

/// What a program's ranks have beside it.
fn own_environment(program: &options::Program, directory: &Path) -> Variables {
    let mut environment = Variables::new();
    if program.directory.is_some() {
        set(&mut environment, "PWD".as_ref(), directory.as_ref());
    }
    for (name, value) in &program.variables {
        value.as_ref().inspect(|value| set(&mut environment, name, value));
    }
    environment
}

/// What is to be passed on and is not there.
fn missing_variables(options: &Options) {
    let all = options.programs.iter().flat_map(|program| &program.variables);
    let named = all.filter(|(_, value)| value.is_none());
    for (name, _) in named.filter(|(name, _)| std::env::var_os(name).is_none()) {
        say(&format!("-x {}: there is no such variable in the environment", name.to_string_lossy()));
    }
}
