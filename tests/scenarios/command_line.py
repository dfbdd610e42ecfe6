"""The command line, the environment variables and the installation, as a new user meets them."""

import os
import re
import shutil
import signal
import time

from harness.job import check
from harness.registry import scenario

# --- building and starting from an empty shell ---------------------------------------------------------------------

README_PROGRAM = r"""
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static void compute(double *field, int step) { for (int i = 0; i < 100; i++) field[i] = field[i] * 1.5 + step; }
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int state, step = 0, steps = 300;
    size_t cells = 100;
    uint64_t version;
    double *field = calloc(cells, sizeof *field);
%s
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) printf("result %%.17g\n", field[99]);
    MPI_Finalize();
}
"""


def code_of(text, start):
    """The indented lines of a document that begin with that word."""
    found = re.findall(rf"^    ({start}.*)$", text, re.M)
    check(found, f"no line begins with '{start}'")
    return found


@scenario("readme-build")
def readme_build(context):
    """The README's lines, typed into an empty shell, with a prefix of one's own: its export line, its program, its build line;
    and the lines of the guide and of the examples."""
    readme = (context.scratch / "src/README.md").read_text()
    doc = context.prefix / "share/doc/ftd"
    guide = (doc / "guide.md").read_text()
    (export,) = code_of(readme, "export ")
    (build,) = code_of(readme, "mpicc ")
    snippet = re.search(r"```c\n#include <ft.h>\n(.*?)```", readme, re.S)[1]
    (context.work / "app.c").write_text("#include <ft.h>\n" + README_PROGRAM % snippet)
    shutil.copy(doc / "examples/heat2d/heat2d.f90", context.work / "app.f90")
    (fortran,) = code_of(guide, "mpif90 -o app \\$\\(")
    examples = [line for line in (doc / "examples/README.md").read_text().splitlines() if line.startswith("    mpi")]
    check(len(examples) == 6, f"{examples}")
    script = "\n".join([
        "set -e", export.replace("/opt/ftd", str(context.prefix)), build, "ftrun -n 2 --ft=reinit ./app",
        *(["mkdir fortran; cd fortran; cp ../app.f90 .", fortran, "ftrun -n 2 --ft=reinit ./app -s 20 -g 32; cd .."]),
        f"cp -r {doc}/examples . && cd examples", *examples, "ftrun -n 2 ./heat -s 20 -g 32",
        "if command -v man > /dev/null; then man -w ftrun; man -w ft; fi",
    ])
    job = context.start(["/usr/bin/env", "-i", "/bin/bash", "--noprofile", "--norc", "-c", script])
    job.expect(0)
    check(len(job.output.results) == 3, job.output.text)
    if shutil.which("man"):
        check(job.output.text.count(f"{context.prefix}/share/man/") == 2, f"man does not find the pages: {job.output.text}")


# --- words after the program ---------------------------------------------------------------------------------------

MISPLACED = {
    "colon": (["-n", "1", "./a", ":", "./b"], ["':' after ./a begins another program", "-n N", "write --"]),
    "of-the-job": (["-n", "1", "./a", ":", "-n", "1", "--ft=reinit", "./b"], ["--ft is for the whole job", "before the first program"]),
    "option": (["-n", "2", "echo", "--ft=reinit"], ["--ft=reinit", "after the program echo", "--"]),
    "option-with-value": (["-n", "2", "echo", "x", "--ft-max-failures", "3"], ["--ft-max-failures", "after the program echo"]),
    "mode-one-dash": (["-n", "2", "echo", "-ft=reinit"], ["-ft=reinit", "after the program echo"]),
    "mode-two-words": (["-n", "2", "echo", "20", "1", "-ft", "reinit"], ["-ft stands after the program echo"]),
    "mode-capitals": (["-n", "2", "echo", "--FT=reinit"], ["--FT=reinit", "after the program echo"]),
    "mode-long-dash": (["-n", "2", "echo", "\u2014ft=reinit"], ["\u2014ft=reinit", "after the program echo"]),
    "long-dash-first": (["-n", "2", "\u2014ft=reinit", "echo"], ["\u2014ft=reinit begins with a dash", "--"]),
    "machine": (["-n", "2", "-machine", "other", "echo"], ["option -machine", "--hosts"]),
    "each": (["-n", "2", "-N", "1", "echo"], ["option -N", "-ppn"]),
    "ppr": (["-n", "2", "--map-by", "ppr:2:node", "echo"], ["--map-by: 'ppr:2:node' is not served", "-ppn N"]),
    "hwthread": (["-n", "2", "-bind-to", "hwthread", "echo"], ["-bind-to: 'hwthread' is not served", "say core"]),
    "ranks-as-typed": (["-np", "0", "echo"], ["-np: '0' is not a number of ranks"]),
    "slots-as-typed": (["-n", "2", "-npernode", "x", "echo"], ["-npernode: 'x'"]),
    "rank-by": (["-n", "2", "--rank-by", "core", "echo"], ["--rank-by", "--map-by"]),
    "ranks": (["./a", "-n", "4"], ["-n stands after the program ./a", "options of ftrun go before the program"]),
    "misspelt": (["-n", "2", "--ft-grce=3", "./a"], ["--ft-grce (did you mean --ft-grace?)"]),
    "misspelt-mode": (["-n", "2", "--ft=reinti", "./a"], ["'reinti'", "(did you mean reinit?)"]),
    "genvlist": (["-genvlist", "A", "-n", "2", "echo"], ["option -genvlist", "leave it out"]),
    "merge": (["-n", "2", "--merge-stderr-to-stdout", "echo"], ["option --merge-stderr-to-stdout: write 2>&1"]),
    "as-typed": (["-n", "1", "./a", ":", "-n", "1", "-H", "b", "./b"], ["-H is for the whole job"]),
    "misspelt-long": (["-n", "2", "--output-filenam", "x", "./a"], ["--output-filenam (did you mean --output-filename?)"]),
}


@scenario("misplaced", each=[{"case": case} for case in MISPLACED])
def misplaced(context, case):
    """What mpirun would understand, or what was meant for ftrun, and is neither: said, and nothing runs."""
    argv, words = MISPLACED[case]
    for name in "ab":
        (context.work / name).write_text("#!/bin/sh\necho ran\n")
        (context.work / name).chmod(0o755)
    refused(context, argv, *words)


def refused(context, argv, *words, env=None):
    """Nothing runs, and one sentence with these words says why."""
    job = context.start([context.prefix / "bin/ftrun", *argv], env=env)
    status = job.wait(15)
    check(status in (1, 2), f"exit status {status}")
    lines = job.err.splitlines()
    check(len(lines) == 1, f"not one sentence: {lines}")
    for word in words:
        check(word in lines[0], f"'{word}' is not in the sentence: {lines[0]}")
    check(job.output.text == "", f"something ran: {job.output.text}")
    return lines[0]


@scenario("install-unbuilt")
def install_unbuilt(context):
    """`make install` without a build says what to do, and installs nothing."""
    target, prefix = context.work / "target", context.work / "prefix"
    job = context.start(
        ["make", "-C", context.scratch / "src", "install", f"PREFIX={prefix}", f"CARGO_TARGET_DIR={target}"],
    )
    check(job.wait(20) != 0, "it ended with 0")
    said = [line for line in job.err.splitlines() if not line.startswith("make: ***")]
    check(len(said) == 1 and "run `make` first" in said[0] and str(target) in said[0], f"{said}")
    check(not prefix.exists(), "something was installed")


@scenario("two-dashes")
def two_dashes(context):
    """After -- all words are the program's: ':' and ftrun's own as well. So are ftrun's short options after the program."""
    for argv, expected in [
        (["--", "echo", ":", "--ft=none"], ": --ft=none"),
        (["echo", "--", ":", "--ft=none"], "-- : --ft=none"),
        (["echo", "-x", "3", "--ftx", "::", "--tag-output"], "-x 3 --ftx :: --tag-output"),
    ]:
        job = context.ftrun(None, 2, *argv)
        job.expect(0)
        check(job.output.text == f"{expected}\n" * 2, f"{argv}: {job.output.text}")


# --- environment variables -----------------------------------------------------------------------------------------


def mode_variable(context):
    job = context.ftrun(None, 2, "sleep", "60", ft=None, env={"FT_MODE": "reinit"})
    job.kill(job.wait_ranks(2, 1)[1])
    job.wait_ranks(2, 2)
    job.interrupt(signal.SIGINT)
    job.wait(20)


def max_failures_variable(context):
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "ending.c"), "crash", "1", env={"FT_MAX_FAILURES": "2"})
    check(job.wait(30) == 139, f"status {job.process.returncode}")
    deaths = re.findall(r"epoch \d+, \S+ s after the start: rank 1 on node 0 was killed by SIGSEGV", job.err)
    check(len(deaths) == 2, f"not two deaths ended it: {job.err}")


def on_abort_variable(context):
    mpi = context.mpi("mpich4")
    once = {"ENDING_ONCE": context.work / "once", "FT_ON_ABORT": "recover"}
    job = context.ftrun(mpi, 2, context.program(mpi, "ending.c"), "abort-once", "1", "42", env=once)
    job.expect(0)
    check(job.restored == [None], f"recoveries {job.restored}")


def grace_variable(context):
    job = context.ftrun(None, 1, "bash", "-c", "trap : TERM; touch ready; while :; do sleep 0.05; done", env={"FT_GRACE": "0"})
    deadline = time.monotonic() + 20
    while not (context.work / "ready").exists():
        check(time.monotonic() < deadline, "the rank does not start")
        time.sleep(0.01)
    job.interrupt(signal.SIGTERM)
    check(job.wait(8) == 143 and "--ft-grace" not in job.err, f"FT_GRACE is not read: {job.err}")


def mpi_variable(context):
    # With a family that is told, the rank has its connection from the start; otherwise it gets it when it joins.
    for family, wanted in [("mpich", "there"), ("auto", ""), ("", "")]:
        job = context.ftrun(None, 1, "bash", "-c", "test -z $PMI_FD || test ! -e /proc/self/fd/$PMI_FD || echo there", env={"FT_MPI": family})
        job.expect(0)
        check(job.output.text.strip() == wanted, f"FT_MPI={family}: {job.output.text}")


def harmless(variable, value):
    """A value that is accepted and changes nothing."""

    def run(context):
        context.ftrun(None, 2, "true", env={variable: value}).expect(0)

    return run


def memory_directory_variable(context):
    job = context.ftrun(None, 1, "bash", "-c", "echo $FT_CHECKPOINT_DIR; test -d $FT_CHECKPOINT_DIR",
                        env={"FT_MEMORY_DIR": "/dev/shm/./"})
    job.expect(0)
    check(job.output.text.startswith("/dev/shm/"), job.output.text)
    place = context.memory / f"of-its-own-{os.getpid()}"
    place.mkdir()
    job = context.ftrun(None, 1, "bash", "-c", "echo $FT_CHECKPOINT_DIR", env={"FT_MEMORY_DIR": place})
    job.expect(0)
    check(job.output.text.startswith(f"{place}/"), job.output.text)
    place.rmdir()


def libexec_variable(context):
    place = context.work / "helpers"
    shutil.copytree(context.prefix / "libexec/ftd", place)
    job = context.ftrun(None, 1, "sleep", "60", env={"FT_LIBEXEC": place})
    agent = job.one("ft-agent")
    check(os.readlink(f"/proc/{agent}/exe") == str(place / "ft-agent"), f"the agent is {os.readlink(f'/proc/{agent}/exe')}")
    job.interrupt(signal.SIGINT)
    job.wait(20)


def timeout_variable(context):
    # That the client library heeds it: ftd-client/tests/api.rs.
    job = context.ftrun(None, 1, "bash", "-c", "echo $FT_CHECKPOINT_TIMEOUT", env={"FT_CHECKPOINT_TIMEOUT": "7"})
    job.expect(0)
    check(job.output.text == "7\n", f"the ranks do not have it: {job.output.text}")


def log_variable(context):
    job = context.ftrun(None, 1, "true", env={"FT_LOG": "ft_agent=debug"})
    job.expect(0)
    check("DEBUG ft_agent" in job.err, f"nothing is logged: {job.err}")


def log_dir_variable(context):
    logs = context.work / "logs"
    logs.mkdir()
    job = context.ftrun(None, 1, "true", env={"FT_LOG": "ft_agent=debug", "FT_LOG_DIR": logs})
    job.expect(0)
    (log,) = logs.iterdir()
    check(re.fullmatch(rf"ft-agent\.{os.uname().nodename}\.\d+\.log", log.name) and "DEBUG ft_agent" in log.read_text(), f"{log}")
    check("DEBUG" not in job.err, f"it is logged on standard error as well: {job.err}")
    # Where there is none, it is said, and logged as without.
    logs.rename(context.work / "away")
    job = context.ftrun(None, 1, "true", env={"FT_LOG": "ft_agent=debug", "FT_LOG_DIR": logs})
    job.expect(0)
    said = f"ftd: FT_LOG_DIR: {logs}/ft-agent"
    check(job.err.count(said) == 1 and "No such file" in job.err and "DEBUG ft_agent" in job.err, f"{job.err}")


def daemon_variable(context):
    refused(context, ["-n", "1", "--hosts", "there", "true"], "/no/such/socket", env={"FT_DAEMON": "/no/such/socket"})


# Per variable of the manual: what shows that it is read, and what is said of a value that means nothing.
VARIABLES = {
    "FT_MODE": (mode_variable, ["wonder", "spare", b"\xff"]),
    "FT_MAX_FAILURES": (max_failures_variable, ["few", "0", b"\xff"]),
    "FT_ON_ABORT": (on_abort_variable, ["maybe"]),
    "FT_GRACE": (grace_variable, ["soon", "25h"]),
    "FT_MPI": (mpi_variable, ["lam"]),
    "FT_STANDBY": (harmless("FT_STANDBY", "none"), ["sit", "init"]),
    "FT_SPARES": (harmless("FT_SPARES", "0"), ["few", "1"]),
    "FT_WAIT": (harmless("FT_WAIT", "2m"), ["noon", "25h"]),
    "FT_OVERSUBSCRIBE": (harmless("FT_OVERSUBSCRIBE", "yes"), ["maybe", "2"]),
    "FT_DEGREE": (harmless("FT_DEGREE", ""), ["101", "50"]),
    "FT_FLUSH": (harmless("FT_FLUSH", ""), ["/scratch"]),
    "FT_COPY_RATE": (harmless("FT_COPY_RATE", "200M"), ["fast", "200", "-1"]),
    "FT_HEARTBEAT": (harmless("FT_HEARTBEAT", "100ms,1s"), ["100", "100,200", "1,200"]),
    "FT_INJECT": (harmless("FT_INJECT", "rank=0,after=1h"), ["rank=7", "rank=0,at=x", "after=1s"]),
    "FT_OUTPUT": (harmless("FT_OUTPUT", "once"), ["twice", "ONCE"]),
    "FT_SUMMARY": (harmless("FT_SUMMARY", "no"), ["maybe"]),
    "FT_MEMORY_DIR": (memory_directory_variable, ["/no/such"]),
    "FT_DAEMON": (daemon_variable, []),
    "FT_LIBEXEC": (libexec_variable, ["/no/such"]),
    "FT_CHECKPOINT_TIMEOUT": (timeout_variable, ["soon", "0", b"\xff"]),
    "FT_LOG": (log_variable, ["===", "loud", "ft_agent", "ft_agent=loud", b"\xff"]),
    "FT_LOG_DIR": (log_dir_variable, ["logs"]),
}


@scenario("variable", each=[{"name": name} for name in VARIABLES])
def variable(context, name):
    """Each variable is read; a value that means nothing is blamed on the variable, not on an option that nobody typed; and
    what is typed goes before it."""
    shows, wrong = VARIABLES[name]
    shows(context)
    for value in wrong:
        # A value may be any bytes: the way to hand them on is the shell's.
        text = os.fsdecode(value)
        said = refused(context, ["-n", "1", "true"], name, env={name: text})
        check(isinstance(value, bytes) or text in said, f"the value is not named: {said}")
        check("--ft" not in said or name == "FT_STANDBY", f"an option that nobody typed is blamed: {said}")
    options = {"FT_MODE": "--ft=none", "FT_MAX_FAILURES": "--ft-max-failures=3", "FT_ON_ABORT": "--ft-on-abort=end",
               "FT_GRACE": "--ft-grace=10", "FT_MPI": "--ft-mpi=auto", "FT_STANDBY": "--ft-standby=none", "FT_SPARES": "--ft-spares=0",
               "FT_WAIT": "--ft-wait=0", "FT_OVERSUBSCRIBE": "--ft-oversubscribe=no",
               "FT_COPY_RATE": "--ft-copy-rate=1G", "FT_HEARTBEAT": "--ft-heartbeat=100,500",
               "FT_INJECT": "--ft-inject=rank=0,after=1h", "FT_OUTPUT": "--ft-output=all",
               "FT_SUMMARY": "--ft-summary=no"}
    if name in options:
        job = context.start([context.prefix / "bin/ftrun", "-n", "1", options[name], "true"], env={name: os.fsdecode(wrong[0])})
        job.expect(0)


@scenario("misspelt-variables")
def misspelt_variables(context):
    """A variable that begins with FT_ and is none of ftd's, and one that -x, -env or -genv gives in vain, are named, with what was probably meant;
    of those that ftd sets itself nothing is said, so not by an ftrun that a rank starts."""
    job = context.ftrun(None, 1, "true", options=["-x", "FT_MODE=reinit", "-x", "FT_LOG=error", "-x", "PMI_RANK=3",
                                                       "-genv", "PMI_SIZE", "3", "--env", "PMIX_RANK", "3"], ft=None,
                        env={"FT_MODEE": "reinit", "FT_MAX_FAILURE": "1", "FT_OF_SOMEBODY": "x", "FT_MPI": "auto"})
    job.expect(0)
    lost = "are the launcher's, and are not passed on"
    check(job.err.splitlines() == [
        "ftrun: FT_MAX_FAILURE is no variable of ftd's, and is not passed on; FT_MAX_FAILURES is one",
        "ftrun: FT_MODEE is no variable of ftd's, and is not passed on; FT_MODE is one",
        "ftrun: FT_OF_SOMEBODY is no variable of ftd's, and is not passed on",
        f"ftrun: -x FT_MODE: variables that begin with FT_ {lost}",
        f"ftrun: -x PMI_RANK: variables that begin with PMI_ {lost}",
        f"ftrun: --env PMIX_RANK: variables that begin with PMIX_ {lost}",
        f"ftrun: -genv PMI_SIZE: variables that begin with PMI_ {lost}",
    ], job.err)
    job = context.ftrun(None, 1, context.prefix / "bin/ftrun", "-n", "1", "echo", "inner")
    job.expect(0)
    check(job.output.text == "inner\n" and job.err == "", f"{job.output.text}{job.err}")


@scenario("exit-statuses")
def exit_statuses(context):
    """The exit statuses that the manual names, and no others, are those that there are."""
    mpi = context.mpi("mpich4")
    ending, here = context.program(mpi, "ending.c"), str(context.work)
    jobs = {
        0: [["-n", "2", "true"], ["--version"], ["--help"]],
        1: [["-n", "1", "--chdir", "/no/such", "true"], ["-n", "2", ending, "return", "1", "0"], ["-n", "2", ending, "abort", "1", "256"]],
        2: [["-n", "0", "true"], ["-n", "1", "--ft=wonder", "true"], ["true"]],
        124: [["-n", "1", "--timeout", "1", "sleep", "60"]],
        126: [["-n", "1", here], ["-n", "1", "/dev/null"]],
        127: [["-n", "1", "./none"], ["-n", "1", "no-such-program"]],
    }
    page = (context.prefix / "share/man/man1/ftrun.1").read_text()
    section = re.search(r"^\.SH EXIT STATUS\n(.*?)^\.SH", page, re.M | re.S)[1]
    named = [int(number) for number in re.findall(r"^\.TP\n\.B (\d+)$", section, re.M)]
    check(named == sorted(jobs), f"the manual names {named}")
    for heading in (".I the program's", ".B 128 + \\fIn\\fR"):
        check(section.count(f".TP\n{heading}\n") == 1, f"the manual has no {heading}")
    for status, commands in jobs.items():
        for command in commands:
            job = context.start([context.prefix / "bin/ftrun", *command], mpi=mpi)
            check(job.wait(20) == status, f"{command}: exit status {job.process.returncode}, not {status}: {job.err}")
            check((job.err == "") == (status == 0), f"{command}: {job.err}")
    # The program's own, and 128 + n of who died of signal n and was not, or not again, started again.
    for ft, script, status, words in (
        ("none", "exit 42", 42, "exited with code 42"),
        ("reinit", "exit 42", 42, "exited with code 42"),
        ("none", "kill -9 $$", 137, "--ft=none recovers nothing (--ft=reinit would have started the ranks again)"),
        ("reinit", "kill -SEGV $$", 139, "the program died by itself 2 times in a row"),
        ("reinit", "ulimit -f 1; exec head -c 100000 /dev/zero >big", 153, "was killed by SIGXFSZ: its file-size limit (ulimit -f) was reached"),
    ):
        job = context.ftrun(None, 1, "bash", "-c", script, ft=ft, options=["--ft-max-failures=2"])
        check(job.wait(20) == status and words in job.err, f"{script}: exit status {job.process.returncode}: {job.err}")


@scenario("abort-zero", each=[{"mpi": m} for m in ("mpich4", "mpich5", "impi", "openmpi4", "openmpi5")])
def abort_zero(context, mpi):
    """An abort is no success, whatever its code says; nor is an end because aborts led nowhere."""
    mpi = context.mpi(mpi)
    for words, options in (("called MPI_Abort with code 0\n", []),
                           ("the program died by itself 2 times in a row", ["--ft-on-abort=recover", "--ft-max-failures=2"])):
        job = context.ftrun(mpi, 2, context.program(mpi, "ending.c"), "abort", "1", "0", options=options)
        check(job.wait(30) == 1 and words in job.err, f"exit status {job.process.returncode}: {job.err}")


@scenario("variables-known")
def variables_known(context):
    """Every FT_* variable of the manual has its variant of `variable`, or is one that the ranks find; and the ranks find it."""
    page = (context.prefix / "share/man/man1/ftrun.1").read_text()
    named = set(re.findall(r"\bFT_[A-Z_]+[A-Z]\b", page))
    told = named - set(VARIABLES)
    job = context.ftrun(None, 3, "env", options=["--tag-output"], env={"FT_LOG": "error", "FT_CHECKPOINT_TIMEOUT": "9"})
    job.expect(0)
    found = set(re.findall(r"^\[1\]<stdout>: (FT_\w+)=", job.output.text, re.M))
    check(told <= found, f"the ranks do not have {sorted(told - found)}")
    hidden = {"FT_SOCKET"}
    check(found <= named | hidden, f"the manual does not name {sorted(found - named - hidden)}")
    for rank in range(3):
        for what in (f"FT_RANK={rank}", f"FT_LOCAL_RANK={rank}", "FT_SIZE=3", "FT_WORLD=1", "FT_MODE=reinit"):
            check(re.search(rf"^\[{rank}\]<stdout>: {what}$", job.output.text, re.M), f"rank {rank} has no {what}")


# Each rank's variables, below its number.
SHOW = "env | grep -E '^(FT_|OMPI_COMM_WORLD_|PMI_|MPI_LOCAL)' | sed \"s/^/${FT_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}} /\""


def shown(job):
    """rank -> its variables."""
    found = {}
    for rank, name, value in re.findall(r"^(\d+) (\w+)=(.*)$", job.output.text, re.M):
        found.setdefault(int(rank), {})[name] = value
    check(sorted(found) == [0, 1, 2], f"{job.output.text}{job.err}")
    return found


# Of the launcher: what its ranks have, and what ours have that must be the same.
LAUNCHERS = {
    "openmpi4": {f"OMPI_COMM_WORLD_{what}": [f"OMPI_COMM_WORLD_{what}", *ours] for what, ours in {
        "RANK": ["FT_RANK"], "SIZE": ["FT_SIZE"], "LOCAL_RANK": ["FT_LOCAL_RANK"], "LOCAL_SIZE": ["FT_LOCAL_SIZE"], "NODE_RANK": []}.items()},
    "mpich4": {"PMI_RANK": ["FT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"], "PMI_SIZE": ["FT_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"],
               "MPI_LOCALRANKID": ["FT_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"],
               "MPI_LOCALNRANKS": ["FT_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"]},
}
LAUNCHERS["openmpi5"] = LAUNCHERS["openmpi4"]
LAUNCHERS["mpich5"] = LAUNCHERS["mpich4"]


@scenario("variables-compared", each=[{"mpi": m} for m in LAUNCHERS])
def variables_compared(context, mpi):
    """What a rank finds in its environment before MPI_Init is what the MPI's own launcher tells there."""
    mpi = context.mpi(mpi)
    # Open MPI 5 deals ranks out to processors otherwise, and counts the local ones in that order.
    words = [mpi.launcher, "--map-by", "slot:OVERSUBSCRIBE", "-n", "3"] if mpi.name == "openmpi5" else mpi.mpiexec(3)
    own = context.start([*words, "bash", "-c", SHOW], mpi=mpi)
    own.expect(0)
    theirs = shown(own)
    # PMI's are there from the start only where the family is told.
    ours = {ft: context.ftrun(mpi, 3, "bash", "-c", SHOW, ft=ft, options=[f"--ft-mpi={mpi.family}"]) for ft in ("none", "reinit")}
    for ft, job in ours.items():
        job.expect(0)
        for rank, variables in shown(job).items():
            for name, same in LAUNCHERS[mpi.name].items():
                for ours_of in same:
                    check(variables.get(ours_of) == theirs[rank][name],
                          f"{ours_of} is {variables.get(ours_of)} under --ft={ft}, and {name} {theirs[rank][name]} under {mpi.launcher}")


@scenario("variables-of-worlds")
def variables_of_worlds(context):
    """… and what only ftd tells: world and epoch, which count on, the job and its directory, which stay, and the pipe that is live,
    which is the rank's."""
    script = context.work / "look.sh"
    script.write_text(f"""exec 3>&1
{SHOW} | sed "s/^/$FT_WORLD./"
stat -Lc '%n %d:%i' /proc/self/fd/3 | sed "s/^/$FT_WORLD.$FT_RANK /"
[ $FT_WORLD = 2 ] && exit 0
touch $FT_CHECKPOINT_DIR/told.$FT_RANK
until [ $FT_RANK = 1 ] && [ $(ls $FT_CHECKPOINT_DIR | grep -c told) = 3 ]; do sleep 0.05; done
kill -9 $$
""")
    job = context.ftrun(None, 3, "bash", script)
    job.expect(0)
    found = {}
    for world, rank, name, value in re.findall(r"^(\d)\.(\d) (\w+)=(.*)$", job.output.text, re.M):
        found.setdefault(name, {})[world, rank] = value
    looked = {(world, rank, name): value for world, rank, name, value in re.findall(r"^(\d)\.(\d) (/\S+) (\S+)$", job.output.text, re.M)}
    for world in "12":
        for rank in "012":
            expected = {"FT_WORLD": world, "FT_EPOCH": world, "FT_MODE": "reinit", "FT_RANK": rank,
                        "FT_STDOUT": looked[world, rank, "/proc/self/fd/3"]}
            for name, value in expected.items():
                check(found[name].get((world, rank)) == value, f"{name} of rank {rank} in world {world}: {found[name]}, not {value}")
    for name in ("FT_JOB", "FT_CHECKPOINT_DIR"):
        check(len(found[name]) == 6 and len(set(found[name].values())) == 1, f"{name}: {found[name]}")
    (job_name,), (place,) = set(found["FT_JOB"].values()), set(found["FT_CHECKPOINT_DIR"].values())
    check(job_name.startswith("ftrun-") and job_name.removeprefix("ftrun-") in place, f"{job_name}: {place}")
