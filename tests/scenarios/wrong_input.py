"""Wrong input: answered with one sentence and a non-zero exit."""

import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import peer
from harness.job import check
from harness.registry import scenario
from harness.releases import other_release, patch
from scenarios.signals import ctrl_z


def _refused(context, argv, *words, env=None, mpi=None):
    job = context.start([context.prefix / "bin" / "ftrun", *argv], env=env, mpi=mpi)
    status = job.wait(15)
    check(status not in (0, 101) and status < 128, f"exit status {status}")
    lines = [line for line in job.err.splitlines() if line.strip()]
    check(len(lines) == 1, f"not one sentence: {lines}")
    for word in words:
        check(word in lines[0], f"'{word}' is not in the sentence: {lines[0]}")
    check("panicked" not in job.err, job.err)


CASES = {
    "unknown-mode": (["-n", "2", "--ft=wonder", "true"], ["wonder"]),
    "mode-spare": (["-n", "2", "--ft=spare", "true"], ["spare"]),
    "mode-replicate": (["-n", "2", "--ft=replicate", "true"], ["replicate"]),
    "mode-ulfm": (["-n", "2", "--ft=ulfm", "true"], ["ulfm"]),
    "no-such-program": (["-n", "2", "--ft=reinit", "./no-such-program"], ["no-such-program"]),
    "no-such-program-in-path": (["-n", "2", "--ft=reinit", "no-such-program"], ["no-such-program"]),
    "directory": (["-n", "2", "--ft=reinit", "/tmp"], ["/tmp"]),
    "working-directory": (["-n", "2", "--ft=reinit", "."], ["is a directory"]),
    "zero-ranks": (["-n", "0", "--ft=reinit", "true"], ["0"]),
    "negative-ranks": (["-n", "-3", "--ft=reinit", "true"], ["3"]),
    "ranks-no-number": (["-n", "many", "--ft=reinit", "true"], ["many"]),
    "no-program": (["-n", "2", "--ft=reinit"], []),
    "unknown-option": (["-n", "2", "--ft-nothing", "true"], ["--ft-nothing"]),
    "no-such-directory": (["-n", "2", "--chdir", "/no/such/directory", "true"], ["/no/such/directory"]),
    "max-failures-no-number": (["-n", "2", "--ft-max-failures=few", "true"], ["few"]),
    "unknown-on-abort": (["-n", "2", "--ft-on-abort=maybe", "true"], ["maybe"]),
    "unknown-mpi-option": (["-n", "2", "--ft-mpi=lam", "true"], ["lam"]),
}


@scenario("foreign-proc", each=[{"what": "another"}, {"what": "none"}])
def foreign_proc(context, what):
    """Where /proc shows another pid name space's processes, or none, the job is refused with a sentence that says so."""
    inside = {"another": 'exec "$FTRUN" -n 2 true', "none": 'mount -t tmpfs none /proc && exec "$FTRUN" -n 2 true'}[what]
    name_spaces = {"another": "-Urpf", "none": "-Urm"}[what]
    job = context.script(f"export FTRUN; unshare {name_spaces} bash -c '{inside}'")
    check(job.wait(15) == 1, f"exit status {job.process.returncode}")
    word = {"another": "another pid name space", "none": "does not show this process"}[what]
    check(re.fullmatch(rf"ftrun: /proc .*{word}.* mount it .*\n", job.err), job.err)


@scenario("uninstall")
def uninstall(context):
    """`make uninstall` takes away every file that `make install` made, and no other; a prefix with a blank, or an empty one, is refused before anything
    is made."""
    prefix, source = context.work / "prefix", context.scratch / "src"
    shutil.copytree(context.prefix, prefix, symlinks=True)
    own = [prefix / "bin" / "mine", prefix / "share" / "man" / "man1" / "mine.1"]
    for path in own:
        path.write_text("mine")
    make = ["make", "-s", "-C", str(source), f"CARGO_TARGET_DIR={context.work}"]
    run = subprocess.run([*make, "uninstall", f"PREFIX={prefix}"], capture_output=True, text=True)
    check(run.returncode == 0, run.stderr)
    left = sorted(path for path in prefix.rglob("*") if not path.is_dir())
    check(left == sorted(own), f"there is left {left}")
    run = subprocess.run([*make, "install", f"PREFIX={context.work}/two words"], capture_output=True, text=True)
    check(run.returncode != 0 and "may hold no blanks" in run.stderr, run.stderr)
    run = subprocess.run([*make, "-n", "install", "PREFIX="], capture_output=True, text=True)
    check(run.returncode != 0 and "PREFIX is empty" in run.stderr, run.stderr)
    check(not list(context.work.glob("two*")) and not list(source.glob("words*")), "something was made")


@scenario("wrong", each=[{"case": case} for case in CASES])
def wrong(context, case):
    """The command line."""
    argv, words = CASES[case]
    _refused(context, argv, *words)


@scenario("not-executable")
def not_executable(context):
    """A file without the x bit, and one that is no program."""
    plain = context.work / "plain"
    plain.write_text("no program\n")
    _refused(context, ["-n", "2", "--ft=reinit", str(plain)], str(plain))
    plain.chmod(0o755)
    plain.write_bytes(b"\x7fELF" + b"\0" * 100)
    _refused(context, ["-n", "2", "--ft=reinit", str(plain)], str(plain))


@scenario("no-interpreter", each=[{"how": "missing"}, {"how": "dos"}, {"how": "not-executable"}, {"how": "in-recovery"}])
def no_interpreter(context, how):
    """A script without its interpreter: that is named, with the statuses of a shell."""
    script, tool = context.work / "script", context.work / "tool"
    shutil.copy("/bin/sh", tool)
    first = {"missing": "/no/such", "dos": "/bin/sh\r"}.get(how, str(tool))
    script.write_bytes(f"#!{first}\necho ran; exec kill -9 $$\n".encode())
    script.chmod(0o755)
    tool.chmod(0o755 if how == "in-recovery" else 0o644)
    if how == "in-recovery":
        script.write_text(f"#!{tool}\n[ $FT_WORLD = 1 ] || exit\n[ $FT_RANK = 1 ] || exec sleep 60\nrm {tool}; kill -9 $$\n")
    shown = first.replace("\r", "\\r")
    words = [f"cannot execute {script}: its interpreter '{shown}', which its first line names, "]
    words += {"dos": ["as in DOS"], "not-executable": ["may not be executed"]}.get(how, ["is not there (No such file"])
    if how != "in-recovery":
        _refused(context, ["-n", "2", "--ft=reinit", str(script)], *words)
    status = context.jobs[-1].process.returncode if how != "in-recovery" else context.ftrun(None, 2, script).wait(20)
    check(status == (126 if how == "not-executable" else 127), f"exit status {status}: {context.jobs[-1].err}")
    sentence = context.jobs[-1].err.splitlines()[-1]
    check(all(word in sentence for word in words) and "ran" not in context.jobs[-1].output.text, sentence)


@scenario("no-loader")
def no_loader(context):
    """A program whose dynamic linker is not there, one of another C library for example."""
    program = context.work / "program"
    found = re.search(rb"/lib[\w/.-]*/ld-[\w.-]+", pathlib.Path("/bin/true").read_bytes())[0]
    program.write_bytes(pathlib.Path("/bin/true").read_bytes().replace(found, b"/no" + found[3:]))
    program.chmod(0o755)
    _refused(context, ["-n", "2", "--ft=reinit", str(program)], f"cannot execute {program}: its program loader '/no", "is not there")
    check(context.jobs[-1].process.returncode == 127, f"exit status {context.jobs[-1].process.returncode}")


@scenario("no-entry")
def no_entry(context):
    """A working directory that may not be entered: as one that is not there."""
    closed = context.work / "closed"
    closed.mkdir(mode=0o600)
    _refused(context, ["-n", "2", "--chdir", str(closed), "true"], f"--chdir: {closed}: Permission denied")
    check(context.jobs[-1].process.returncode == 1, f"exit status {context.jobs[-1].process.returncode}")


def other_number(path, number=peer.VERSION + 2):
    """Makes a copy of ftd's file one of a release that speaks another number, of no neighbour if nothing else is said."""
    own = path.with_name(path.name + ".own")
    path.rename(own)
    check(patch(own, path, number), f"{path} does not say what it speaks")
    own.unlink()


def replaced_by_a_stranger(context, part, libexec, words, env):
    """An agent or an ft-pmix that would come in the place of a dead one."""
    mpi, part = context.mpi("openmpi4"), {"agent": "ft-agent"}.get(part, part)
    job = context.ftrun(mpi, 2, context.program(mpi, "blame.c"), "compute", "0", gates=["app.compute:1"], env=env)
    job.at_gate("app.compute", 1)
    other_number(libexec / part)
    for pid in job.below(part):
        job.kill(pid)
    check(job.wait(20) == 1, f"exit status {job.process.returncode}: {job.err}")
    if part == "ft-pmix":
        words = [words[0], f"{libexec}/ft-agent, ", words[2]]
    sentence = job.err.splitlines()[-1]
    check(all(word in sentence for word in [*words, f"{libexec}/{part} is of"]), job.err)
    check("was started again" not in job.err, job.err)


@scenario("other-release", each=[{"part": part} for part in ("ft-agent", "ft-shepherd", "ft-pmix", "libft_preload.so", "unmarked", "in-recovery",
                                               "agent-again", "ft-pmix-again")])
def releases_differ(context, part):
    """A part of ftd from a release that is no neighbour, also one that replaces a dead one: one sentence with both releases and their paths."""
    libexec = context.work / "libexec"
    shutil.copytree(context.prefix / "libexec/ftd", libexec)
    env = {"FT_LIBEXEC": libexec}
    words = ["is of another release of ftd, ", f"{context.prefix}/bin/ftrun, ", "only neighbouring numbers work together: install the same ftd release everywhere"]
    if part.endswith("-again"):
        return replaced_by_a_stranger(context, part.removesuffix("-again"), libexec, words, env)
    if part == "in-recovery":
        mpi = context.mpi("mpich4")
        job = context.ftrun(mpi, 2, context.program(mpi, "blame.c"), "compute", "0", gates=["app.compute:1"], env=env)
        victim = job.at_gate("app.compute", 1)
        other_number(libexec / "ft-shepherd")
        job.kill(job.shepherd_of(victim))
        check(job.wait(20) == 1, f"exit status {job.process.returncode}: {job.err}")
        sentence = job.err.splitlines()[-1]
        check(all(word in sentence for word in [*words, f"{libexec}/ft-shepherd"]), sentence)
        return
    if part == "unmarked":
        part = "ft-agent"
        (libexec / part).write_text("#!/bin/sh\n")
        words.append("which does not say its version")
    else:
        other_number(libexec / part)
        words.append(f" (protocol {peer.VERSION + 2}), than ")
    _refused(context, ["-n", "2", "--ft=reinit", "true"], f"{libexec}/{part} ", *words, env=env)


@scenario("neighbours-on-one-machine", each=[{"mpi": "openmpi4"}, {"mpi": "mpich4"}])
def neighbours(context, mpi):
    """All of ftd but ftrun is of a release whose number is the neighbour's: the job survives a rank's death, and its agent's, which one of this
    release replaces, with all that the other one has left."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    libexec = other_release(context, peer.VERSION + 1, of=context.prefix / "libexec/ftd")
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"], env={"FT_LIBEXEC": libexec})
    victim = job.at_gate("app.compute", 1)
    shutil.copy2(context.prefix / "libexec/ftd/ft-agent", libexec / "own")
    (libexec / "own").rename(libexec / "ft-agent")
    job.kill(job.one("ft-agent"))
    job.kill(victim)
    job.expect(0, context.reference(mpi, 3, program))
    check(job.restored == [5] and len(job.recoveries) == 1, f"restored {job.restored}: {job.err}")


@scenario("no-server", each=[{"how": how} for how in ("for-ever", "for-a-moment", "stopped")])
def no_server(context, how):
    """ft-pmix cannot be started any more in a recovery: it is tried again, and when that is in vain the job ends with that sentence, which
    does not blame the program. The time for which the job is stopped does not count."""
    libexec = context.work / "libexec"
    shutil.copytree(context.prefix / "libexec/ftd", libexec)
    pmix, mpi = libexec / "ft-pmix", context.mpi("openmpi4")
    job = context.ftrun(mpi, 2, context.program(mpi, "blame.c"), "compute", "0", gates=["app.compute:1"], env={"FT_LIBEXEC": libexec},
                        hurry={"for-ever": 10, "for-a-moment": 1, "stopped": 2}[how])
    job.at_gate("app.compute", 1)
    pmix.chmod(0o644)
    for pid in job.below("ft-pmix"):
        job.kill(pid)
    patience = {"for-ever": 1, "for-a-moment": 5, "stopped": 3}[how]
    job.wait_err(rf"^ftd: {pmix} cannot be started: .*; it is tried again for {patience} s$", 1)
    if how == "for-a-moment":
        # Some of these attempts are in vain.
        begun = time.monotonic()
        while time.monotonic() < begun + 1:
            check(job.process.poll() is None, f"it was not tried again for long: {job.err}")
            time.sleep(0.05)
    if how == "stopped":
        ctrl_z(job)
        time.sleep(patience)
        os.kill(job.pid, signal.SIGCONT)
    if how != "for-ever":
        pmix.chmod(0o755)
        job.expect(0)
        check(len(job.recoveries) == 1, job.err)
        return
    check(job.wait(30) == 1, f"exit status {job.process.returncode}: {job.err}")
    sentence = job.err.splitlines()[-1]
    check(re.fullmatch(rf"ftrun: rank \d cannot be started: {pmix} cannot be started: .* \(os error \d+\), tried for \d s", sentence), job.err)
    check("exited with" not in job.err and not re.search(r"^ftd: rank", job.err, re.M), job.err)


@scenario("preload-unreadable", each=[{"when": "start"}, {"when": "recovery"}])
def preload_unreadable(context, when):
    """libft_preload.so cannot be read: at the start nothing runs, in a recovery the job ends; the sentence names the file."""
    libexec = context.work / "libexec"
    shutil.copytree(context.prefix / "libexec/ftd", libexec)
    preload, env = libexec / "libft_preload.so", {"FT_LIBEXEC": libexec}
    if when == "start":
        preload.chmod(0)
        return _refused(context, ["-n", "2", "true"], f"{preload} is a part of ftd and cannot be read: Permission", env=env)
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "blame.c"), "compute", "2000", gates=["app.compute:1"], env=env)
    victim = job.at_gate("app.compute", 1)
    preload.unlink()
    job.kill(victim)
    check(job.wait(30) == 1, f"exit status {job.process.returncode}: {job.err}")
    check(f"because {preload} cannot be read any more (No such file" in job.err, job.err)
    check("takes LD_PRELOAD away" not in job.err, job.err)


# Sizes of jobs that run with no more open files than are demanded.
ENOUGH = {"mpich4": (2, 8), "mpich5": (4, 9), "openmpi4": (2, 4, 12), "openmpi5": (4,)}


def enough_files(context, mpi, size):
    """As low as is accepted: checkpoints and a recovery work as well."""
    program = context.program(mpi, "places.c")
    job = context.script(f"ulimit -n {48 + 12 * size}; exec $FTRUN -n {size} --ft=reinit {program}", mpi=mpi,
                         gates=["app.compute:1"])
    victim = job.at_gate("app.compute", 1)
    # To the next agent every shepherd brings the arenas that it keeps. The shepherds end their ranks when theirs dies.
    job.kill_all({"the agent": job.one("ft-agent"), "a rank": victim} if size > 2 else {"a rank": victim})
    job.expect(0, context.reference(mpi, size, program))
    check("\nrestored 5\n" in job.output.text, f"{size} ranks: {job.output.text}{job.err}")
    check("open files" not in job.err, f"{size} ranks: {job.err}")
    check(job.restored[-1:] == [5], f"{size} ranks: {job.err}")


@scenario("low-limits", each=[{"limit": limit} for limit in ("files", "processes", "soft", *(f"enough-{m}" for m in ENOUGH))])
def low_limits(context, limit):
    """Limits that are too low for the job: one sentence, before anything runs. A soft limit that is low is raised for ftd's own
    processes, and the ranks have it as it was. The lowest that is accepted is enough."""
    if limit.startswith("enough"):
        name = limit.partition("-")[2]
        for size in ENOUGH[name]:
            enough_files(context, context.mpi(name), size)
        return
    set_limit = {"files": "ulimit -n 40", "processes": "ulimit -u 5", "soft": "ulimit -Sn 100"}[limit]
    job = context.script(f"{set_limit}; exec $FTRUN -n 6 --ft=reinit bash -c 'echo limit $(ulimit -Sn)'")
    if limit == "soft":
        job.expect(0)
        check(job.output.text == "limit 100\n" * 6, job.output.text)
        return
    check(job.wait(20) == 1, f"exit status {job.process.returncode}: {job.err}")
    lines = job.err.splitlines()
    check(len(lines) == 1 and job.output.text == "", f"{lines} {job.output.text}")
    words = "(ulimit -Hn) is 40, and a job of 6 ranks needs 120" if limit == "files" else "ulimit -"
    check(words in lines[0] and "have it raised" in lines[0], lines[0])


HUNGRY = r"""
#include <ft.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
enum { BYTES = 64 << 20 };
int main(void) {
    int state;
    uint64_t version;
    char *field = calloc(BYTES, 1);
    int code = ft_init(&state);
    if (!code && !field) code = 99;
    if (!code) code = ft_protect(0, field, BYTES);
    if (!code && state == FT_STATE_RESTARTED) code = ft_restore(&version);
    else if (!code) code = ft_checkpoint(1);
    printf("world %s code %d: %s\n", getenv("FT_WORLD"), code, ft_strerror(code));
    fflush(stdout);
    if (state == FT_STATE_NEW && !code) raise(SIGKILL);
    return 0;
}"""


@scenario("address-space", each=[{"world": 1}, {"world": 2}])
def address_space(context, world):
    """`ulimit -v` leaves a rank too little for its checkpoint, or to take it back: memory is short, with the limit, and the arena
    is not said to be damaged."""
    source, program = context.work / "hungry.c", context.work / "hungry"
    source.write_text(HUNGRY)
    library = context.prefix / "lib"
    subprocess.run(["cc", "-I", context.prefix / "include", "-o", program, source, "-L", library, f"-Wl,-rpath,{library}", "-lftd_client"],
                   check=True)
    command = f'[ "$FT_WORLD" = {world} ] && ulimit -v 120000; exec "$0"'
    job = context.ftrun(None, 1, "bash", "-c", command, program)
    job.expect(0)
    check(f"world {world} code 6: the checkpoint does not fit in memory\n" in job.output.text, job.output.text + job.err)
    check("Cannot allocate memory" in job.err and "(ulimit -v) is 120000 KiB" in job.err, job.err)
    check("damaged" not in job.err, job.err)


@scenario("memory-directory-values")
def memory_directory_values(context):
    """What FT_MEMORY_DIR and FT_LIBEXEC cannot mean is a wrong value like any other: status 2, the variable, the value. The longest
    name that is accepted works."""
    long = context.memory / ("l" * 200)
    for value in ("/no/such", "/etc/passwd", "/proc", str(context.work), str(long)):
        if value == str(long):
            long.mkdir()
        job = context.ftrun(None, 1, "true", env={"FT_MEMORY_DIR": value})
        check(job.wait(10) == 2 and re.match(f"ftrun: the memory directory {value} \\(FT_MEMORY_DIR\\) .*\n$", job.err),
              f"{value}: {job.process.returncode} {job.err}")
    most = int(re.search(r"has a name of \d+ bytes, and may have (\d+): the path of a socket", job.err)[1])
    long.rmdir()
    longest = context.memory / ("l" * (most - len(str(context.memory)) - 1))
    longest.mkdir()
    for mpi in (context.mpi("openmpi4"), context.mpi("mpich4")):
        job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), env={"FT_MEMORY_DIR": longest})
        job.expect(0)
    check(not list(longest.iterdir()), f"left: {list(longest.iterdir())}")
    longest.rmdir()
    job = context.ftrun(None, 1, "true", env={"FT_LIBEXEC": "/no/such"})
    check(job.wait(10) == 2 and "looked for in /no/such (FT_LIBEXEC)" in job.err, f"{job.process.returncode} {job.err}")


@scenario("ranks-option")
def ranks_option(context):
    """Of `-n` people hear as they have typed it."""
    for words, said in ((["-n"], "-n <N> needs a value"), (["-n", "2", "-n", "3", "true"], "-n <N> was given twice"),
                        (["-n=0", "true"], "-n: '0' is not a number of ranks")):
        _refused(context, words, said)
        check("--n" not in context.jobs[-1].err, context.jobs[-1].err)


EMPTY = ["--ft", "--ft-max-failures", "--ft-on-abort", "--ft-grace", "--ft-mpi", "--ft-standby", "--ft-spares", "--ft-wait", "--ft-degree",
         "--ft-flush", "--ft-heartbeat", "--ft-inject", "--ft-output", "--chdir", "--wdir", "-n", "-x"]


@scenario("empty-values")
def empty_values(context):
    """An option whose value is empty (`--ft=$MODE`, where nothing has set MODE) does not pass for one that was not given, whatever
    the variables say."""
    for option in EMPTY:
        number = [] if option == "-n" else ["-n", "1"]
        for words in ([option, ""], [f"{option}="])[:1 if len(option) == 2 else 2]:
            _refused(context, [*number, *words, "true"], option, env={"FT_MODE": "reinit"})
            check(context.jobs[-1].process.returncode == 2, f"{words}: status {context.jobs[-1].process.returncode}")


@scenario("no-inotify")
def no_inotify(context):
    """Where the user has all the inotify instances that the kernel allows, that is what is said, and not that files are open."""
    job = context.start(["unshare", "-Ur", "bash", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"', "-",
                         context.prefix / "bin/ftrun", "-n", "1", "true"])
    check(job.wait(10) == 1 and len(job.err.splitlines()) == 1, f"{job.process.returncode}: {job.err}")
    check("fs.inotify.max_user_instances allows" in job.err and "ulimit" not in job.err, job.err)


@scenario("no-network", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4")])
def no_network(context, mpi):
    """In a network name space without a loopback Open MPI cannot start, as under mpirun: the job ends at once with that sentence, in
    each mode, and nothing is tried again. MPICH needs no network."""
    mpi = context.mpi(mpi)
    for ft in ("none", "reinit"):
        job = context.start(["unshare", "-Urn", context.prefix / "bin/ftrun", "-n", "2", f"--ft={ft}", context.program(mpi, "ending.c"),
                             "ok"], mpi=mpi)
        if mpi.name == "mpich4":
            job.expect(0)
            continue
        check(job.wait(20) == 1 and job.restored == [], f"{ft}: {job.process.returncode}: {job.err}")
        said = [line for line in job.err.splitlines() if re.match("(ftd|ftrun|ft-pmix): ", line)]
        check(len(said) == 1 and "the loopback interface is down here" in said[0], f"{ft}: {job.err}")


@scenario("memory-directory")
def memory_directory(context):
    """A memory directory that does not exist."""
    _refused(context, ["-n", "2", "true"], "/no/such", env={"FT_MEMORY_DIR": "/no/such"})


FAKE_MPI = """
int MPI_Init(int *c, char ***v) { (void)c; (void)v; return 0; }
int MPI_Finalize(void) { return 0; }
int MPI_Get_library_version(char *text, int *length) {
    const char name[] = "Wonder MPI 7.1";
    for (int i = 0; i < (int)sizeof name; i++) text[i] = name[i];
    *length = sizeof name - 1;
    return 0;
}
"""


@scenario("unknown-mpi")
def unknown_mpi(context):
    """An MPI of an unknown kind is refused by its name."""
    library, program = context.work / "libwonder.so", context.work / "program"
    (context.work / "wonder.c").write_text(FAKE_MPI)
    (context.work / "program.c").write_text(
        "int MPI_Init(int *, char ***); int MPI_Finalize(void);\n"
        "int main(void) { MPI_Init(0, 0); return MPI_Finalize(); }\n"
    )
    for command in (
        ["gcc", "-shared", "-fPIC", "-o", library, "wonder.c"],
        ["gcc", "-o", program, "program.c", library, f"-Wl,-rpath,{context.work}"],
    ):
        subprocess.run(command, cwd=context.work, check=True)
    for command in ([str(program)], ["sh", "-c", '"$0"; exit 0', str(program)]):
        job = context.ftrun(None, 2, *command)
        check(job.wait(15) == 1, f"exit status {job.process.returncode}: {job.err}")
        said = r'^ftrun: rank \d cannot be started: the loaded MPI library \("Wonder MPI 7.1.*"\) is of an unknown kind: say '
        check(re.search(said, job.err, re.M), job.err)
        check("exited with" not in job.err, f"the program is blamed: {job.err}")
        check(job.restored == [], "and it was tried again")


WRONG_CALLS = {
    "FT_ERR_ORDER": ["protect-before-init", "checkpoint-before-init", "restore-before-protect", "restore-after-checkpoint",
                     "checkpoint-before-restore", "init-after-finalize", "checkpoint-after-finalize", "restore-after-finalize",
                     "protect-after-finalize", "due-after-finalize"],
    "FT_ERR_ARGUMENT": ["null-pointer", "null-state", "null-version", "null-due", "null-function"],
    "FT_ERR_NONE": ["restore-nothing"],
    "FT_ERR_VERSION": ["version-not-increasing", "version-going-back"],
    "FT_ERR_SIZE": ["restore-other-size"],
    "FT_OK": ["init", "protect", "checkpoint", "restore", "finalize", "unchanged"],
}


@scenario("bad-api")
def bad_api(context):
    """Null pointers, calls in the wrong order, regions that no longer match: each is answered with the code that the header and the
    manual name for it, and a sentence, and nothing changes."""
    mpi = context.mpi("mpich4")
    header, manual = ((context.prefix / path).read_text() for path in ("include/ft.h", "share/man/man3/ft.3"))
    numbers = {name: int(number) for name, number in re.findall(r"\b(FT_\w+) = (\d+)", header)}
    job = context.ftrun(mpi, 2, context.program(mpi, "badapi.c"), gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0)
    told = re.findall(r"^([\w-]+) code (-?\d+): (.+)$", job.output.text, re.M)
    expected = {call: name for name, calls in WRONG_CALLS.items() for call in calls}
    check({call for call, _, _ in told} == {*expected, "strerror-unknown"}, f"not tried, or not known: {told}")
    sentences = {}
    for call, code, sentence in told:
        if call == "strerror-unknown":
            check(sentence == "an unknown error code", sentence)
            continue
        check(int(code) == numbers[expected[call]], f"{call} is {code}, not {expected[call]}: {job.output.text}")
        check(call == "unchanged" or sentences.setdefault(code, sentence) == sentence, f"{code} is '{sentence}', and {sentences[code]}")
    check(len(set(sentences.values())) == len(sentences), f"two codes with one sentence: {sentences}")
    check(all(f"\n.B {name}\n" in manual for name in WRONG_CALLS if name != "FT_OK"), "a code is not in the manual")
    check("number 7 version 5" in job.output.text, f"the checkpoint did not come back: {job.output.text}")
    # Each wrong call has one line of its own, but where there is nothing to restore; rank 1 was killed in the first world.
    wrong = [call for call, _, _ in told if not expected.get(call, "FT_OK") in ("FT_OK", "FT_ERR_NONE")]
    said = re.findall(r"^ftd: rank 0: .*$", job.err, re.M)
    check(len(said) == len(wrong), f"{len(said)} sentences for {len(wrong)} wrong calls: {job.err}")


@scenario("without-ftd", each=[{"mpi": "mpich4"}, {"mpi": "openmpi5"}])
def without_ftd(context, mpi):
    """The same program without ftd: it runs, checkpoints protect nothing, and that is said once."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    job = context.start(mpi.mpiexec(3, program), mpi=mpi)
    job.expect(0)
    check(job.output.starts == [None] and len(job.output.results) == 1, job.output.text)
    said = [line for line in job.err.splitlines() if "ftd" in line or "ftrun" in line]
    check(said == ["ftd: the program does not run under ftd: its checkpoints protect nothing"], f"stderr: {job.err}")


@scenario("does-not-fit")
def does_not_fit(context):
    """A checkpoint that does not fit in memory is an error; the older version stays whole and is restored."""
    mpi = context.mpi("mpich4")
    with open("/proc/meminfo") as file:
        megabytes = int(re.search(r"MemTotal:\s+(\d+)", file.read())[1]) // 1024
    job = context.ftrun(mpi, 2, context.program(mpi, "bigckpt.c"), str(megabytes), gates=["app.compute:1"])
    pid = job.at_gate("app.compute", 1)
    found = job.wait_err(r"rank (\d) checkpoint code (-?\d+): (.+)", 2)
    check(all(int(code) != 0 for _, code, _ in found), f"it was accepted: {job.err}")
    job.kill(pid)
    job.expect(0)
    check("restore code 0 version 2 value 22" in job.output.text, job.output.text)
    check(job.restored == [2], f"restored {job.restored}")


def arenas(job):
    """(path of the descriptor, rank by what is in it) of every arena that the agent holds."""
    agent = job.one("ft-agent")
    for number in os.listdir(f"/proc/{agent}/fd"):
        path = f"/proc/{agent}/fd/{number}"
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith("/memfd:") and "arena" in target:
            yield path, target


def marks(path):
    """(offset, version) of every whole mark that places.c put into an arena."""
    found = []
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        at = 0
        while at < end:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
                at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            except OSError:
                break
            data = os.pread(file.fileno(), min(at - start, 1 << 24), start)
            for hit in re.finditer(rb"PLACES-MARK-HERE(.{8})", data, re.S):
                found.append((start + hit.start(), struct.unpack("<Q", hit[1])[0]))
    return found


def flip(file, at):
    """Flips a bit of the byte at that offset."""
    byte = os.pread(file.fileno(), 1, at)
    os.pwrite(file.fileno(), bytes([byte[0] ^ 0x40]), at)


@scenario("corrupted", each=[{"how": "newest"}, {"how": "all"}, {"how": "header"}])
def corrupted(context, how):
    """Flipped bytes in the arena are detected, and the older version is used."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"], env={"FT_LOG": "ft_agent=debug"})
    pid = job.at_gate("app.compute", 1)
    # Checksums are made behind the copy; what is flipped before that nobody can know.
    job.wait_err(r"event=Committed .*version: Version\(5\)", 3)
    hit = 0
    wrong = {"newest": {5}, "all": {5, 4, 3}, "header": {5}}[how]
    # One arena of the three: the version must then be dropped for every rank.
    path = next((path for path, _ in arenas(job) if marks(path)), None)
    check(path is not None, "no arena with marks found below the agent's descriptors")
    with open(path, "r+b", buffering=0) as file:
        for offset, version in marks(path):
            if version in wrong and how != "header":
                flip(file, offset + 16)
                hit += 1
        if how == "header":
            # The header's 64 KiB: wherever the number of the newest version stands.
            header = os.pread(file.fileno(), 1 << 16, 0)
            for at in range(0, len(header), 8):
                if header[at : at + 8] == struct.pack("<Q", 5):
                    flip(file, at)
                    hit += 1
    check(hit >= 1, f"only {hit} versions were found in the arena")
    job.kill(pid)
    job.expect(0, context.reference(mpi, 3, program))
    expected = None if how == "all" else 4
    check(job.restored == [expected], f"restored {job.restored}, expected {expected}")
    check(job.output.starts == [None, expected], f"starts {job.output.starts}")
    if how != "header":
        check(re.search(r"checksum|corrupt|damaged", job.err), f"nothing is said: {job.err}")


MAGIC = b"ftdwire\n"


@scenario("mixed-agent-newer")
def mixed_agent_newer(context):
    """A client library that meets an agent of another release says so and fails."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "badapi.c")
    path = context.work / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def answer(connection):
        with connection:
            connection.sendall(MAGIC + struct.pack("<II", 9999, 0))
            connection.settimeout(10)
            try:
                while connection.recv(4096):
                    pass
            except OSError:
                pass

    def serve():
        try:
            while True:
                threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    env = {"FT_SOCKET": path, "FT_RANK": 0, "FT_SIZE": 1, "FT_WORLD": 1, "FT_EPOCH": 1, "FT_JOB": "x", "FT_MODE": "reinit"}
    job = context.start(mpi.mpiexec(1, program), mpi=mpi, env=env)
    job.wait(30)
    found = re.search(r"^init code (-?\d+): (.+)$", job.output.text, re.M)
    check(found and int(found[1]) != 0, f"ft_init accepted it: {job.output.text}{job.err}")
    check("9999" in job.output.text + job.err, f"the versions are not named: {job.output.text}{job.err}")
    server.close()


OTHER_RELEASE = r"""
import os, socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["FT_SOCKET"])
s.sendall(b"ftdwire\n" + struct.pack("<II", 9999, 3))
s.settimeout(10)
data = b""
while True:
    more = s.recv(4096)
    if not more:
        break
    data += more
print("answer", data[:8], struct.unpack("<I", data[8:12])[0] if len(data) >= 12 else None)
sys.exit(5)
"""


@scenario("mixed-client-newer")
def mixed_client_newer(context):
    """An agent that meets a client library of another release answers with its own version, by which that
    library knows, and closes."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", OTHER_RELEASE)
    check(job.wait(20) == 5, f"exit status {job.process.returncode}")
    check("answer b'ftdwire\\n' " in job.output.text, f"{job.output.text} {job.err}")
    check("panicked" not in job.err, job.err)


STRANGER = f"VERSION = {peer.VERSION}\n" + r"""
import os, socket, struct
for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100000, b"ftdwire\n" + struct.pack("<II", VERSION, 3) + b"\xff" * 64, b""):
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["FT_SOCKET"])
    try:
        s.sendall(data)
        s.settimeout(5)
        while s.recv(4096):
            pass
    except (ConnectionError, TimeoutError, BrokenPipeError):
        pass
    s.close()
"""


@scenario("hostile-bytes")
def hostile_bytes(context):
    """Bytes that are no protocol harm nobody."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", STRANGER)
    job.expect(0, patience=40)
    check("panicked" not in job.err, job.err)
