//! What users of mpirun type that means something else here, and what to type instead.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

const HERE: &str = "ftrun starts all ranks on this machine, or on the nodes that --hosts names: leave it out";
const NODES: &str = "the nodes are --hosts NODE:SLOTS,... or --hostfile FILE";
const FILLED: &str = "the ranks fill the nodes in the order of --hosts, and NODE:SLOTS says how many each has";
const EACH: &str = "say with -n how many ranks, and with -ppn how many on each node";
const DAEMONS: &str = "it is about daemons of mpirun's own, and ftrun starts none of them: leave it out";
const BOUND: &str = "say --bind-to core, numa, socket or none, and --map-by or --cpus-per-rank";
const ORDER: &str = "the order of the ranks is --map-by's";
/// Who looks for processors of their own choosing.
pub const WITHIN: &str = "ftrun uses the processors that it was started on: put taskset or numactl before ftrun";
/// Who wants more ranks than cores.
pub const BEYOND: &str = "more ranks than cores are always allowed: leave it out";
const ONE: &str = "name the programs in the command line, with : between them (-n 1 ./a : -n 2 ./b)";
const SILENT: &str = "ftrun says nothing of the kind by itself: leave it out";
const SAID: &str = "what is started and where is said with -v, and the processors with --report-bindings";
const SHOWN: &str = "ftctl jobs lists the running jobs, and ftctl show the pids of their ranks";
const STACKS: &str =
    "--timeout ends the job and no more; of a rank whose pid ftctl show says, gdb -p PID shows the stack";
const TOOL: &str = "name the tool before the program (ftrun -n 4 TOOL ./app)";
const THERE: &str = "the program and its files have to be on every node, under the same paths";
const WHOLE: &str = "the ranks have the whole environment anyway: leave it out";
const UNSET: &str = "the ranks have the whole environment: env -u NAME before ftrun takes a variable away";
const VARIABLE: &str = "a variable for the ranks is -x NAME=VALUE";
const PARAMETER: &str = "a parameter of Open MPI's is --mca NAME VALUE";
const LABEL: &str = "the rank before every line is -l, rank and stream --tag-output";
const FILES: &str = "files of the ranks' output are --output-filename NAME";
const LOG: &str = "FT_LOG=debug in ftrun's environment has ftd log what it does";

/// Options of mpirun's and mpiexec's that ftrun has not, and what is meant instead.
const WORDS: &[(&[&str], &str)] = &[
    (&["default-hostfile", "machine", "f", "add-host", "add-hostfile", "hosts-group"], NODES),
    (&["nolocal", "launcher", "launcher-exec", "bootstrap", "iface", "rmk", "localhost"], HERE),
    (&["prefix", "noprefix", "pmix-prefix", "app-pmix-prefix", "no-app-prefix", "skip-launch-node"], HERE),
    (&["rankfile", "rf", "rankmap", "rr", "grr", "order-nodes"], FILLED),
    (&["hybrid-hosts", "preload-binary", "preload-files", "set-cwd-to-session-dir"], THERE),
    (&["N", "pernode", "npersocket", "persocket", "ppr", "usize"], EACH),
    (&["dvm", "hnp", "novm", "max-vm-size", "fwd-mpirun-port", "ompi-server", "nameserver", "system-server"], DAEMONS),
    (
        &["launch-agent", "use-regexp", "enable-instant-on-support", "do-not-resolve", "hetero-nodes", "set-sid"],
        DAEMONS,
    ),
    (&["keepalive", "no-ready-msg", "singleton", "enable-prte-prefix-by-default", "topolib", "demux"], DAEMONS),
    (&["pmi-port", "enable-x", "disable-x", "disable-hostname-propagation", "report-child-jobs-separately"], DAEMONS),
    (&["bind-to-core", "bind-to-socket", "bind-to-none", "bind-to-numa", "cpu-bind"], BOUND),
    (&["bynode"], FILLED),
    (&["bycore", "byslot", "bysocket"], BOUND),
    (&["rank-by"], ORDER),
    (&["cpu-list", "cpu-set", "cartofile", "cf"], WITHIN),
    (&["membind"], "put numactl before the program (ftrun -n 4 numactl --localalloc ./app)"),
    (&["gpus-per-proc"], "a wrapper before the program can choose the GPU, by FT_LOCAL_RANK"),
    (&["display-map", "display-allocation", "display", "display-devel-map", "display-devel-allocation"], SAID),
    (&["display-diffable-map", "display-topo", "print-rank-map"], SAID),
    (&["q", "quiet", "show-progress", "report-events", "info", "profile", "prot", "silent-abort"], SILENT),
    (&["print-all-exitcodes"], "which rank ended the job, and how, is said anyway: leave it out"),
    (&["report-uri", "report-pid", "output-proctable"], SHOWN),
    (&["get-stack-traces", "report-state-on-timeout"], STACKS),
    (&["xterm", "tv", "debugger", "gdb", "gdb-args", "gtool", "gtoolfile", "aps", "mps"], TOOL),
    (&["stop-on-exec", "stop-in-init", "stop-in-app"], TOOL),
    (&["d", "debug", "debug-devel", "debug-daemons", "debug-daemons-file", "leave-session-attached"], LOG),
    (&["use-hwthread-cpus", "nooversubscribe", "no-oversubscribe", "map-to"], BEYOND),
    (&["E", "set-env", "append-env", "append-envar", "prepend-env", "prepend-envar", "memory-alloc-kinds"], VARIABLE),
    (&["genvall", "envall", "genvlist", "envlist"], WHOLE),
    (&["genvnone", "envnone", "unset-env"], UNSET),
    (&["gmca", "gpmixmca", "gprtemca", "omca", "pmixmca", "prtemca", "am", "tune", "gpu-support"], PARAMETER),
    (&["timestamp-output", "prepend-pattern", "prepend-timestamp"], LABEL),
    (&["output", "output-directory", "outfile-pattern", "errfile-pattern", "xml", "xml-file"], FILES),
    (&["merge-stderr-to-stdout"], "write 2>&1 behind the command line"),
    (&["s", "stdin"], "standard input goes to rank 0"),
    (&["app", "configfile"], ONE),
    (&["index-argv-by-rank"], "a wrapper before the program can choose the arguments, by FT_RANK"),
    (&["do-not-launch"], "there is no trial without a job: true in the program's place shows whether one starts"),
    (&["path"], "name the program with its directory, or set PATH"),
    (&["personality"], "the MPI is found out; where it cannot be, --ft-mpi says which it is"),
    (&["tmpdir"], "FT_MEMORY_DIR in ftrun's environment says where the job's directory is"),
    (&["forward-signals"], "signals that are sent to ftrun reach the ranks anyway: leave it out"),
    (&["spawn-timeout"], "a limit for the whole job is --timeout TIME"),
    (&["pset", "runtime-options"], "ftrun has one set of ranks, and what is to happen at a failure is said with --ft"),
    (&["max-restarts"], "how many deaths without progress end the job is --ft-max-failures N"),
    (&["enable-recovery", "with-ft", "recovery"], "to survive failures is --ft=reinit"),
    (&["continuous"], "to go on after an exit with an error is --ft=reinit with --ft-on-abort=recover"),
    (&["disable-recovery", "disable-auto-cleanup"], "without --ft=reinit nothing is recovered: leave it out"),
];

/// What to do instead of an option that ftrun has not, if mpirun has it. `option` is with its dashes.
pub fn instead(option: &str) -> Option<&'static str> {
    let name = option.trim_start_matches('-');
    WORDS.iter().find(|(names, _)| names.contains(&name)).map(|(_, sentence)| *sentence)
}

/// What of these was probably meant by a word that is none of them: the one with the fewest slips of a finger between.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips = |known: &str| strsim::osa_distance(&word.to_lowercase(), known);
    let near = known.into_iter().map(|known| (slips(known), known));
    near.filter(|(slips, known)| *slips <= known.trim_start_matches('-').len().min(9) / 3).min().map(|(_, known)| known)
}

/// Why words of the program are probably not meant for it; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// An option in the place of the program.
    #[error(
        "{0} begins with a dash that is none of the keyboard's, as in a text that was typeset: options begin with - or --; if it \
         is the program, write ./ before it"
    )]
    Dash(String),
    /// An option of ftd's after the program.
    #[error(
        "{option} stands after the program {program} and would be an argument of its: options of ftrun go before the \
         program; if it is meant for the program, write -- before the program"
    )]
    Option {
        /// The option, as typed.
        option: String,
        /// The program.
        program: String,
    },
}

/// What `--ft` takes, today or one day.
const MODES: [&str; 5] = ["none", "reinit", "spare", "replicate", "ulfm"];

/// Dashes that a text has where `-` or `--` was meant: hyphens, en dash, em dash, minus.
const DASHES: [char; 6] = ['\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}'];

/// An option's name in small letters, without its dashes, and whether one of these is such as nobody has on a keyboard.
fn option_name(word: &str) -> Option<(String, bool)> {
    let name = word.trim_start_matches(|letter| letter == '-' || DASHES.contains(&letter));
    let dashes = &word[..word.len() - name.len()];
    (!dashes.is_empty()).then(|| (name.to_lowercase(), dashes.contains(DASHES)))
}

/// Whether a word looks like `--ft=reinit`, or with the next one like `--ft reinit`, however it is written: an option that begins with
/// `ft` and has the name of a mode behind it is nobody else's.
fn chooses_mode(word: &str, next: &str) -> bool {
    let is_mode = |value: &str| MODES.contains(&value.to_lowercase().as_str());
    option_name(word).is_some_and(|(option, _)| match option.split_once(['=', ':']) {
        Some((name, value)) => name.starts_with("ft") && is_mode(value),
        None => matches!(option.as_str(), "ft" | "ftmode" | "ft-mode" | "ft_mode") && is_mode(next),
    })
}

/// Whether a word is one of these options, but for capitals (`--FT-GRACE=3`) or for dashes that were pasted.
fn is_disguised(word: &str, own: &[String]) -> bool {
    let Some((option, pasted)) = option_name(word) else { return false };
    let name = option.split('=').next().unwrap_or_default();
    (pasted || name.starts_with("ft-")) && own.iter().any(|own| own.strip_prefix("--") == Some(name))
}

/// Looks for words among the program's that ftrun was to read: options whose names (`own`), or nearly these, nobody
/// else has, and a number of ranks when there is none yet (`no_ranks`). Not beyond a `--`.
pub fn misplaced(command: &[OsString], own: &[String], no_ranks: bool) -> Option<Misplaced> {
    let (program, arguments) = command.split_first()?;
    let program = program.to_string_lossy().into_owned();
    if option_name(&program).is_some_and(|(name, pasted)| pasted && name.starts_with(char::is_alphabetic)) {
        return Some(Misplaced::Dash(program));
    }
    let arguments: Vec<_> = arguments.iter().take_while(|word| *word != OsStr::new("--")).collect();
    for (at, word) in arguments.iter().enumerate() {
        let name = word.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        let is_own =
            |own: &String| own.as_bytes() == name || own.len() > "--ft".len() && own.as_bytes().get(1..) == Some(name);
        let ranks = no_ranks && matches!(name, b"-n" | b"--n" | b"-np" | b"--np" | [b'-', b'n', b'0'..=b'9', ..]);
        let misspelt = || {
            name.starts_with(b"--ft-")
                && nearest(&String::from_utf8_lossy(name), own.iter().map(String::as_str)).is_some()
        };
        let (text, next) = (word.to_string_lossy(), arguments.get(at + 1).map(|next| next.to_string_lossy()));
        let mode = || chooses_mode(&text, &next.unwrap_or_default());
        if ranks || own.iter().any(is_own) || misspelt() || is_disguised(&text, own) || mode() {
            return Some(Misplaced::Option { option: text.clone().into_owned(), program });
        }
    }
    None
}
