//! The command line and the `FT_*` variables. Everything wrong with them is one sentence.

use crate::binding::{self, Said, Told};
use crate::hosts::Hosts;
use crate::mpirun::{self, Misplaced};
use crate::output::Label;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, ValueHint};
use ft_wire::cluster::LEAST_PERIODS;
use ft_wire::injection::{Injection, InjectionError};
use ftd_core::Mode;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deaths of one rank in a row without progress that end the job, unless told otherwise.
const MAX_FAILURES: u32 = 5;

/// What the ranks have after a signal that ends the job, unless told otherwise.
const GRACE: Duration = Duration::from_secs(10);
/// … and in a step of Slurm's, which ends a job itself when its time is over.
const STEP_GRACE: Duration = Duration::from_secs(300);
/// The shortest period of heartbeats.
const LEAST_PERIOD: Duration = Duration::from_millis(10);

/// Why a command line is refused; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Something that clap found.
    #[error("{0}; `ftrun --help` lists the options")]
    CommandLine(String),
    /// No `-n`.
    #[error("how many ranks? Say so with -n N")]
    NoRanks,
    /// No program.
    #[error("there is no program to start: name it after the options")]
    NoProgram,
    /// A second program without one of these.
    #[error(
        "':' after {before} begins another program, and {lacks}; if ':' is an argument of {before}, write -- before that program"
    )]
    Further {
        /// The program before it.
        before: String,
        /// What is missing.
        lacks: &'static str,
    },
    /// An option of the whole job behind a `:`.
    #[error(
        "{0} is for the whole job: write it before the first program; -n, -x, --env and --chdir are each program's own"
    )]
    OfTheJob(String),
    /// A second program in a step of Slurm's.
    #[error("':' begins another program, and a step of Slurm's has one: `ftrun` starts several as one job")]
    SeveralInStep,
    /// Ranks cannot be bound so.
    #[error(transparent)]
    Binding(#[from] binding::Contradiction),
    /// What the nodes' file says.
    #[error(transparent)]
    Hosts(#[from] crate::hosts::HostsError),
    /// A mode that cannot be had.
    #[error("{option}: {error}{}", near(near_mode(error)))]
    Mode {
        /// The option, or the variable that was read in its place.
        option: &'static str,
        /// What is wrong with it.
        error: ftd_core::policy::ModeError,
    },
    /// A variable that cannot even be read.
    #[error("{0}: its value is not UTF-8")]
    NoText(&'static str),
    /// What was probably meant as the program has become an option's value.
    #[error(
        "{option} has taken '{value}' as its value ({shape}); if that is the program, write a value before it{behind}"
    )]
    Taken {
        /// The option, as typed.
        option: String,
        /// What it has taken.
        value: String,
        /// What it takes.
        shape: String,
        /// What else there is to say.
        behind: String,
    },
    /// A failure of a rank that there is not.
    #[error("{option}: '{value}' is not about a rank of this job: {}", if *ranks == 1 { "its only one is 0".into() } else { format!("they are 0 to {}", ranks - 1) })]
    NoSuchRank {
        /// The option, or the variable that was read in its place.
        option: &'static str,
        /// What was given.
        value: String,
        /// How many there are.
        ranks: u32,
    },
    /// A failure that cannot be brought about.
    #[error("{option}: '{value}': {error}")]
    Injection {
        /// The option, or the variable that was read in its place.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it.
        error: InjectionError,
    },
    /// Words after the program that were probably meant for ftrun.
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    /// An option of the design that this release does not have.
    #[error("{option}={value} is not built yet: {instead}")]
    NotBuilt {
        /// The option, or the variable that was read in its place.
        option: &'static str,
        /// What was asked for.
        value: String,
        /// What there is.
        instead: &'static str,
    },
    /// A value that other launchers serve.
    #[error("{option}: '{value}' is not served: {instead}")]
    Unserved {
        /// The option, as typed.
        option: String,
        /// What was asked for.
        value: String,
        /// What to say.
        instead: &'static str,
    },
    /// A value that is of no use here.
    #[error("{option}={value}: {why}")]
    Useless {
        /// The option, or the variable that was read in its place.
        option: &'static str,
        /// What was asked for.
        value: String,
        /// Why.
        why: &'static str,
    },
    /// A value that means nothing.
    #[error("{option}: '{value}' is not {expected}{}", near(near_value(value, expected)))]
    Value {
        /// The option, as typed, or the variable that was read in its place.
        option: String,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

/// What the user wants, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number of ranks, of all programs together, at least 1; in a step of Slurm's 0 when no `-n` says it.
    pub ranks: u32,
    /// No `-n` says that, but the nodes do.
    pub ranks_of_nodes: bool,
    /// The programs, in the order of their ranks.
    pub programs: Vec<Program>,
    /// `--ft`.
    pub mode: Mode,
    /// `--ft-max-failures`.
    pub max_failures: u32,
    /// `--ft-grace`.
    pub grace: Duration,
    /// `--ft-on-abort=recover`.
    pub recover_aborts: bool,
    /// `--ft-mpi`: `auto`, `openmpi` or `mpich`.
    pub mpi: &'static str,
    /// `--ft-mpi`, or the variable that was read in its place.
    pub mpi_option: &'static str,
    /// What it was that asked for failures: the option, or the variable.
    pub injections_option: &'static str,
    /// `--ft-output=once`.
    pub output_once: bool,
    /// `--tag-output` or `-l`.
    pub label: Label,
    /// `--output-filename`: the beginning of the names of the files of the ranks' output.
    pub output_name: Option<PathBuf>,
    /// `--timeout`: so long the job may run.
    pub timeout: Option<Duration>,
    /// `-v`.
    pub verbose: bool,
    /// `--hosts` or `--hostfile`: the nodes of a job over several machines.
    pub hosts: Option<Hosts>,
    /// `-ppn`: so many slots has a node that says nothing else.
    pub per_node: Option<u32>,
    /// `--bind-to`, `--map-by`, `--cpus-per-rank`: how ranks are bound to processors.
    pub binding: Told,
    /// `--report-bindings`.
    pub report_bindings: bool,
    /// `--ft-spares`: so many of the nodes are spare.
    pub spares: u32,
    /// `--ft-wait`: so long the job waits for a node.
    pub wait: Duration,
    /// `--ft-oversubscribe`: ranks of a lost node share the slots of others.
    pub oversubscribe: bool,
    /// `--oversubscribe`, or `:OVERSUBSCRIBE` in `--map-by`: one machine may have more ranks than its slots.
    pub beyond_slots: bool,
    /// `--ft-copy-rate`: so many bytes a second a node sends at most for copies; 0: no limit.
    pub copy_rate: u64,
    /// `--ft-heartbeat`: period and time-out.
    pub heartbeat: Option<(Duration, Duration)>,
    /// `--ft-summary`.
    pub summary: bool,
    /// `--ft-inject`: failures that are asked for.
    pub injections: Vec<Injection>,
    /// `-genv` and `--mca`, in order: variables for all ranks.
    pub variables: Vec<(OsString, OsString)>,
    /// The names of all variables that options set, and those options as they were typed.
    pub given: Vec<(String, OsString)>,
}

/// A program of the job, and what is its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// `-n`: how many ranks run it.
    pub ranks: u32,
    /// `-x` and `-env`, in order: variable and, if given, its value.
    pub variables: Vec<(OsString, Option<OsString>)>,
    /// `--chdir`.
    pub directory: Option<PathBuf>,
    /// Program and arguments, as typed.
    pub command: Vec<OsString>,
}

impl OptionError {
    /// Names an option as it was typed.
    fn in_words_of(self, typed: &[OsString]) -> OptionError {
        match self {
            OptionError::Value { option, value, expected } => {
                OptionError::Value { option: written(&option, typed), value, expected }
            }
            OptionError::Unserved { option, value, instead } => {
                OptionError::Unserved { option: written(&option, typed), value, instead }
            }
            OptionError::NoProgram => taken(None, typed).unwrap_or(OptionError::NoProgram),
            other => other,
        }
    }
}

impl Options {
    /// Whether anything may be shown twice that is not to be.
    pub fn once(&self) -> bool {
        self.output_once && self.mode != Mode::None
    }

    /// The beginning of the names of the files of the ranks' output, and how many ranks have some.
    pub fn files(&self) -> Option<(&Path, u32)> {
        Some((self.output_name.as_deref()?, self.ranks))
    }
}

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A job.
    Run(Box<Options>),
    /// A text for standard output: the help or the version.
    Print(String),
}

#[derive(Parser, Debug)]
#[command(
    name = "ftrun",
    version = ft_wire::release(),
    about = "Starts an MPI job that survives the failure of its processes.",
    override_usage = "ftrun -n N [OPTIONS] PROGRAM [ARGUMENTS]... [: -n N [-x VAR=VALUE] [--chdir DIR] PROGRAM [ARGUMENTS]...]...",
    after_help = "Signals sent to ftrun reach the ranks. Ctrl-C, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU and SIGALRM end the job: \
                  the ranks have --ft-grace to end by themselves, and a second signal kills them at once.\n\n\
                  The exit status is the job's: 0 when every rank ended well, the program's own status when it ended itself, \
                  128 plus the signal when a signal ended it; 127 when there is no such program, 126 when it cannot be \
                  executed, 2 for a wrong command line, and 1 for all else that keeps a job from starting or going on.\n\n\
                  Examples:\n  \
                  ftrun -n 4 --ft=reinit ./app input\n  \
                  ftrun -n 4 --ft=reinit --tag-output -x OMP_NUM_THREADS=2 python3 -m mpi4py app.py\n  \
                  ftrun -n 4 --ft=reinit lmp < in.file\n  \
                  ftrun --ft=reinit -n 1 ./server : -n 3 -x ROLE=client ./client\n\n\
                  While a job runs, `ftctl` shows its ranks, its checkpoints and its failures, and has a rank fail, to see what comes of it.\n\n\
                  `man ftrun` has more, and the guide (share/doc/ftd/guide.md) says what happens at a failure.",
    max_term_width = 110,
    disable_help_subcommand = true
)]
struct Arguments {
    /// Number of ranks, at least 1 [default: the slots that -H names]. There may be more of them than processor cores
    #[arg(
        short = 'n',
        long = "np",
        alias = "n",
        visible_short_alias = 'c',
        value_name = "N",
        allow_hyphen_values = true
    )]
    ranks: Option<String>,

    /// Who survives a failure: `none` only launches, `reinit` starts all ranks again in place from the newest complete
    /// checkpoint
    #[arg(long = "ft", value_name = "MODE", env = "FT_MODE", default_value = "none", hide_env_values = true)]
    mode: String,

    /// So many deaths of the program by itself in a row without a newer checkpoint, or of one rank from outside without that
    /// or 30 s of computing, end the job [default: 5]
    #[arg(
        long = "ft-max-failures",
        value_name = "N",
        env = "FT_MAX_FAILURES",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    max_failures: Option<String>,

    /// What MPI_Abort, a non-zero exit status and an exit without MPI_Finalize do: `end` the job or let it `recover`
    #[arg(
        long = "ft-on-abort",
        value_name = "end|recover",
        env = "FT_ON_ABORT",
        default_value = "end",
        hide_env_values = true
    )]
    on_abort: String,

    /// So long the ranks may run on after a signal that ends the job; in seconds or with a unit (500ms, 2m); 0 ends them at
    /// once [default: 10s]
    #[arg(
        long = "ft-grace",
        value_name = "TIME",
        env = "FT_GRACE",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    grace: Option<String>,

    /// The MPI that the program speaks: `auto` (found out), `openmpi` or `mpich` (and its relatives). Needed only where it
    /// cannot be found out: see the manual
    #[arg(
        long = "ft-mpi",
        value_name = "auto|openmpi|mpich",
        env = "FT_MPI",
        default_value = "auto",
        hide_env_values = true
    )]
    mpi: String,

    /// How a next world stands by: `none`; `exec` and `init` are not built yet
    #[arg(
        long = "ft-standby",
        value_name = "none|exec|init",
        env = "FT_STANDBY",
        default_value = "none",
        hide_env_values = true
    )]
    standby: String,

    /// So many of the nodes of --hosts, the last ones, hold no rank before another node is lost [default: 0]
    #[arg(
        long = "ft-spares",
        value_name = "NODES",
        env = "FT_SPARES",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    spares: Option<String>,

    /// So long a job over several nodes that has lost one, and has no free slots for its ranks, waits for a node, as a time like that
    /// of --ft-grace; then it ends [default: 0]
    #[arg(long = "ft-wait", value_name = "TIME", env = "FT_WAIT", hide_env_values = true, allow_hyphen_values = true)]
    wait: Option<String>,

    /// The ranks of a lost node for which no slot is free go on beyond the slots of the nodes that are left, as evenly as may be: `yes`
    /// (also without a value) or `no`. On one machine there are no others [default: no]
    #[arg(
        long = "ft-oversubscribe",
        value_name = "yes|no",
        env = "FT_OVERSUBSCRIBE",
        hide_env_values = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes"
    )]
    crowd: Option<String>,

    /// Share of the ranks that have a replica, for the mode `replicate`, which is not built yet [default: none has]
    #[arg(
        long = "ft-degree",
        value_name = "PERCENT",
        env = "FT_DEGREE",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    degree: Option<String>,

    /// Where checkpoints go besides memory; not built yet [default: nowhere]
    #[arg(long = "ft-flush", value_name = "DIR|URL", env = "FT_FLUSH", hide_env_values = true)]
    flush: Option<String>,

    /// So many bytes a second each node sends at most for copies of checkpoints to other nodes: a number with K, M, G or T (200M), which are
    /// powers of 1024, from 64K on; 0: as fast as it goes. On one machine there are no copies: the value is only checked [default: 0]
    #[arg(
        long = "ft-copy-rate",
        value_name = "RATE",
        env = "FT_COPY_RATE",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    copy_rate: Option<String>,

    /// How often nodes tell that they live, and the silence after which one counts as dead, in milliseconds or
    /// with a unit (100ms,1s): four periods at least. It stands in the place of what ftd.toml says of both. On one
    /// machine there is nobody to tell: the value is only checked [default: 100,500]
    #[arg(long = "ft-heartbeat", value_name = "PERIOD,TIMEOUT", env = "FT_HEARTBEAT", hide_env_values = true)]
    heartbeat: Option<String>,

    /// Has a rank killed, to see what comes of it: `rank=2,after=5s`; with `at=PLACE` when it comes there next. Again for another one
    /// [default: nobody is killed]
    #[arg(
        long = "ft-inject",
        value_name = "rank=N[,after=TIME][,at=PLACE]",
        env = "FT_INJECT",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    inject: Vec<String>,

    /// Nodes on which the ranks run, by the names that their ftds have, each perhaps with its number of slots; the ranks fill them
    /// in this order [default: this machine alone]
    #[arg(
        long = "hosts",
        visible_alias = "host",
        short = 'H',
        value_name = "NODE[:SLOTS],...",
        conflicts_with = "hostfile"
    )]
    hosts: Option<String>,

    /// The same, from a file: a line for each node, `NODE` or `NODE slots=N` [default: this machine alone]
    #[arg(long = "hostfile", visible_alias = "machinefile", value_name = "FILE", value_hint = ValueHint::FilePath)]
    hostfile: Option<PathBuf>,

    /// What of the ranks' standard output is shown after a recovery: `once` leaves out the lines that a rank prints again, `all` leaves
    /// out nothing
    #[arg(
        long = "ft-output",
        value_name = "once|all",
        env = "FT_OUTPUT",
        default_value = "once",
        hide_env_values = true
    )]
    output: String,

    /// Says at the end what failures and checkpoints have cost: `yes` (also without a value) or `no`. After failures it is said anyway
    /// [default: no]
    #[arg(
        long = "ft-summary",
        value_name = "yes|no",
        env = "FT_SUMMARY",
        hide_env_values = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes"
    )]
    summary: Option<String>,
    /// So many slots has each node that --hosts or --hostfile names without a number; without -n all of these are filled [default: the
    /// ranks are shared out]. On one machine all ranks are there, and the value is only checked
    #[arg(
        long = "ppn",
        visible_aliases = ["npernode", "perhost"],
        value_name = "N",
        allow_hyphen_values = true
    )]
    per_node: Option<String>,

    /// What each rank is bound to: `none`, `core`, `numa` or `socket`; with :overload-allowed ranks may share it [default: an equal share of the
    /// cores that no other rank has; nothing with more ranks than cores, or beside another ftrun]
    #[arg(long = "bind-to", value_name = "WHAT[:overload-allowed]")]
    bind_to: Option<String>,

    /// Over what ranks are dealt, in blocks: each `core`, `numa` domain or `socket`; with `slot` to one core after the other; with :PE=N each
    /// has N cores [default: what they are bound to]
    #[arg(long = "map-by", value_name = "WHAT[:PE=N][:OVERSUBSCRIBE]")]
    map_by: Option<String>,

    /// So many cores has each rank, as with --map-by slot:PE=N [default: as --bind-to says]
    #[arg(long = "cpus-per-rank", visible_alias = "cpus-per-proc", value_name = "N", allow_hyphen_values = true)]
    cpus_per_rank: Option<String>,

    /// Says on standard error to which processors each rank is bound
    #[arg(long)]
    report_bindings: bool,

    /// Writes the rank and the stream before every line: `[3]<stdout>: …`
    #[arg(long)]
    tag_output: bool,

    /// Writes the rank alone before every line: `[3] …`
    #[arg(short = 'l', long = "prepend-rank", conflicts_with = "tag_output")]
    prepend_rank: bool,

    /// Writes what each rank prints into files NAME.RANK.out and NAME.RANK.err, and not to ftrun's own output [default: no files]
    #[arg(long = "output-filename", value_name = "NAME", value_hint = ValueHint::FilePath)]
    output_name: Option<PathBuf>,

    /// Ends the job, as SIGTERM does, when it has run so long, with status 124: a time in seconds or with a unit (90m, 36h) [default: no
    /// limit]
    #[arg(long = "timeout", value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<String>,

    /// Sets a variable for the ranks of the program that follows; again for another one. Without a value it is that of ftrun's own environment, which the ranks have anyway
    #[arg(short = 'x', value_name = "VAR[=VALUE]", allow_hyphen_values = true)]
    variables: Vec<OsString>,

    /// The same in two words, as MPICH's mpiexec has it
    #[arg(long = "env", num_args = 2, value_names = ["VAR", "VALUE"], allow_hyphen_values = true)]
    own: Vec<OsString>,

    /// Sets a variable for the ranks of all programs
    #[arg(long = "genv", num_args = 2, value_names = ["VAR", "VALUE"], allow_hyphen_values = true)]
    global: Vec<OsString>,

    /// Sets a parameter of Open MPI's for all ranks, as `-x OMPI_MCA_NAME=VALUE` does
    #[arg(long = "mca", num_args = 2, value_names = ["NAME", "VALUE"], allow_hyphen_values = true)]
    mca: Vec<OsString>,

    /// Working directory of the ranks; relative names of the program are looked up from there [default: that of ftrun]
    #[arg(long = "chdir", visible_alias = "wdir", alias = "wd", value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: Option<PathBuf>,

    /// As :OVERSUBSCRIBE in --map-by: on one machine more ranks than --hosts or --hostfile give it slots; more ranks than cores are always
    /// allowed. With --map-by or --cpus-per-rank and without --bind-to nobody is bound, as by mpirun
    #[arg(long)]
    oversubscribe: bool,

    /// Accepted for mpirun's sake: on its own machine root may always start jobs, and over several nodes where ftd.toml says so (jobs.root)
    #[arg(long)]
    allow_run_as_root: bool,

    /// Says on standard error what is started and where, and over several nodes how far copies of checkpoints are
    #[arg(short = 'v', long)]
    verbose: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The clap command, for the help and for the tests of the man page.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// clap's name of an option, the option, and the variable that is read in its place.
const VARIABLES: [(&str, &str, &str); 16] = [
    ("mode", "--ft", "FT_MODE"),
    ("max_failures", "--ft-max-failures", "FT_MAX_FAILURES"),
    ("on_abort", "--ft-on-abort", "FT_ON_ABORT"),
    ("grace", "--ft-grace", "FT_GRACE"),
    ("mpi", "--ft-mpi", "FT_MPI"),
    ("standby", "--ft-standby", "FT_STANDBY"),
    ("spares", "--ft-spares", "FT_SPARES"),
    ("wait", "--ft-wait", "FT_WAIT"),
    ("crowd", "--ft-oversubscribe", "FT_OVERSUBSCRIBE"),
    ("degree", "--ft-degree", "FT_DEGREE"),
    ("flush", "--ft-flush", "FT_FLUSH"),
    ("copy_rate", "--ft-copy-rate", "FT_COPY_RATE"),
    ("heartbeat", "--ft-heartbeat", "FT_HEARTBEAT"),
    ("inject", "--ft-inject", "FT_INJECT"),
    ("output", "--ft-output", "FT_OUTPUT"),
    ("summary", "--ft-summary", "FT_SUMMARY"),
];

/// Who is to blame for the value of an option: the option itself, or the variable.
struct Blamed<'a>(&'a ArgMatches);

impl Blamed<'_> {
    fn name(&self, id: &str) -> &'static str {
        let (_, option, variable) = VARIABLES.iter().find(|(other, ..)| *other == id).unwrap_or(&("", "", ""));
        if self.0.value_source(id) == Some(ValueSource::EnvVariable) { variable } else { option }
    }
}

/// The variables of the options.
pub fn variables() -> [&'static str; 16] {
    VARIABLES.map(|(.., variable)| variable)
}

/// Checks what is read from the environment alone, and by others.
///
/// # Errors
/// One sentence.
pub fn check_log(text: Option<OsString>, directory: Option<OsString>) -> Result<(), OptionError> {
    if let Some(name) = directory.filter(|name| !name.is_empty() && !std::path::Path::new(name).is_absolute()) {
        let name = name.to_string_lossy().into_owned();
        return Err(value(
            ft_sys::log::LOG_DIR,
            name,
            "a directory from / on: those that log have others than ftrun's",
        ));
    }
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(()) };
    let text = text.into_string().map_err(|_| OptionError::NoText("FT_LOG"))?;
    if crate::variables::is_log(&text) {
        return Ok(());
    }
    Err(value("FT_LOG", text, "a level (off, error, warn, info, debug, trace) or a list such as error,ft_agent=debug"))
}

/// Reads a command line whose first word is the name of this program.
///
/// # Errors
/// One sentence.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Request, OptionError> {
    read(words, false)
}

/// Reads the options of a step of Slurm's, where Slurm says how many ranks there may be, and on which nodes. [`Options::ranks`] is 0 where
/// they do not.
///
/// # Errors
/// One sentence.
pub fn parse_step(words: impl IntoIterator<Item = OsString>) -> Result<Request, OptionError> {
    read(words, true)
}

fn read(words: impl IntoIterator<Item = OsString>, in_step: bool) -> Result<Request, OptionError> {
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_default();
    let mut first: Option<(Arguments, ArgMatches, Vec<OsString>)> = None;
    let (mut programs, mut given) = (Vec::new(), Vec::new());
    loop {
        let segment = Segment::read(&name, &mut words);
        let (arguments, matches) = match segment.parse()? {
            Parsed::Arguments(parsed) => *parsed,
            Parsed::Text(text) => return Ok(Request::Print(text)),
        };
        let before = programs.last().and_then(|program: &Program| program.command.first());
        if let Some(before) = before.map(|word| word.to_string_lossy().into_owned()) {
            is_of_a_program(&matches, &segment.typed)?;
            let lacks = match (arguments.command.is_empty(), &arguments.ranks) {
                (true, _) => "there is none",
                (false, None) => "nothing says how many ranks run it (-n N)",
                (false, Some(_)) => "",
            };
            if !lacks.is_empty() {
                return Err(OptionError::Further { before, lacks });
            }
        }
        let more = segment.more;
        if more && in_step {
            return Err(OptionError::SeveralInStep);
        }
        let nodes = match (more || first.is_some(), in_step) {
            (true, _) => None,
            (false, true) => Some(0),
            (false, false) => nodes_of(&arguments).map_err(|error| error.in_words_of(&segment.typed))?,
        };
        programs.push(program(&arguments, nodes).map_err(|error| error.in_words_of(&segment.typed))?);
        given.extend(variables_of(&arguments, &segment.typed));
        match &mut first {
            None => first = Some((arguments, matches, segment.typed)),
            // They are for the MPI as a whole, wherever they stand.
            Some((first, ..)) => first.mca.extend(arguments.mca),
        }
        if let Some((arguments, matches, typed)) = first.take_if(|_| !more) {
            let checked = check(arguments, &Blamed(&matches), programs, in_step);
            let options = checked.map_err(|error| error.in_words_of(&typed))?;
            return Ok(Request::Run(Box::new(Options { given, ..options })));
        }
    }
}

/// The words of one program: its options, its name and its arguments.
struct Segment {
    typed: Vec<OsString>,
    words: Vec<OsString>,
    /// `--` stands before the program.
    marked: bool,
    /// Another one follows.
    more: bool,
}

enum Parsed {
    Arguments(Box<(Arguments, ArgMatches)>),
    Text(String),
}

impl Segment {
    /// Takes the words up to the `:` before the next program.
    fn read(name: &OsStr, words: &mut impl Iterator<Item = OsString>) -> Segment {
        let mut typed = vec![name.to_os_string()];
        let mut of_program = false;
        let (mut own, mut more) = (false, false);
        let values = Values::new();
        while let Some(word) = words.next() {
            if word == ":" && !own {
                more = true;
                break;
            }
            // Behind `--` all is the program's own.
            own |= word == "--";
            let is_option = word.as_encoded_bytes().starts_with(b"-") && word != "-";
            of_program |= !is_option;
            let follow = if of_program { 0 } else { values.of(&dashed(&word)) };
            typed.push(word);
            typed.extend(words.by_ref().take(follow));
        }
        let (words, marked) = like_mpirun(typed.iter().cloned(), &values);
        Segment { typed, words, marked, more }
    }

    fn parse(&self) -> Result<Parsed, OptionError> {
        let parsed = command()
            .try_get_matches_from(&self.words)
            .and_then(|matches| Arguments::from_arg_matches(&matches).map(|arguments| (arguments, matches)));
        let (arguments, matches) = match parsed {
            Ok(parsed) => parsed,
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                return Ok(Parsed::Text(error.render().to_string()));
            }
            Err(error) => {
                let unknown =
                    (error.kind() == ErrorKind::UnknownArgument).then(|| context(&error, ContextKind::InvalidArg));
                let taken = || unknown.flatten().and_then(|unknown| taken(Some(&unknown), &self.typed));
                let otherwise = || OptionError::CommandLine(sentence(&error, &self.typed));
                return Err(unreadable(&error).or_else(taken).unwrap_or_else(otherwise));
            }
        };
        without_value(&matches, &self.typed)?;
        // Before what is missing: it may be what stands in the wrong place.
        let misplaced = mpirun::misplaced(&arguments.command, &names_of_ftd(), arguments.ranks.is_none());
        match misplaced.filter(|_| !self.marked) {
            Some(misplaced) => Err(misplaced.into()),
            None => Ok(Parsed::Arguments(Box::new((arguments, matches)))),
        }
    }
}

/// What stands behind a `:` is about the program there.
fn is_of_a_program(matches: &ArgMatches, words: &[OsString]) -> Result<(), OptionError> {
    const OWN: [&str; 6] = ["ranks", "variables", "own", "directory", "command", "mca"];
    let command = command();
    let others = command.get_arguments().filter(|argument| !OWN.contains(&argument.get_id().as_str()));
    let typed = |argument: &&clap::Arg| {
        let id = argument.get_id().as_str();
        // clap asks about options of its own in another way.
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let refuse =
        |argument| Err(OptionError::OfTheJob(word_of(argument, words).unwrap_or_else(|| typed_name(argument))));
    others.into_iter().find(typed).map_or(Ok(()), refuse)
}

/// An option as it was typed, perhaps by another of its names.
fn written(option: &str, typed: &[OsString]) -> String {
    let name = option.trim_start_matches('-');
    let command = command();
    let is_meant = |argument: &&clap::Arg| {
        let mut names = argument.get_long().into_iter().chain(argument.get_all_aliases().into_iter().flatten());
        names.any(|long| long == name) || argument.get_short().is_some_and(|short| name == short.to_string())
    };
    let argument = command.get_arguments().find(is_meant);
    argument.and_then(|argument| word_of(argument, typed)).unwrap_or_else(|| option.into())
}

/// The option among the words, as its user has written it, without its value.
fn word_of(argument: &clap::Arg, words: &[OsString]) -> Option<String> {
    let long = argument.get_long().into_iter().chain(argument.get_all_aliases().into_iter().flatten());
    let long: Vec<String> = long.map(|name| format!("--{name}")).collect();
    let short: Vec<String> =
        argument.get_short_and_visible_aliases().unwrap_or_default().iter().map(|short| format!("-{short}")).collect();
    let options = words.iter().skip(1).take_while(|word| *word != "--").map(|word| word.to_string_lossy());
    let mut names = options.map(|word| word.split('=').next().unwrap_or_default().to_string());
    names.find_map(|word| {
        let dashed = dashed(OsStr::new(&word)).to_string_lossy().into_owned();
        let glued = short.iter().find(|short| dashed.starts_with(*short) && !dashed.starts_with("--"));
        if long.contains(&dashed) { Some(word) } else { glued.cloned() }
    })
}

/// The slots of the nodes, which say how many ranks there are where nothing else does.
fn nodes_of(arguments: &Arguments) -> Result<Option<u32>, OptionError> {
    if arguments.ranks.is_some() {
        return Ok(None);
    }
    let each = per_node(arguments)?;
    match nodes(arguments.hostfile.clone(), arguments.hosts.clone())? {
        None => Ok(each),
        Some(hosts) => Ok(Some(hosts.slots(each.unwrap_or(1))?)),
    }
}

/// How ranks are bound.
fn binding(arguments: &Arguments, ranks: u32) -> Result<Told, OptionError> {
    let wrong = |option, text: &String, instead, expected| match instead {
        Some(instead) => OptionError::Unserved { option: String::from(option), value: text.clone(), instead },
        None => value(option, text.clone(), expected),
    };
    let not_bound = |text: &String| wrong("--bind-to", text, binding::instead_of_bind(text), binding::BIND);
    let not_mapped = |text: &String| wrong("--map-by", text, binding::instead_of_map(text), binding::MAP);
    let bind = |text: &String| binding::bind(text).ok_or_else(|| not_bound(text));
    let map = |text: &String| binding::map(text).ok_or_else(|| not_mapped(text));
    let cores = |text: &String| positive("--cpus-per-rank", text, "a number of cores from 1 on");
    let said = Said {
        bind: arguments.bind_to.as_ref().map(bind).transpose()?,
        map: arguments.map_by.as_ref().map(map).transpose()?,
        cores: arguments.cpus_per_rank.as_ref().map(cores).transpose()?,
        oversubscribed: arguments.oversubscribe,
    };
    Ok(binding::policy(&said, ranks)?)
}

fn per_node(arguments: &Arguments) -> Result<Option<u32>, OptionError> {
    let number = |text: &String| positive("-ppn", text, "a number of ranks from 1 on");
    arguments.per_node.as_ref().map(number).transpose()
}

/// What is a program's own.
fn program(arguments: &Arguments, slots: Option<u32>) -> Result<Program, OptionError> {
    let ranks = match (&arguments.ranks, slots) {
        (Some(text), _) => positive("-n", text, "a number of ranks from 1 on")?,
        (None, Some(slots)) => slots,
        (None, None) => return Err(OptionError::NoRanks),
    };
    let mut variables = arguments.variables.iter().cloned().map(variable).collect::<Result<Vec<_>, _>>()?;
    for (name, value) in pairs("--env", "", &arguments.own)? {
        variables.push((name, Some(value)));
    }
    if arguments.command.is_empty() {
        return Err(OptionError::NoProgram);
    }
    Ok(Program { ranks, variables, directory: arguments.directory.clone(), command: arguments.command.clone() })
}

/// The variables that options set, each with its option.
fn variables_of(arguments: &Arguments, typed: &[OsString]) -> Vec<(String, OsString)> {
    let short = arguments.variables.iter().map(|word| {
        let name = word.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        ("-x".to_string(), OsStr::from_bytes(name).to_os_string())
    });
    let long = [("--env", &arguments.own), ("--genv", &arguments.global)];
    let long = long.into_iter().flat_map(|(option, words)| {
        let option = written(option, typed);
        words.chunks(2).map(move |pair| (option.clone(), pair[0].clone()))
    });
    short.chain(long).collect()
}

/// Names and values in turn.
fn pairs(option: &'static str, prefix: &str, words: &[OsString]) -> Result<Vec<(OsString, OsString)>, OptionError> {
    let pair = |pair: &[OsString]| {
        let name = [prefix.as_bytes(), pair[0].as_bytes()].concat();
        if pair[0].is_empty() || pair[0].as_bytes().contains(&b'=') {
            return Err(value(option, pair[0].to_string_lossy().into_owned(), "the name of a parameter or variable"));
        }
        Ok((OsString::from_vec(name), pair[1].clone()))
    };
    words.chunks_exact(2).map(pair).collect()
}

/// A long option as its user has written it: perhaps with one dash.
fn as_typed<'a>(option: &'a str, typed: &[OsString]) -> &'a str {
    let stands = |option: &str| typed.iter().any(|word| word.as_encoded_bytes().starts_with(option.as_bytes()));
    option
        .strip_prefix('-')
        .filter(|short| short.starts_with('-') && !stands(option) && stands(short))
        .unwrap_or(option)
}

/// The options that no other program has: `--ft` and all that begin with it.
fn names_of_ftd() -> Vec<String> {
    let command = command();
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    names.filter(|name| *name == "ft" || name.starts_with("ft-")).map(|name| format!("--{name}")).collect()
}

/// A question behind a refusal.
fn near(meant: Option<&str>) -> String {
    meant.map(|meant| format!(" (did you mean {meant}?)")).unwrap_or_default()
}

/// One of the words that an option takes.
fn near_value<'a>(value: &str, expected: &'a str) -> Option<&'a str> {
    let is_word = |word: &&str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_lowercase());
    mpirun::nearest(value, expected.split([' ', ',']).filter(is_word))
}

fn near_mode(error: &ftd_core::policy::ModeError) -> Option<&'static str> {
    match error {
        ftd_core::policy::ModeError::Unknown(word) => mpirun::nearest(word, ["none", "reinit"]),
        ftd_core::policy::ModeError::NotBuilt(_) => None,
    }
}

/// clap does not say which text is not UTF-8.
fn unreadable(error: &clap::Error) -> Option<OptionError> {
    let is_text = |name| std::env::var_os(name).is_none_or(|value| value.to_str().is_some());
    let (.., variable) = VARIABLES.iter().find(|(.., variable)| !is_text(variable))?;
    (error.kind() == ErrorKind::InvalidUtf8).then_some(OptionError::NoText(variable))
}

/// How many words stand behind each option that is written with them.
struct Values(Vec<(String, usize)>);

impl Values {
    fn new() -> Values {
        let mut command = command();
        command.build();
        let mut all = Vec::new();
        for argument in command.get_arguments().filter(|argument| !argument.is_positional()) {
            let count = match argument.get_num_args() {
                Some(range) if argument.get_action().takes_values() && !argument.is_require_equals_set() => {
                    range.min_values()
                }
                _ => 0,
            };
            let long = argument.get_long().into_iter().chain(argument.get_all_aliases().into_iter().flatten());
            all.extend(long.map(|long| (format!("--{long}"), count)));
            let short = argument.get_short_and_visible_aliases().unwrap_or_default();
            all.extend(short.into_iter().map(|short| (format!("-{short}"), count)));
        }
        Values(all)
    }

    fn of(&self, option: &OsStr) -> usize {
        self.0.iter().find(|(name, _)| option == name.as_str()).map_or(0, |(_, count)| *count)
    }
}

/// One of mpirun's long options with two dashes.
fn dashed(word: &OsStr) -> OsString {
    let text = word.as_encoded_bytes();
    // `-n4` and `-xA=b` are short options; `-host` is none, and `-h` least of all.
    let long = matches!(text, b"-xml" | b"-xml-file" | b"-xterm");
    let short = text.len() == 2
        || text.starts_with(b"--")
        || text.starts_with(b"-x") && !long
        || text.starts_with(b"-H")
        || matches!(text, [_, b'n' | b'c', b'=' | b'0'..=b'9', ..]);
    if short { word.to_os_string() } else { [OsStr::new("-"), word].into_iter().collect() }
}

/// Writes mpirun's long options with two dashes, and puts `--` before the program; whether the user did that already.
fn like_mpirun(words: impl IntoIterator<Item = OsString>, values: &Values) -> (Vec<OsString>, bool) {
    let mut words = words.into_iter();
    let mut marked = false;
    let mut rewritten: Vec<OsString> = words.by_ref().take(1).collect();
    while let Some(word) = words.next() {
        let text = word.as_encoded_bytes();
        if !text.starts_with(b"-") || text == b"-" || text == b"--" {
            // From here on all words are the program's.
            marked = text == b"--";
            rewritten.push("--".into());
            rewritten.extend((text != b"--").then_some(word));
            break;
        }
        let word = dashed(&word);
        let follow = values.of(&word);
        rewritten.push(word);
        rewritten.extend(words.by_ref().take(follow));
    }
    rewritten.extend(words);
    (rewritten, marked)
}

/// The option, if there is one, whose value was probably meant as the program: the last word of all, or the one before this unknown option.
fn taken(unknown: Option<&str>, typed: &[OsString]) -> Option<OptionError> {
    let (values, command) = (Values::new(), command());
    let mut words = typed.iter().skip(1).peekable();
    while let Some(word) = words.next() {
        let option = dashed(word);
        let Some(value) = words.by_ref().take(values.of(&option)).last() else { continue };
        let next = words.peek().map(|next| dashed(next).to_string_lossy().into_owned());
        // Of several short ones in a word clap names one.
        let is_next = match (&next, unknown) {
            (Some(next), Some(unknown)) => next.starts_with(unknown),
            (None, None) => true,
            _ => false,
        };
        let argument = command.get_arguments().find(|argument| is_written(argument, &option.to_string_lossy()));
        let Some(argument) = argument.filter(|argument| is_next && is_like_program(value, argument)) else { continue };
        let shape: Vec<String> =
            argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
        let behind = unknown.map(|unknown| format!(": there is no option {} of ftrun's", as_typed(unknown, typed)));
        return Some(OptionError::Taken {
            option: word.to_string_lossy().into_owned(),
            value: value.to_string_lossy().into_owned(),
            shape: shape.join(" "),
            behind: behind.unwrap_or_default(),
        });
    }
    None
}

/// Whether an option is written so, with two dashes where it is a long one.
fn is_written(argument: &clap::Arg, option: &str) -> bool {
    let mut long = argument.get_long().into_iter().chain(argument.get_all_aliases().into_iter().flatten());
    let short = argument.get_short_and_visible_aliases().unwrap_or_default();
    long.any(|long| option == format!("--{long}")) || short.iter().any(|short| option == format!("-{short}"))
}

/// Whether a word is a program, or has a directory where this option has none.
fn is_like_program(word: &OsStr, argument: &clap::Arg) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let is_executable = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let is_path = word.as_bytes().contains(&b'/');
    if is_path {
        let has_paths = matches!(argument.get_value_hint(), ValueHint::FilePath | ValueHint::DirPath);
        return is_executable(Path::new(word)) || !has_paths && !word.as_bytes().contains(&b'=');
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    !word.is_empty() && std::env::split_paths(&path).any(|directory| is_executable(&directory.join(word)))
}

/// What clap says beside its complaint.
fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// clap's complaint in one sentence of one line.
fn sentence(error: &clap::Error, typed: &[OsString]) -> String {
    let context = |kind| context(error, kind);
    let as_people_type = |argument: &str| {
        let (option, value) = argument.split_once(' ').map_or((argument, ""), |(option, value)| (option, value));
        let option = if option == "--np" { "-n" } else { option };
        format!("{} {value}", written(option, typed)).trim_end().to_string()
    };
    let argument = as_people_type(&context(ContextKind::InvalidArg).unwrap_or_default());
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let command = command();
            let names: Vec<String> =
                command.get_arguments().filter_map(|a| Some(format!("--{}", a.get_long()?))).collect();
            let names = names.iter().map(String::as_str).chain(["--help", "--version"]);
            let meant = mpirun::nearest(&argument, names);
            let instead = match mpirun::instead(&argument) {
                Some(words) => format!(": {words}"),
                None => near(meant),
            };
            format!("there is no option {}{instead}", as_typed(&argument, typed))
        }
        ErrorKind::ArgumentConflict => {
            match context(ContextKind::PriorArg).map(|prior| as_people_type(&prior)).filter(|prior| *prior != argument)
            {
                Some(prior) => format!("{argument} does not go together with {prior}"),
                None => format!("{argument} was given twice"),
            }
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_none_or(|v| v.is_empty()) => {
            format!("{argument} needs a value")
        }
        _ => {
            let text = error.render().to_string();
            let lines = text.lines().take_while(|line| !line.trim().is_empty());
            let joined = lines.map(str::trim).collect::<Vec<_>>().join(" ");
            joined.strip_prefix("error: ").unwrap_or(&joined).to_string()
        }
    }
}

fn check(
    arguments: Arguments,
    blamed: &Blamed<'_>,
    programs: Vec<Program>,
    in_step: bool,
) -> Result<Options, OptionError> {
    let all = programs.iter().try_fold(0_u32, |ranks, program| ranks.checked_add(program.ranks));
    let ranks = all.ok_or_else(|| value("-n", "all together".into(), "a number of ranks"))?;
    let per_node = per_node(&arguments)?;
    let label = label(&arguments);
    let binding = if in_step { binding::none() } else { binding(&arguments, ranks)? };
    let timeout = arguments.timeout.as_deref().map(limit).transpose()?;
    let mode = match arguments.mode.as_str() {
        "" => Mode::None,
        text => text.parse().map_err(|error| OptionError::Mode { option: blamed.name("mode"), error })?,
    };
    let max_failures = given(arguments.max_failures)
        .map_or(Ok(MAX_FAILURES), |text| positive(blamed.name("max_failures"), &text, "a number from 1 on"))?;
    let usual = if in_step { STEP_GRACE } else { GRACE };
    let grace = given(arguments.grace).map_or(Ok(usual), |text| time(blamed.name("grace"), &text))?;
    let wait = given(arguments.wait).map_or(Ok(Duration::ZERO), |text| time(blamed.name("wait"), &text))?;
    let oversubscribe = given(arguments.crowd).map_or(Ok(false), |text| yes(blamed.name("crowd"), text))?;
    let recover_aborts = is_second(blamed.name("on_abort"), arguments.on_abort, ["end", "recover"], "end or recover")?;
    let output_all = is_second(blamed.name("output"), arguments.output, ["once", "all"], "once or all")?;
    let mpi = mpi(blamed.name("mpi"), arguments.mpi)?;
    refuse_unbuilt(blamed, &arguments.standby, arguments.degree, arguments.flush)?;
    let copy_rate = given(arguments.copy_rate).map_or(Ok(0), |text| rate(blamed.name("copy_rate"), text))?;
    let heartbeat = given(arguments.heartbeat).map(|text| heartbeat(blamed.name("heartbeat"), &text)).transpose()?;
    let summary = given(arguments.summary).map_or(Ok(false), |text| yes(blamed.name("summary"), text))?;
    let known_ranks = if ranks == 0 { u32::MAX } else { ranks };
    let injections = injections(blamed.name("inject"), arguments.inject, known_ranks)?;
    let hosts = nodes(arguments.hostfile, arguments.hosts)?;
    let spares = spares(blamed, arguments.spares, hosts.is_some() || in_step, mode)?;
    let mut variables = pairs("-genv", "", &arguments.global)?;
    variables.extend(pairs("--mca", "OMPI_MCA_", &arguments.mca)?);
    Ok(Options {
        ranks,
        ranks_of_nodes: arguments.ranks.is_none(),
        programs,
        mode,
        max_failures,
        grace,
        recover_aborts,
        mpi,
        mpi_option: blamed.name("mpi"),
        injections_option: blamed.name("inject"),
        output_once: !output_all,
        label,
        output_name: arguments.output_name,
        timeout,
        verbose: arguments.verbose,
        hosts,
        per_node,
        binding,
        report_bindings: arguments.report_bindings,
        spares,
        wait,
        oversubscribe,
        beyond_slots: binding.oversubscribed,
        copy_rate,
        heartbeat,
        summary,
        injections,
        variables,
        given: Vec::new(),
    })
}

/// What stands before every line.
fn label(arguments: &Arguments) -> Label {
    match (arguments.tag_output, arguments.prepend_rank) {
        (true, _) => Label::Stream,
        (false, true) => Label::Rank,
        (false, false) => Label::None,
    }
}

fn mpi(option: &'static str, text: String) -> Result<&'static str, OptionError> {
    match text.as_str() {
        "auto" | "" => Ok("auto"),
        "openmpi" => Ok("openmpi"),
        "mpich" => Ok("mpich"),
        _ => Err(value(option, text, "auto, openmpi or mpich")),
    }
}

/// Which of two words it is; nothing is the first.
fn is_second(
    option: &'static str,
    text: String,
    words: [&str; 2],
    expected: &'static str,
) -> Result<bool, OptionError> {
    match text.as_str() {
        word if word == words[1] => Ok(true),
        word if word.is_empty() || word == words[0] => Ok(false),
        _ => Err(value(option, text, expected)),
    }
}

/// An option with an empty value (`--ft=$MODE`, where there is no MODE) says nothing, and must not pass for one that was not
/// given: what the user meant is not known.
fn without_value(matches: &ArgMatches, words: &[OsString]) -> Result<(), OptionError> {
    let command = command();
    // The second word of each of these is a value that may be empty.
    const PAIRS: [&str; 3] = ["mca", "global", "own"];
    let own = |argument: &&clap::Arg| !argument.is_positional() && !PAIRS.contains(&argument.get_id().as_str());
    for argument in command.get_arguments().filter(own).filter(|argument| argument.get_action().takes_values()) {
        let id = argument.get_id().as_str();
        let typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        if typed && matches.get_raw(id).into_iter().flatten().any(OsStr::is_empty) {
            let option = word_of(argument, words).unwrap_or_else(|| typed_name(argument));
            let sentence = format!("{option} needs a value, and what it was given is empty");
            return Err(OptionError::CommandLine(sentence));
        }
    }
    Ok(())
}

/// An option as people type it.
fn typed_name(argument: &clap::Arg) -> String {
    match (argument.get_id().as_str(), argument.get_long(), argument.get_short()) {
        ("ranks", ..) => "-n".into(),
        ("per_node", ..) => "-ppn".into(),
        (_, Some(long), _) => format!("--{long}"),
        (_, None, short) => format!("-{}", short.unwrap_or('-')),
    }
}

/// An empty variable of the environment is one that is not set.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn value(option: &'static str, value: String, expected: &'static str) -> OptionError {
    OptionError::Value { option: option.into(), value, expected }
}

fn positive(option: &'static str, text: &str, expected: &'static str) -> Result<u32, OptionError> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(value(option, text.to_string(), expected)),
    }
}

fn refuse_unbuilt(
    blamed: &Blamed<'_>,
    standby: &str,
    degree: Option<String>,
    flush: Option<String>,
) -> Result<(), OptionError> {
    let unbuilt = |option, value, instead| Err(OptionError::NotBuilt { option, value, instead });
    match standby {
        "none" | "" => {}
        "exec" | "init" => {
            return unbuilt(blamed.name("standby"), standby.into(), "this release has --ft-standby=none");
        }
        _ => return Err(value(blamed.name("standby"), standby.into(), "none, exec or init")),
    }
    if let Some(text) = given(degree) {
        match text.trim_end_matches('%').parse::<u32>() {
            Ok(0..=100) => return unbuilt(blamed.name("degree"), text, "this release replicates no ranks"),
            _ => return Err(value(blamed.name("degree"), text, "a percentage from 0 to 100")),
        }
    }
    match given(flush) {
        Some(text) => unbuilt(blamed.name("flush"), text, "this release keeps checkpoints in memory only"),
        None => Ok(()),
    }
}

/// The nodes, from a file or in the command line.
fn nodes(file: Option<PathBuf>, list_of_them: Option<String>) -> Result<Option<Hosts>, OptionError> {
    match file {
        Some(path) => Ok(Some(Hosts::File(path))),
        None => list_of_them.map(list).transpose(),
    }
}

/// The nodes, in the command line.
fn list(text: String) -> Result<Hosts, OptionError> {
    let expected = "a list of nodes such as a,b or a:4,b:4, each perhaps with its number of slots";
    Hosts::list(&text).ok_or_else(|| value("--hosts", text, expected))
}

/// How many nodes are spare.
fn spares(blamed: &Blamed<'_>, text: Option<String>, hosts: bool, mode: Mode) -> Result<u32, OptionError> {
    let Some(text) = given(text) else { return Ok(0) };
    let option = blamed.name("spares");
    let useless = |why| Err(OptionError::Useless { option, value: text.clone(), why });
    match text.parse() {
        Ok(0) => Ok(0),
        Ok(_) if !hosts => {
            useless("one machine has no spare nodes; --hosts names the nodes of a job, the spare ones last")
        }
        Ok(_) if mode == Mode::None => useless("--ft=none recovers nothing, and needs no spare nodes (--ft=reinit)"),
        Ok(spares) => Ok(spares),
        Err(_) => Err(value(option, text, "a number of nodes")),
    }
}

fn yes(option: &'static str, text: String) -> Result<bool, OptionError> {
    match text.as_str() {
        "yes" | "1" => Ok(true),
        "no" | "0" => Ok(false),
        _ => Err(value(option, text, "yes or no")),
    }
}

/// A time of up to a day.
fn time(option: &'static str, text: &str) -> Result<Duration, OptionError> {
    let wrong = || value(option, text.to_string(), "a time of up to a day, for example 10, 500ms or 2m");
    ft_wire::injection::time(text).ok_or_else(wrong)
}

/// How long a job may run: up to a year.
fn limit(text: &str) -> Result<Duration, OptionError> {
    const DAY: u64 = 86_400;
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => DAY,
        _ => 0,
    };
    let time = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    let wrong = || value("--timeout", text.into(), "a time of up to a year, for example 30, 90m, 36h or 3d");
    time.filter(|time| (1..=366 * DAY).contains(time)).map(Duration::from_secs).ok_or_else(wrong)
}

/// Failures that are asked for.
fn injections(option: &'static str, texts: Vec<String>, ranks: u32) -> Result<Vec<Injection>, OptionError> {
    let mut injections = Vec::new();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        let injection = Injection::parse(text).map_err(|error| {
            let value = text.clone();
            OptionError::Injection { option, value, error }
        })?;
        injections.push(injection);
    }
    meets_nobody(&injections, option, ranks).map_or(Ok(injections), Err)
}

/// What is wrong with failures of ranks that there are not.
pub fn meets_nobody(injections: &[Injection], option: &'static str, ranks: u32) -> Option<OptionError> {
    let wrong = injections.iter().find(|injection| injection.rank >= ranks)?;
    Some(OptionError::NoSuchRank { option, value: wrong.to_string(), ranks })
}

/// Bytes a second.
fn rate(option: &'static str, text: String) -> Result<u64, OptionError> {
    ft_sys::rate::read(&text).ok_or_else(|| value(option, text, ft_sys::rate::EXPECTED))
}

/// `PERIOD,TIMEOUT`.
fn heartbeat(option: &'static str, text: &str) -> Result<(Duration, Duration), OptionError> {
    let wrong = |expected| value(option, text.to_string(), expected);
    let shape = "PERIOD,TIMEOUT in milliseconds, for example 100,500";
    let (period, timeout) = text.split_once(',').ok_or_else(|| wrong(shape))?;
    let duration = |part: &str| {
        let part = part.trim();
        let (number, unit) = part.split_at(part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len()));
        let number: u64 = number.parse().map_err(|_| wrong(shape))?;
        match unit {
            "" | "ms" => Ok(Duration::from_millis(number)),
            "s" => Ok(Duration::from_secs(number)),
            _ => Err(wrong(shape)),
        }
    };
    let (period, timeout) = (duration(period)?, duration(timeout)?);
    if period < LEAST_PERIOD {
        return Err(wrong("possible: the period must be at least 10 ms"));
    }
    if timeout < period.saturating_mul(LEAST_PERIODS) {
        return Err(wrong("possible: the time-out must be at least four periods"));
    }
    Ok((period, timeout))
}

/// `VAR` or `VAR=VALUE`.
fn variable(word: OsString) -> Result<(OsString, Option<OsString>), OptionError> {
    let bytes = word.as_bytes();
    let (name, given) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, None),
    };
    if name.is_empty() {
        return Err(value("-x", word.to_string_lossy().into_owned(), "VAR or VAR=VALUE"));
    }
    Ok((OsStr::from_bytes(name).to_os_string(), given))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once("ftrun").chain(line.split_ascii_whitespace()).map(OsString::from).collect()
    }

    #[test]
    fn words_that_are_not_utf8_are_options_too() {
        let words = [b"ftrun".as_slice(), b"--chdir=/\xff", b"-xA=\xfe", b"-wdir=/\xff\n", b"-n", b"2", b"\xff", b"-n"];
        let words = words.map(|word| OsString::from_vec(word.to_vec()));
        assert!(parse(words.clone()).is_err(), "the directory was given twice");
        let words = words.into_iter().enumerate().filter(|(at, _)| *at != 3).map(|(_, word)| word);
        let Ok(Request::Run(options)) = parse(words) else { panic!() };
        let options = &options.programs[0];
        assert_eq!(options.directory.as_ref().unwrap().as_os_str().as_bytes(), b"/\xff");
        assert_eq!(options.variables[0].1.as_ref().unwrap().as_bytes(), b"\xfe");
        assert_eq!(options.command, [OsString::from_vec(b"\xff".to_vec()), "-n".into()]);
    }

    fn run(line: &str) -> Options {
        match parse(words(line)) {
            Ok(Request::Run(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str) -> String {
        let sentence = parse(words(line)).expect_err(line).to_string();
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        sentence
    }

    #[test]
    fn it_feels_like_mpirun() {
        for line in [
            "--n 4 ./app -n 3 --help",
            "-n 4 ./app -n 3 --help",
            "-np 4 ./app -n 3 --help",
            "--np 4 -- ./app -n 3 --help",
        ] {
            let options = run(line);
            assert_eq!((options.ranks, options.mode), (4, Mode::None));
            assert_eq!(options.programs[0].command, ["./app", "-n", "3", "--help"]);
        }
        let options = run("-n 2 -wdir /tmp --tag-output -x A=b=c -x D --oversubscribe -v app -np");
        assert!(options.label == Label::Stream && options.verbose);
        let options = &options.programs[0];
        assert_eq!(options.directory, Some(PathBuf::from("/tmp")));
        assert_eq!(options.variables, [("A".into(), Some("b=c".into())), ("D".into(), None)]);
        assert_eq!(options.command, ["app", "-np"], "the program's words are its own");
        assert_eq!(run("-n 2 -x -np app").programs[0].variables, [("-np".into(), None)], "neither are an option's");
        let options = run("-n2 --mca btl self,sm -mca pml ob1 -xA=b app --mca c d");
        let expected = [("OMPI_MCA_btl", "self,sm"), ("OMPI_MCA_pml", "ob1")];
        assert_eq!(options.variables, expected.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(options.programs[0].variables, [("A".into(), Some("b".into()))]);
        assert_eq!((options.ranks, options.programs[0].command.len()), (2, 4));
    }

    /// The options that `mpirun --help` of Open MPI 4 and 5 and `mpiexec --help` of MPICH (hydra) list.
    const OTHERS: [&str; 3] = [
        "H N V allow-run-as-root am app bind-to bind-to-core bind-to-socket bycore bynode byslot c cartofile cf continuous cpu-list \
         cpu-set cpus-per-proc cpus-per-rank d debug debug-daemons debug-daemons-file debug-devel debugger default-hostfile \
         disable-recovery display-allocation display-devel-allocation display-devel-map display-diffable-map display-map \
         display-topo do-not-launch do-not-resolve dvm enable-instant-on-support enable-recovery fwd-mpirun-port \
         get-stack-traces gmca h help hnp host hostfile index-argv-by-rank launch-agent leave-session-attached machinefile map-by \
         max-restarts max-vm-size mca merge-stderr-to-stdout n nolocal nooversubscribe noprefix novm np npernode npersocket \
         ompi-server output-filename output-proctable oversubscribe path pernode personality ppr prefix preload-binary \
         preload-files q quiet rank-by rankfile report-bindings report-child-jobs-separately report-events report-pid \
         report-state-on-timeout report-uri rf s set-cwd-to-session-dir show-progress stdin tag-output timeout \
         timestamp-output tune tv use-hwthread-cpus use-regexp v verbose version wd wdir x xml xml-file xterm",
        "H N V add-host add-hostfile allow-run-as-root am app app-pmix-prefix append-env append-envar bind-to bind-to-core \
         bind-to-socket c cpu-list cpu-set cpus-per-proc cpus-per-rank debug-daemons debug-daemons-file default-hostfile display \
         display-allocation display-devel-allocation display-devel-map display-map display-topo do-not-launch do-not-resolve dvm \
         enable-prte-prefix-by-default forward-signals get-stack-traces gmca gpmixmca gprtemca gpu-support h help hetero-nodes \
         host hostfile keepalive launch-agent leave-session-attached machinefile map-by max-vm-size mca merge-stderr-to-stdout n \
         no-app-prefix no-ready-msg nolocal nooversubscribe noprefix np npernode npersocket output output-directory \
         output-filename oversubscribe path pernode personality pmix-prefix pmixmca ppr prefix preload-binary preload-files \
         prepend-env prepend-envar prtemca pset rank-by rankfile report-bindings report-child-jobs-separately report-pid \
         report-state-on-timeout report-uri runtime-options s set-cwd-to-session-dir set-env set-sid show-progress singleton \
         spawn-timeout stdin stop-in-app stop-in-init stop-on-exec system-server tag-output timeout timestamp-output tmpdir \
         tune unset-env use-hwthread-cpus v verbose version wd wdir with-ft x xml xterm",
        "bind-to configfile demux disable-auto-cleanup disable-hostname-propagation disable-x enable-x env envall envlist envnone \
         errfile-pattern f genv genvall genvlist genvnone gpus-per-proc hosts hybrid-hosts iface info launcher launcher-exec \
         localhost map-by membind memory-alloc-kinds n nameserver np order-nodes outfile-pattern pmi-port ppn prepend-pattern \
         prepend-rank print-all-exitcodes profile rankmap rmk skip-launch-node topolib usize verbose wdir gtool rr grr",
    ];

    #[test]
    fn every_option_of_the_others_is_served_or_has_a_sentence() {
        let values = Values::new();
        let own = ["h", "help", "V", "version"];
        let mut tried = 0;
        for name in OTHERS.iter().flat_map(|names| names.split_whitespace()) {
            let option = if name.len() == 1 { format!("-{name}") } else { format!("--{name}") };
            let served = own.contains(&name) || values.0.iter().any(|(known, _)| *known == option);
            if !served {
                let sentence = refused(&format!("-n 2 -{name} x app"));
                let wanted = mpirun::instead(name).unwrap_or_else(|| panic!("{name} is neither served nor explained"));
                assert!(sentence.contains(&format!("there is no option -{name}: {wanted}")), "{sentence}");
            }
            tried += 1;
        }
        assert!(tried > 200, "{tried}");
    }

    #[test]
    fn programs_stand_beside_each_other() {
        let options = run("--ft=reinit -genv G 1 -n 1 -x A=1 ./a x : -n 2 -env A 2 -wdir /tmp --mca p q -- ./b : -n 9");
        assert_eq!((options.ranks, options.mode, options.programs.len()), (3, Mode::Reinit, 2));
        assert_eq!(options.programs[1].command, ["./b", ":", "-n", "9"]);
        let options = run("-genv G 1 -n 1 -x A=1 ./a x : -n 2 -env A 2 -wdir /tmp --mca p q ./b : -n 3 ./a -- : y");
        let commands = options.programs.iter().map(|program| (program.ranks, program.command.len()));
        assert_eq!(commands.collect::<Vec<_>>(), [(1, 2), (2, 1), (3, 4)]);
        assert_eq!(options.ranks, 6);
        let own = |number: usize| &options.programs[number];
        assert_eq!(own(0).variables, [("A".into(), Some("1".into()))]);
        assert_eq!(own(1).variables, [("A".into(), Some("2".into()))]);
        assert!(own(2).variables.is_empty() && own(0).directory.is_none());
        assert_eq!(own(1).directory, Some("/tmp".into()));
        assert_eq!(options.variables, [("G".into(), "1".into()), ("OMPI_MCA_p".into(), "q".into())]);
        assert_eq!(run("-n 1 -genv A : b").programs.len(), 1, "a value that is a colon is none");
    }

    #[test]
    fn nodes_say_how_many_ranks_there_are() {
        for (line, ranks) in [
            ("-H a:2,b:3 app", 5),
            ("-H a,b app", 2),
            ("-H a,b:3 -ppn 2 app", 5),
            ("-ppn 3 app", 3),
            ("-H a:4 -n 2 app", 2),
        ] {
            let options = run(line);
            assert_eq!((options.ranks, options.ranks_of_nodes), (ranks, !line.contains("-n ")), "{line}");
        }
        assert!(refused("-H a:4 app : -n 1 b").contains("-n N"));
        assert!(refused("-hostfile /no/such app").contains("the hostfile /no/such: "));
    }

    #[test]
    fn what_others_have_is_understood() {
        let options = run("-n 2 -l -output-filename out/x -timeout 90m --allow-run-as-root -npernode 2 app");
        assert_eq!((options.label, options.per_node), (Label::Rank, Some(2)));
        assert_eq!((options.output_name, options.timeout), (Some("out/x".into()), Some(Duration::from_secs(5400))));
        assert_eq!(run("-n 2 -prepend-rank app").label, Label::Rank);
    }

    #[test]
    fn slurm_says_how_many_ranks_a_step_has() {
        let step = |line: &str| match parse_step(words(line)) {
            Ok(Request::Run(options)) => Ok((options.ranks, options.spares, options.programs.len())),
            Ok(other) => panic!("{line}: {other:?}"),
            Err(error) => Err(error),
        };
        assert_eq!(step("--ft=reinit --ft-spares=1 -- srun -n 4 app : b"), Ok((0, 1, 1)));
        assert_eq!(step("-n3 -- srun app"), Ok((3, 0, 1)));
        assert_eq!(step("-n 1 app : -n 1 b"), Err(OptionError::SeveralInStep));
        assert_eq!(step("--ft=reinit --"), Err(OptionError::NoProgram));
        let Ok(Request::Run(options)) = parse_step(words("-- srun app")) else { panic!() };
        assert_eq!(options.grace, STEP_GRACE);
        assert_eq!(options.binding, binding::none(), "Slurm binds its tasks");
    }

    #[test]
    fn what_follows_two_dashes_is_the_programs() {
        let words_of_its_own =
            "-n 1 app :a --ftx --ft_mode -n 2 :: -h -ft x.tar --ftol=1 -ft=2 --ft:x --FT 3 --FT=2 \u{2014} -ftz reinit";
        for line in ["-n 1 -- app : --ft=reinit", "-n 1 app -- : --ft=reinit", words_of_its_own] {
            assert_eq!(run(line).mode, Mode::None, "{line}");
        }
        assert_eq!(run("-n 1 -- app : --ft=reinit").programs[0].command, ["app", ":", "--ft=reinit"]);
        assert_eq!(run("-n 1 app -- :").programs[0].command, ["app", "--", ":"]);
    }

    #[test]
    fn every_variable_has_its_option() {
        let command = command();
        let mut found: Vec<_> = command
            .get_arguments()
            .filter_map(|a| Some((a.get_id().as_str(), format!("--{}", a.get_long()?), a.get_env()?.to_str()?)))
            .collect();
        found.sort();
        let mut known = VARIABLES.map(|(id, option, variable)| (id, option.to_string(), variable));
        known.sort();
        assert_eq!(found, known);
    }

    #[test]
    fn options_of_ftd() {
        let options = run(
            "-n 2 --ft=reinit --ft-max-failures=3 --ft-on-abort=recover --ft-mpi=mpich --ft-heartbeat=100ms,1s app",
        );
        assert_eq!((options.mode, options.max_failures), (Mode::Reinit, 3));
        assert!(options.recover_aborts);
        assert!(options.once() && !run("-n 2 app").once(), "without recoveries there is nothing to leave out");
        assert!(!run("-n 2 --ft=reinit --ft-output=all app").once());
        assert!(refused("-n 2 --ft-output=twice app").contains("'twice' is not once or all"));
        assert_eq!(options.mpi, "mpich");
        assert_eq!(options.grace, GRACE);
        for (text, ms) in [("0", 0), ("7", 7000), ("250ms", 250), ("2m", 120_000)] {
            assert_eq!(run(&format!("-n 2 --ft-grace {text} app")).grace, Duration::from_millis(ms));
        }
        assert_eq!(run("-n 2 --ft-standby=none --ft-spares=0 app").max_failures, MAX_FAILURES);
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        for (line, word) in [
            ("-n 2 --ft=spare app", "'spare' is not built yet"),
            ("-n 2 --ft=replicate app", "'replicate' is not built yet"),
            ("-n 2 --ft=ulfm app", "'ulfm' is not built yet"),
            ("-n 2 --ft-standby=init app", "--ft-standby=init is not built yet"),
            ("-n 2 --ft-spares=1 app", "--ft-spares=1: one machine has no spare nodes; --hosts names"),
            ("-n 2 --hosts a,b --ft-spares=1 app", "--ft-spares=1: --ft=none recovers nothing"),
            ("-n 2 --ft-degree=50 app", "--ft-degree=50 is not built yet"),
            ("-n 2 --ft-flush=/scratch app", "--ft-flush=/scratch is not built yet"),
        ] {
            assert!(refused(line).contains(word), "{}", refused(line));
        }
    }

    #[test]
    fn what_is_wrong_is_named_in_one_sentence() {
        for (line, word) in [
            ("app", "-n N"),
            ("-n 0 app", "'0'"),
            ("-n -3 app", "'-3'"),
            ("-n many app", "'many'"),
            ("-n 99999999999 app", "'99999999999'"),
            ("-n 2", "no program"),
            ("-n", "-n <N> needs a value"),
            ("-n 2 -n 3 app", "twice"),
            ("-n 2 --ft=wonder app", "'wonder'"),
            ("-n 2 --ft-nothing app", "--ft-nothing"),
            ("-n 2 --ft-grce=3 app", "--ft-grce (did you mean --ft-grace?)"),
            ("-n 2 --ftgrace 3 app", "(did you mean --ft-grace?)"),
            ("--hlep", "(did you mean --help?)"),
            ("-n 2 --tag-ouput app", "(did you mean --tag-output?)"),
            ("-n 2 --ft=reinti app", "'reinti' is no mode: choose none or reinit (did you mean reinit?)"),
            ("-n 2 --ft=Reinit app", "(did you mean reinit?)"),
            ("-n 2 --ft-mpi=openmp app", "(did you mean openmpi?)"),
            ("-n 2 --ft-on-abort=recove app", "(did you mean recover?)"),
            ("app -n 4", "-n stands after the program app"),
            ("app -np 4", "-np stands after the program app"),
            ("app -n4 --ft=reinit", "-n4 stands after the program app"),
            ("-n 2 app --ft-grce=3", "--ft-grce=3 stands after the program app"),
            ("-n 2 -q app", "-q"),
            ("-n 2 --timeout 0 app", "'0' is not a time"),
            ("-n 2 --timeout 3w app", "'3w' is not a time"),
            ("-n 2 -l --tag-output app", "--tag-output"),
            ("-n 2 --output-filenam x app", "(did you mean --output-filename?)"),
            ("-n 2 app --ft=reinit", "--ft=reinit stands after the program app"),
            ("-n 2 app -ft=reinit", "-ft=reinit stands after the program app"),
            ("-n 2 app --ftmode=reinit", "--ftmode=reinit stands after the program app"),
            ("-n 2 app --ft:spare", "--ft:spare stands after the program app"),
            ("-n 2 app -ft-grace=3", "-ft-grace=3 stands after the program app"),
            ("-n 2 app x --ft reinit", "--ft stands after"),
            ("-n 2 app --ft-max-failures 3", "write -- before the program"),
            ("-n 2 --ft-max-failures=few app", "'few'"),
            ("-n 2 --ft-max-failures=0 app", "'0'"),
            ("-n 2 --ft-on-abort=maybe app", "'maybe'"),
            ("-n 2 --ft-grace=soon app", "'soon'"),
            ("-n 2 --ft-grace=-1 app", "'-1'"),
            ("-n 2 --ft-grace=99999999999999999999h app", "a day"),
            ("-n 2 --ft-grace=25h app", "a day"),
            ("-n 2 --ft-mpi=lam app", "'lam'"),
            ("-n 2 --ft-standby=sit app", "'sit'"),
            ("-n 2 --ft-degree=101 app", "'101'"),
            ("-n 2 --ft-heartbeat=100 app", "'100'"),
            ("-n 2 --ft-heartbeat=100,399 app", "four periods"),
            ("-n 2 --ft-heartbeat=1,200 app", "10 ms"),
            ("-n 2 --ft-heartbeat=1x,200 app", "'1x,200'"),
            ("-n 2 -x =b app", "'=b'"),
        ] {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn an_option_is_named_as_it_was_typed() {
        for (line, word) in [
            ("-np 0 app", "-np: '0' is not a number"),
            ("--np=0 app", "--np: '0'"),
            ("-c 0 app", "-c: '0'"),
            ("-n0 app", "-n: '0'"),
            ("-np", "-np <N> needs a value"),
            ("-np 2 -np 3 app", "-np <N> was given twice"),
            ("-n 2 -genv A=b c app", "-genv: 'A=b'"),
            ("-n 2 --genv A=b c app", "--genv: 'A=b'"),
            ("-n 2 -env A=b c app", "-env: 'A=b'"),
            ("-n 1 app : -n 1 -env A=b c app", "-env: 'A=b'"),
            ("-n 2 -mca A=b c app", "-mca: 'A=b'"),
            ("-n 2 -npernode 0 app", "-npernode: '0'"),
            ("-n 2 --perhost 0 app", "--perhost: '0'"),
            ("-n 2 -H a,,b app", "-H: 'a,,b' is not a list"),
            ("-n 2 -Ha,,b app", "-H: 'a,,b' is not a list"),
            ("-n 2 -host a,,b app", "-host: 'a,,b' is not a list"),
            ("-n 2 -cpus-per-proc 0 app", "-cpus-per-proc: '0'"),
            ("-n 2 -timeout 0 app", "-timeout: '0'"),
            ("-n 2 -host a -hostfile b app", "-host"),
            ("-n 2 -wdir= app", "-wdir <DIR> needs a value"),
            ("-n 2 -ft-grace=soon app", "-ft-grace: 'soon'"),
        ] {
            assert!(refused(line).starts_with(word), "{line}: {}", refused(line));
        }
        let given = |line: &str| -> Vec<String> {
            run(line).given.iter().map(|(option, name)| format!("{option} {}", name.to_string_lossy())).collect()
        };
        let several = "-n 1 -x A=1 -env B 2 --genv C 3 --mca btl self app : -n 1 -xD --env E 5 app";
        assert_eq!(given(several), ["-x A", "-env B", "--genv C", "-x D", "--env E"]);
        assert_eq!(given("-n 1 -genv PMI_RANK x app"), ["-genv PMI_RANK"]);
    }

    #[test]
    fn ranks_beyond_the_slots_are_allowed_in_either_way() {
        for (option, may) in [
            ("", false),
            ("--oversubscribe", true),
            ("--map-by :OVERSUBSCRIBE", true),
            ("--map-by core:PE=1:oversubscribe", true),
            ("--bind-to core --map-by slot:OVERSUBSCRIBE", true),
            ("--map-by slot", false),
        ] {
            assert_eq!(run(&format!("-n 2 -H localhost:1 {option} app")).beyond_slots, may, "{option}");
        }
    }

    #[test]
    fn options_of_other_launchers_are_answered_in_one_sentence() {
        for (line, word) in [
            ("-n 2 -machine here app", "no option -machine: the nodes are --hosts"),
            ("-n 2 --no-oversubscribe app", "no option --no-oversubscribe: more ranks than cores are always allowed"),
            ("-n 2 -xterm 1 app", "no option -xterm: name the tool before the program"),
            ("-n 2 -merge-stderr-to-stdout app", "no option -merge-stderr-to-stdout: write 2>&1"),
            ("-n 2 -genvnone app", "no option -genvnone: the ranks have the whole environment: env -u"),
            ("-n 2 -nolocal app", "no option -nolocal: ftrun starts all ranks on this machine, or on the nodes"),
            ("-n 4 -N 2 app", "no option -N: say with -n"),
            ("-n 4 -ppn 0 app", "-ppn: '0'"),
            ("-n 2 -genv A=b c app", "-genv: 'A=b'"),
            ("-n 2 -genvv A b app", "(did you mean --genv?)"),
            ("-n 2 --mca btl", "--mca"),
        ] {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn what_is_wrong_with_several_programs_and_bindings_is_named() {
        for (line, word) in [
            ("-n 2 --app file", "with : between"),
            ("-n 1 app a : b", "':' after app begins another program, and nothing says how many ranks"),
            ("-n 1 app a :", "':' after app begins another program, and there is none"),
            ("-n 1 app a : -n 2", "':' after app begins another program, and there is none"),
            ("-n 1 app : -n 0 b", "'0'"),
            ("-n 1 : -n 1 app", "no program"),
            ("-n 1 app : -n 1 --ft=reinit b", "--ft is for the whole job"),
            ("-n 1 app : -n 1 -genv A b c", "-genv is for the whole job"),
            ("-n 1 app : -n 1 --genv A b c", "--genv is for the whole job"),
            ("-n 1 app : -l -n 1 b", "-l is for the whole job"),
            ("-n 1 app : -n 1 -H a b", "-H is for the whole job"),
            ("-n 1 app : -n 1 -Ha:2 b", "-H is for the whole job"),
            ("-n 1 app : -n 1 -host=a b", "-host is for the whole job"),
            ("-n 1 app : -n 1 b --ft=reinit", "--ft=reinit stands after the program b"),
            ("-n 1 app : -n 1 -nosuch b", "no option -nosuch"),
            ("-n 2 --bind-to hwthread app", "--bind-to: 'hwthread' is not served: ranks have whole cores"),
            ("-n 2 -bind-to thread app", "-bind-to: 'thread' is not served: ranks have whole cores"),
            ("-n 2 --bind-to nothing app", "--bind-to: 'nothing' is not none, core, numa or socket"),
            ("-n 2 --bind-to soket app", "(did you mean socket?)"),
            (
                "-n 2 --map-by ppr:2:node app",
                "--map-by: 'ppr:2:node' is not served: how many ranks a node has is -ppn N",
            ),
            ("-n 2 --map-by cores:2 app", "--map-by: 'cores:2' is not core, slot, numa or socket"),
            ("-n 2 --cpus-per-rank 0 app", "--cpus-per-rank: '0'"),
            ("-n 2 --map-by slot:PE=1 --bind-to none app", "leave out --bind-to none"),
            ("-n 2 --map-by core:PE=2 app", "--map-by slot:PE=2"),
            ("-n 2 --rank-by core app", "no option --rank-by: the order of the ranks is --map-by's"),
            ("-n 2 --bind-to-core app", "no option --bind-to-core: say --bind-to"),
        ] {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn an_injection_is_about_a_rank_a_time_and_a_place_that_there_are() {
        for (line, word) in [
            ("-n 2 --ft-inject=rank=2 app", "'rank=2' is not about a rank of this job: they are 0 to 1"),
            ("-n 1 --ft-inject=rank=2 app", "'rank=2' is not about a rank of this job: its only one is 0"),
            ("-n 2 --ft-inject=rank=1,after=x app", "'rank=1,after=x': after='x' is not a time"),
            ("-n 2 --ft-inject=rank=1,at=x app", "at='x' is no place; there are client.copying"),
        ] {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn a_program_that_an_option_has_taken_is_named() {
        for (line, word) in [
            (
                "-n 4 -x ./heat -s 20",
                "-x has taken './heat' as its value (VAR[=VALUE]); if that is the program, write a value before it: there is no option -s",
            ),
            ("-n 4 -x sh -e exit", "-x has taken 'sh' as its value"),
            (
                "-n 4 --env A ./heat -steps 2",
                "--env has taken './heat' as its value (VAR VALUE); if that is the program, write a value before it: there is no option -steps",
            ),
            ("-n 4 -wdir /bin/sh -s", "-wdir has taken '/bin/sh' as its value (DIR)"),
            (
                "-n 4 -x ./heat",
                "-x has taken './heat' as its value (VAR[=VALUE]); if that is the program, write a value before it",
            ),
            ("-n 4 -x A -s 20 ./heat", "there is no option -s"),
            ("-n 4 -x A=/b -s 20 ./heat", "there is no option -s"),
            ("-n 4 --chdir /tmp -s 20 ./heat", "there is no option -s"),
            ("-n 4 --chdir /tmp", "there is no program to start"),
        ] {
            assert!(refused(line).starts_with(word), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn spare_nodes_are_a_number_and_a_wait_is_a_time() {
        for (line, word) in [
            ("-n 2 --ft-spares=few app", "'few'"),
            ("-n 2 --ft-spares=-1 app", "'-1'"),
            ("-n 2 --ft-wait=noon app", "'noon'"),
            ("-n 2 --ft-wait=25h app", "a day"),
        ] {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
        assert!(refused("-n 2 --ft-oversubscribe=maybe app").contains("'maybe' is not yes or no"));
        for (option, says) in [("", false), ("--ft-oversubscribe", true), ("--ft-oversubscribe=no", false)] {
            let options = run(&format!("-n 2 --hosts a,b {option} app"));
            assert_eq!((options.oversubscribe, options.programs[0].command.len()), (says, 1));
        }
        let options = run("-n 2 --ft=reinit --hosts a,b,c --ft-spares 1 --ft-wait 2m app");
        assert_eq!((options.spares, options.wait), (1, Duration::from_secs(120)));
    }

    #[test]
    fn a_rate_is_a_number_with_a_unit() {
        for (option, rate) in [("", 0), ("--ft-copy-rate 200M", 200 << 20), ("--ft-copy-rate=0", 0)] {
            assert_eq!(run(&format!("-n 2 {option} app")).copy_rate, rate);
        }
        let whole = "'fast' is not a rate from 64K bytes a second on, for example 200M or 1G (0: no limit)";
        for (value, word) in [("=fast", whole), ("=200", "'200' is not a rate"), (" -1", "'-1' is not a rate")] {
            let line = format!("-n 2 --ft-copy-rate{value} app");
            assert!(refused(&line).contains(word), "{line}: {}", refused(&line));
        }
    }

    #[test]
    fn nodes_are_a_list_or_a_file() {
        assert!(refused("-n 2 --hosts a,,b app").contains("'a,,b' is not a list of nodes"));
        assert!(refused("-n 2 --hosts a --hostfile b app").contains("--hosts"));
        for line in ["-n 2 --hosts a:2,b app", "-n 2 -H a:2,b app", "-n 2 -H=a:2,b app", "-n 2 -host a:2,b app"] {
            let Ok(Request::Run(options)) = parse(words(line)) else { panic!("{line}") };
            assert_eq!(options.hosts, Hosts::list("a:2,b"), "{line}");
        }
        let Ok(Request::Run(options)) = parse(words("-n 2 -hostfile nodes app")) else { panic!() };
        assert_eq!(options.hosts, Some(Hosts::File("nodes".into())));
    }

    #[test]
    fn a_mode_behind_the_program_is_noticed_however_it_is_written() {
        for (line, word) in [
            ("-n 2 app 20 1 -ft reinit", "-ft stands after the program app"),
            ("-n 2 app --FT=reinit", "--FT=reinit stands after the program app"),
            ("-n 2 app --FT Reinit", "--FT stands after the program app"),
            ("-n 2 app --FT-Grace=3", "--FT-Grace=3 stands after the program app"),
            ("-n 2 app \u{2014}ft=reinit", "\u{2014}ft=reinit stands after the program app"),
            ("-n 2 app \u{2013}ft-grace=3", "\u{2013}ft-grace=3 stands after the program app"),
            ("-n 2 app -\u{2013}ft reinit", "ft stands after the program app"),
            ("-n 2 app \u{2212}\u{2212}ft", "ft stands after the program app"),
            ("-n 2 \u{2014}ft=reinit app", "\u{2014}ft=reinit begins with a dash that is none of the keyboard's"),
        ] {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn an_option_with_an_empty_value_is_not_one_that_was_not_given() {
        let command = command();
        let mut tried = 0;
        for argument in command.get_arguments().filter(|a| !a.is_positional() && a.get_action().takes_values()) {
            let spellings = argument.get_long_and_visible_aliases().unwrap_or_default().into_iter();
            let spellings = spellings.map(|long| format!("--{long}"));
            let spellings = spellings.chain(argument.get_short().map(|short| format!("-{short}")));
            for option in spellings {
                let mut lines = vec![vec!["ftrun", "-n", "1", &option, "", "app"]];
                let joined = format!("{option}=");
                match option.as_str() {
                    "--mca" | "--genv" | "--env" => lines = vec![vec!["ftrun", "-n", "1", &option, "", "value", "app"]],
                    // `-n=3` is a number, as `-n3` is.
                    "--np" | "-n" => lines = vec![vec!["ftrun", &option, "", "app"], vec!["ftrun", &joined, "app"]],
                    "-x" => {}
                    // What stands behind it is the program.
                    "--ft-oversubscribe" | "--ft-summary" => lines[0] = vec!["ftrun", "-n", "1", &joined, "app"],
                    _ => lines.push(vec!["ftrun", "-n", "1", &joined, "app"]),
                }
                for line in lines {
                    let sentence = parse(line.iter().map(OsString::from)).expect_err(&format!("{line:?}")).to_string();
                    assert!(sentence.starts_with(&option), "{line:?}: {sentence}");
                    tried += 1;
                }
            }
        }
        assert!(tried > 25, "{tried}");
    }

    #[test]
    fn help_and_version_are_texts() {
        let Ok(Request::Print(help)) = parse(words("--help")) else { panic!("no help") };
        for option in ["--ft-max-failures", "FT_MODE", "--chdir", "-x", "--np"] {
            assert!(help.contains(option), "{option} is not in the help:\n{help}");
        }
        for argument in command().get_arguments().filter(|a| a.get_long().is_some() && a.get_action().takes_values()) {
            let said = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let in_pairs = ["mca", "global", "own"].contains(&argument.get_id().as_str());
            let known = said.contains("default") || !argument.get_default_values().is_empty() || in_pairs;
            assert!(known, "{}: no default in the help", argument.get_id());
        }
        assert!(matches!(parse(words("--version")), Ok(Request::Print(text)) if text.starts_with("ftrun ")));
    }

    #[test]
    fn the_completions_are_those_of_these_options() {
        crate::completion::compare(&command(), "ftrun");
    }

    #[test]
    fn the_man_page_has_every_option_and_variable() {
        let page = include_str!("../../../docs/man/ftrun.1").replace("\\-", "-").replace("\\fR", " ");
        let words: Vec<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).collect();
        let mut command = command();
        command.build();
        for argument in command.get_arguments().filter(|argument| !argument.is_positional()) {
            let mut names: Vec<String> = argument.get_long().map(|long| format!("--{long}")).into_iter().collect();
            names.extend(argument.get_short().map(|short| format!("-{short}")));
            names.extend(argument.get_env().map(|name| name.to_string_lossy().into_owned()));
            for name in names {
                assert!(words.contains(&name.as_str()), "{name} is not in docs/man/ftrun.1");
            }
        }
    }
}
