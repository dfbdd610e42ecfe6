"""Directories with odd names, and the files in $FT_CHECKPOINT_DIR: what a world finds there is whole."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from harness import proc, root
from harness.job import Failed, Skipped, check
from harness.registry import scenario

from .processes import eventually

# Neither UTF-8 nor one line.
ODD = os.fsdecode(b"odd \xff\xfe\ndirectory")
# The dynamic linker takes a space in LD_PRELOAD for the end of a name.
ODD_WORD = ODD.replace(" ", "-")


@scenario("memory-on-disk")
def memory_on_disk(context):
    """FT_MEMORY_DIR on a disk is refused with a sentence that names both."""
    disk = context.work / "disk"
    disk.mkdir()
    kind = subprocess.run(["stat", "-f", "-c", "%T", disk], capture_output=True, text=True, check=True).stdout.strip()
    if kind == "tmpfs":
        # The tests' own directory is in memory; this is on neither.
        disk = pathlib.Path("/proc/self/fdinfo")
    job = context.ftrun(None, 2, "true", env={"FT_MEMORY_DIR": disk})
    check(job.wait(10) == 2, f"exit status {job.process.returncode}")
    check(re.fullmatch(rf"ftrun: the memory directory {disk} \(FT_MEMORY_DIR\) is on \w+, not in memory: .*/dev/shm\n", job.err), job.err)
    check(not list(disk.glob("ftd*")), f"made there: {list(disk.iterdir())}")


@scenario("odd-paths", each=[{"mpi": m} for m in ("mpich4", "mpich5", "openmpi4", "openmpi5")])
def odd_paths(context, mpi):
    """A working directory, a program, TMPDIR, FT_MEMORY_DIR (and so $FT_CHECKPOINT_DIR) and ftd's own programs in
    directories whose names are not UTF-8 and hold newlines."""
    mpi = context.mpi(mpi)
    odd = context.work / ODD
    (odd / "tmp").mkdir(parents=True)
    libexec = context.work / ODD_WORD
    shutil.copytree(next(context.prefix.rglob("ft-agent")).parent, libexec)
    memory = context.memory / ODD
    memory.mkdir()
    program = str(odd / os.fsdecode(b"pro\xffgram\n"))
    shutil.copy(context.program(mpi, "files.c"), program)
    env = {"FT_MEMORY_DIR": memory, "TMPDIR": odd / "tmp", "FT_LIBEXEC": libexec}
    job = context.ftrun(mpi, 2, program, options=[f"--chdir={odd}"], env=env, cwd=odd, gates=["files.half:0"])
    victim = job.at_gate("files.half", 0)
    seen = proc.environ(victim)
    check(seen["FT_CHECKPOINT_DIR"].startswith(str(memory)), f"FT_CHECKPOINT_DIR is {seen['FT_CHECKPOINT_DIR']!r}")
    check(os.readlink(f"/proc/{victim}/cwd") == str(odd), "the ranks' working directory is another")
    with open(f"/proc/{victim}/maps", "rb") as maps:
        check(b"libft_preload.so" in maps.read(), "the preload did not come along")
    job.wait_whole(pathlib.Path(seen["FT_CHECKPOINT_DIR"]) / "restart.5")
    job.kill(victim)
    job.expect(0)
    starts = re.findall(r"^restart from (\d+)$", job.output.text, re.M)
    check(starts == ["0", "5"], f"restarts from {starts}: {job.err}")
    check(len(job.recoveries) == 1, job.err)
    check(not list(memory.iterdir()), f"left in FT_MEMORY_DIR: {list(memory.iterdir())}")
    memory.rmdir()
    check(not list((odd / "tmp").iterdir()), f"left in TMPDIR: {list((odd / 'tmp').iterdir())}")


PYTHON = ("plain", "rename", "rename-directory", "rename-directory-from-outside", "copy2", "copytree", "move", "link", "name-taken", "tmpfile",
          "truncate", "mapped", "in-pieces", "archive", "through-link", "filled-at-once", "moved-out-and-in", "inherited", "by-script", "by-child", "by-child-aborted", "by-child-renamed", "by-child-mapped",
          "by-child-in-place", "by-child-of-open-file", "by-daemon")
PLACES = ("half", "done")


def compiled(context, mpi, how):
    """restarts.c with one of its libraries, or restarts.f90."""
    source, target = context.scratch / "src/programs/restarts.c", context.work / "restarts"
    command = [mpi.cc, "-O2", "-Wall", "-o", target, source]
    if how in ("hdf5", "netcdf"):
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", {"hdf5": "hdf5-serial"}.get(how, how)], capture_output=True, text=True)
        check(flags.returncode == 0, f"{flags.stderr}: run scripts/install-deps.sh test")
        command += [f"-D{how.upper()}", *flags.stdout.split()]
    elif how.startswith("fortran"):
        gate = context.work / "gate.o"
        subprocess.run(["cc", "-c", "-o", gate, source.with_name("restarts_gate.c")], check=True)
        command = [mpi.fc, "-O2", "-o", target, source.with_suffix(".f90"), gate]
    run = subprocess.run(command, capture_output=True, text=True, env=context.env(mpi, {}))
    check(run.returncode == 0, f"{how} does not compile: {run.stderr}")
    return [str(target), *([how.partition("-")[2]] if how.startswith("fortran") else [])]


def survive(context, mpi, size, command, place, victim=0, env=None):
    """Kills the victim in the middle of step 2 or after it; the next world must find whole files only, and all of them."""
    gate = f"writer.{place}"
    words = ["done"] if place == "done" else []
    job = context.ftrun(mpi, size, *command, *words, gates=[f"{gate}:{victim}"], env=env)
    pid = job.at_gate(gate, victim)
    directory = pathlib.Path(proc.environ(pid)["FT_CHECKPOINT_DIR"])
    written = [directory / "step.1"] + [directory / "step.2"] * (place == "done")
    for path in [file for path in written for file in [path, *path.rglob("*")] if file.is_file()]:
        job.wait_whole(path)
    job.kill(pid)
    job.expect(0)
    found = re.findall("^found (.*)$", job.output.text, re.M)
    check(found == [str(n + 1) for n in range(len(written))], f"found {found}, of {len(written)} that were whole: {job.err}")
    said = re.search(r"^ftd: .* in \$FT_CHECKPOINT_DIR is set aside: (?:it was (?:open for writing|written so shortly)|process \d+, which may have written it, was ended by signal \d).*$", job.err, re.M)
    check(bool(said) == (place == "half" and command[-1] != "rename-directory-from-outside"), f"what was set aside is not said: {job.err}")
    if said:
        check(re.search(r"^ftd: what is set aside lies in \S+/ckpt.aside until", job.err, re.M), job.err)


@scenario("restart-files", each=[{"how": how, "place": place} for how in PYTHON for place in PLACES])
def restart_files(context, how, place):
    """Python's ways of writing files: plain, renamed into place, a directory that is renamed into place, shutil's copies with
    their times, links, a name that another file takes, O_TMPFILE, truncated, mapped, archives, the kernel's copying, directories that
    are filled faster than anybody can look, or moved out and in; written by a child or by programs of a script, which die alone."""
    outside = context.work / "outside"
    outside.mkdir()
    program = context.scratch / "src/programs/restarts.py"
    survive(context, None, 2, ["/usr/bin/python3", program, how], place, env={"OUTSIDE": outside})


@scenario("restart-libraries", each=[{"mpi": "openmpi4", "how": how, "place": place}
                                     for how in ("hdf5", "netcdf", "fortran-stream", "fortran-unformatted") for place in PLACES]
          + [{"mpi": mpi, "how": "mpi-io", "place": place} for mpi in ("openmpi4", "openmpi5", "mpich4") for place in PLACES])
def restart_libraries(context, mpi, how, place):
    """HDF5 and NetCDF as Debian packages them, Fortran's stream and unformatted files, MPI-IO with collective buffering."""
    mpi = context.mpi(mpi)
    shared = how == "mpi-io"
    survive(context, mpi, 3, compiled(context, mpi, how), place, victim=1 if shared else 0)


PIPELINES = """
if [ "$FT_WORLD" -gt 1 ]; then ls "$FT_CHECKPOINT_DIR" | wc -l; exit; fi
cd "$FT_CHECKPOINT_DIR"
for step in {1..20}; do
    cp "$SOURCE" part; mv part copy.$step
    head -c 1000 "$SOURCE" > small.$step
    gzip -c "$SOURCE" > packed.$step
    seq 100000 | head -1 > first.$step
    sleep 60 & kill $!; wait $!
    cp "$SOURCE" after.$step
    grep -q x /dev/null
done
echo $$ > "$FT_GATE_DIR/draft"
mv "$FT_GATE_DIR/draft" "$FT_GATE_DIR/script.done.0"
while :; do sleep 1; done
"""


def kills_for_memory():
    return int(re.search("^oom_kill ([0-9]+)$", pathlib.Path("/proc/vmstat").read_text(), re.M)[1])


@scenario("script-files", timeout=120)
def script_files(context):
    """What the programs of a script have written is whole, though others that it starts end by signals and with other statuses
    at the same moments: a pipeline that breaks, a monitor that is killed."""
    source = context.work / "source"
    source.write_bytes(os.urandom(1_000_000))
    job = context.ftrun(None, 1, "bash", "-c", PIPELINES, env={"SOURCE": source}, gates=["script.done:0"])
    rank = job.at_gate("script.done", 0, patience=90)
    directory = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"])
    for path in directory.iterdir():
        job.wait_whole(path)
    job.kill(rank)
    job.expect(0)
    check(job.output.text == "100\n" and "set aside" not in job.err, f"files: {job.output.text} {job.err}")


# How programs in Python reach a gate; `gates` is the directory of these.
REACH = """
import os, time
def reach(name):
    with open(f"{gates}/{name}.draft", "w") as file:
        print(os.getpid(), file=file)
    os.rename(f"{gates}/{name}.draft", f"{gates}/{name}.0")
    while not os.path.exists(f"{gates}/{name}.0.go"):
        time.sleep(0.001)
"""

# While `log` is open the agent looks every 50 ms.
STARVED = REACH + """
import os, signal, sys
directory, gates, who = os.environ["FT_CHECKPOINT_DIR"], os.environ["FT_GATE_DIR"], sys.argv[1]
if os.environ["FT_WORLD"] != "1":
    print(*sorted(os.listdir(directory)))
    sys.exit()
with open(f"{directory}/before", "w") as file:
    file.write("whole")
log = open(f"{directory}/log", "w")
reach("starved.begins")
if who == "stranger":
    with open(f"{directory}/beside", "w") as file:
        file.write("whole")
elif os.fork() == 0:
    descriptor = os.open(f"{directory}/half", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"half")
    memory = b"x" * (1 << 28)
    os._exit(0)
else:
    _, status = os.wait()
    if status != signal.SIGKILL:
        sys.exit(f"status {status}")
reach("starved.ended")
"""


def kills_for_memory():
    return int(re.search("^oom_kill ([0-9]+)$", pathlib.Path("/proc/vmstat").read_text(), re.M)[1])


def starve(context, who, kill):
    """Somebody runs out of memory while the agent is frozen, and the rank is killed after that; the job, and the directory."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", STARVED, who, gates=["starved.begins:0", "starved.ended:0"])
    directory = pathlib.Path(proc.environ(job.at_gate("starved.begins", 0))["FT_CHECKPOINT_DIR"])
    job.wait_whole(directory / "before")
    before = kills_for_memory()
    agent = job.one("ft-agent")
    proc.freeze(agent)
    try:
        job.go("starved.begins", 0)
        rank = job.at_gate("starved.ended", 0)
        kill()
        deadline = time.monotonic() + 20
        while kills_for_memory() == before:
            check(time.monotonic() < deadline, "the kernel has ended nobody")
            time.sleep(0.002)
        # Longer than looks are apart: an agent without a processor makes no torn file whole.
        time.sleep(2.5 if who == "helper" else 0)
    finally:
        os.kill(agent, signal.SIGCONT)
    if who == "stranger":
        job.wait_whole(directory / "beside")
    else:
        write_until_whole(job, directory / "after")
    job.kill(rank)
    job.expect(0)
    return job


@scenario("helper-out-of-memory", memory_mb=150)
def helper_out_of_memory(context):
    """A process below the rank runs out of memory with its first file open, and is waited for, before the agent has seen that there
    is one: the file is torn, and why is said."""
    job = starve(context, "helper", lambda: None)
    check(job.output.text == "after before\n", f"found {job.output.text}: {job.err}")
    check(re.search(r"half in \$FT_CHECKPOINT_DIR is set aside: .*lack of memory", job.err), job.err)


STRANGER = root.Starving()


@scenario("stranger-out-of-memory", as_root=STRANGER)
def stranger_out_of_memory(context):
    """Where somebody else runs out of memory, in another memory cgroup, nothing follows for the job's files."""
    job = starve(context, "stranger", STRANGER.begin)
    STRANGER.end()
    check(job.output.text == "before beside\n", f"found {job.output.text}: {job.err}")


SECOND = REACH + """
import os, signal, sys, time
directory, gates, how = os.environ["FT_CHECKPOINT_DIR"], os.environ["FT_GATE_DIR"], sys.argv[1]
def write(name):
    descriptor = os.open(f"{directory}/{name}", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"half")
    return descriptor
if os.environ["FT_WORLD"] != "1":
    print(*sorted(os.listdir(directory)))
    sys.exit()
(done, tell), (wait, go) = os.pipe(), os.pipe()
if (helper := os.fork()) == 0:
    write("log")
    os.write(tell, b"x")
    os.read(wait, 1)
    write("second")
    if how == "status":
        os._exit(1)
    os.kill(os.getpid(), getattr(signal, "SIG" + how))
os.read(done, 1)
for number in range(4):
    os.close(write(f"before.{number}"))
    reach(f"second.before.{number}")
os.write(go, b"x")
os.waitpid(helper, 0)
reach("second.ended")
"""


def write_until_whole(job, path):
    """What is closed before the agent has looked at a dead process may be that one's; who writes it again answers for it."""
    deadline = time.monotonic() + 20
    while not path.exists() or path.stat().st_ino not in job.whole(path):
        check(time.monotonic() < deadline, "what is written afterwards is never noted as whole")
        path.write_text("whole")
        time.sleep(0.02)


@scenario("second-file", each=[{"how": how} for how in ("KILL", "TERM", "status")])
def second_file(context, how):
    """A process below the rank that is known to have a file open opens a second one, and ends otherwise than well before anybody
    has seen that: both are torn. What is written before and after that is whole."""
    before = [f"before.{number}" for number in range(4)]
    gates = [f"second.{name}:0" for name in (*before, "ended")]
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", SECOND, how, gates=gates)
    directory = None
    for name in before:
        directory = pathlib.Path(proc.environ(job.at_gate(f"second.{name}", 0))["FT_CHECKPOINT_DIR"])
        # Whenever a file is noted as whole the agent has looked at the processes, and at what they have open.
        job.wait_whole(directory / name)
        if name != before[-1]:
            job.go(f"second.{name}", 0)
    agent = job.one("ft-agent")
    proc.freeze(agent)
    try:
        job.go(f"second.{before[-1]}", 0)
        rank = job.at_gate("second.ended", 0)
    finally:
        os.kill(agent, signal.SIGCONT)
    write_until_whole(job, directory / "after")
    job.kill(rank)
    job.expect(0)
    check(job.output.text == f"after {' '.join(before)}\n", f"found {job.output.text}: {job.err}")
    for name in ("log", "second"):
        check(f"ftd: {name} in $FT_CHECKPOINT_DIR is set aside: process" in job.err, job.err)


HIDDEN = REACH + """
import ctypes, os, signal, sys, time
directory, gates, how = os.environ["FT_CHECKPOINT_DIR"], os.environ["FT_GATE_DIR"], sys.argv[1]
if os.environ["FT_WORLD"] != "1":
    print(*sorted(os.listdir(directory)))
    sys.exit()
if os.fork() == 0:
    # As a program that may not be read, by the kernel's own doing.
    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
    descriptor = os.open(f"{directory}/half", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"half")
    reach("hidden.open")
    if how == "status":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, "SIG" + how))
os.wait()
reach("hidden.ended")
"""


@scenario("unreadable-helper", each=[{"how": how} for how in ("TERM", "status", "KILL")])
def unreadable_helper(context, how):
    """Nobody may look at a process below the rank (its program may not be read), and it ends otherwise than well with a file open, by its
    own will or not: the file is torn. What is written before and after that is whole."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", HIDDEN, how, gates=["hidden.open:0", "hidden.ended:0"])
    helper = job.at_gate("hidden.open", 0)
    directory = next(pathlib.Path("/dev/shm").glob("ftd-*/ckpt"))
    try:
        os.listdir(f"/proc/{helper}/fd")
        raise Failed("the helper may be looked at")
    except PermissionError:
        pass
    # Then the agent has looked at the helper as well.
    (directory / "before").write_text("whole")
    job.wait_whole(directory / "before")
    job.go("hidden.open", 0)
    rank = job.at_gate("hidden.ended", 0)
    write_until_whole(job, directory / "after")
    job.kill(rank)
    job.expect(0)
    check(job.output.text == "after before\n", f"found {job.output.text}: {job.err}")
    check("ftd: half in $FT_CHECKPOINT_DIR is set aside: process" in job.err, job.err)


MAPPED_AGAIN = REACH + """
import mmap, os, pathlib, signal, sys, time
directory, gates, how = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"], sys.argv[1]
if os.environ["FT_WORLD"] != "1":
    for path in sorted(directory.iterdir()):
        print(path.name, "".join(sorted(set(path.read_text()))))
    sys.exit()
SIZE = 1 << 20
for number in range(4):
    (directory / f"state.{number}").write_bytes(b"1" * SIZE)
reach("again.whole")
for number in range(4):
    if (helper := os.fork()) == 0:
        with open(directory / f"state.{number}", "r+b") as file:
            memory = mmap.mmap(file.fileno(), SIZE)
        memory[: SIZE // 2] = b"2" * (SIZE // 2)
        # What it computes between two parts of the file.
        time.sleep(0.2)
        if how == "well":
            memory[SIZE // 2 :] = b"2" * (SIZE // 2)
            os._exit(0)
        if how == "status":
            os._exit(1)
        os.kill(os.getpid(), getattr(signal, "SIG" + how))
    os.waitpid(helper, 0)
reach("again.ended")
"""


@scenario("again-by-mapping", each=[{"how": how} for how in ("TERM", "KILL", "status", "well")])
def again_by_mapping(context, how):
    """Whole files are written again in place by processes below the rank, through mappings alone, while nothing else happens in
    the directory, and these end in the middle: torn. Those whose writers end well are whole."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", MAPPED_AGAIN, how, gates=["again.whole:0", "again.ended:0"])
    rank = job.at_gate("again.whole", 0)
    directory = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"])
    states = [f"state.{number}" for number in range(4)]
    for name in states:
        job.wait_whole(directory / name)
    job.go("again.whole", 0)
    job.at_gate("again.ended", 0)
    if how == "well":
        for name in states:
            job.wait_whole(directory / name)
    else:
        write_until_whole(job, directory / "zeal")
    job.kill(rank)
    job.expect(0)
    found = [f"{name} 2" for name in states] if how == "well" else ["zeal ehlow"]
    check(job.output.text.splitlines() == found, f"found {job.output.text}: {job.err}")
    said = re.findall(r"^ftd: state\.[0-3] in \$FT_CHECKPOINT_DIR is set aside: process \d+, which may have written it", job.err, re.M)
    check(len(said) == (0 if how == "well" else 4), job.err)


@scenario("leader-gone", each=[{"mpi": mpi, "who": who} for mpi, who in (("openmpi4", "rank"), ("mpich4", "later"), ("mpich4", "helper"))])
def leader_gone(context, mpi, who):
    """A rank, or a process below it, whose main thread has left: it lives. What a helper was writing so is torn when it ends; a rank
    joins its world, its death is noticed at once, and its whole file is there in the next world."""
    mpi = context.mpi(mpi)
    gates = ["leader.half:0", "leader.ended:0", "leader.ready:*"]
    job = context.ftrun(mpi, 2, context.program(mpi, "leader.c"), who, gates=gates)
    if who == "helper":
        helper = job.at_gate("leader.half", 0)
        directory = pathlib.Path(proc.environ(job.ranks()[0])["FT_CHECKPOINT_DIR"])
        write_until_whole(job, directory / "before")
        job.go("leader.half", 0)
        rank = job.at_gate("leader.ended", 0)
        write_until_whole(job, directory / "after")
        job.kill(rank)
    else:
        ranks = [job.at_gate("leader.ready", rank) for rank in (0, 1)]
        threads = [int(task.name) for task in pathlib.Path(f"/proc/{ranks[1]}/task").iterdir() if task.name != str(ranks[1])]
        eventually(lambda: not proc.environ(ranks[1]), "the end of its main thread")
        directory = pathlib.Path(proc.environ(threads[0])["FT_CHECKPOINT_DIR"])
        for number in (0, 1):
            job.wait_whole(directory / f"restart.{number}")
        job.kill(ranks[1])
    job.expect(0)
    found = sorted(job.output.text.splitlines())
    check(found == [f"rank {number} of world 2 found written" for number in (0, 1)], f"found {found}: {job.err}")
    check(len(job.recoveries) == 1, job.err)


CROWD = """
if [ "$FT_WORLD" -gt 1 ]; then ls "$FT_CHECKPOINT_DIR"; exit; fi
for number in {1..300}; do sleep 600 & done
echo whole > "$FT_CHECKPOINT_DIR/file"
echo $$ > "$FT_GATE_DIR/draft"
mv "$FT_GATE_DIR/draft" "$FT_GATE_DIR/crowd.written.0"
wait
"""


def wait_looks(job, agent, looks=4):
    """Waits until the agent's thread that looks at files has gone to sleep so often: it does so twice for each look."""
    (thread,) = [task for task in pathlib.Path(f"/proc/{agent}/task").iterdir() if (task / "comm").read_text().startswith("checkpoint-fil")]
    slept = lambda: int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.M)[1])
    until, deadline = slept() + 2 * looks, time.monotonic() + 20
    while slept() < until:
        check(job.running() and time.monotonic() < deadline, "the agent does not look at the files")
        time.sleep(0.005)


@scenario("crowd", each=[{"limit": "soft"}, {"limit": "hard"}])
def crowd(context, limit):
    """A rank starts more processes than the soft limit of open files has descriptors for: what is written is whole all the same.
    Where the hard one has none either ftd's agent keeps enough of them for its work, and says why the files are set aside."""
    job = context.script(f'ulimit {"-Sn" if limit == "soft" else "-n"} 192; exec "$FTRUN" -n 1 --ft=reinit bash -c "$CROWD"', env={"CROWD": CROWD},
                         gates=["crowd.written:0"])
    rank = job.at_gate("crowd.written", 0)
    path = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"]) / "file"
    if limit == "soft":
        job.wait_whole(path)
    else:
        agent, deadline = job.one("ft-agent"), time.monotonic() + 10
        while sum("pidfd" in target for target in proc.descriptors(agent)) < 96:
            check(time.monotonic() < deadline, f"the agent has {proc.descriptors(agent)}")
            time.sleep(0.005)
        check(len(proc.descriptors(agent)) < 160, f"of 192 descriptors the agent has {len(proc.descriptors(agent))}")
        wait_looks(job, agent)
        check(path.stat().st_ino not in job.whole(path), "it counts as whole")
    job.kill(rank)
    job.expect(0)
    check(job.output.text == ("file\n" if limit == "soft" else ""), f"found {job.output.text!r}: {job.err}")
    said = "ftd: the ranks have started more processes than the agent can watch (96, by its limit of open files)" in job.err
    check(said == (limit == "hard"), job.err)


REWRITE = """
import os, signal, sys, time
path = os.environ["FT_CHECKPOINT_DIR"] + "/restart"
world = int(os.environ["FT_WORLD"])
if os.path.exists(path):
    print("found", set(open(path, "rb").read()), flush=True)
if world > 10:
    sys.exit()
with open(path, "wb", buffering=0) as file:
    file.write(b"a" * 100000)
until = time.perf_counter_ns() + 100_000 * (world - 1)
while time.perf_counter_ns() < until:
    pass
with open(path, "r+b", buffering=0) as file:
    file.write(b"b" * 50000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@scenario("rewritten-in-place")
def rewritten_in_place(context):
    """A file that is written again in place within the millisecond after its closing, in the same step of the kernel's clock
    and with the same length: torn, whenever its writer dies."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", REWRITE, options=["--ft-max-failures=50"])
    job.expect(0)
    check("found" not in job.output.text, f"a torn file was there: {job.output.text}")
    check(len(job.recoveries) == 10, job.err)
    said = re.findall(r"^ftd: restart in \$FT_CHECKPOINT_DIR is set aside: it was ", job.err, re.M)
    check(len(said) == 10, f"said {len(said)} times: {job.err}")


REPLACE = REACH + """
import os, pathlib, shutil, sys, time
directory, gates, how = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"], sys.argv[1]
step = directory / "step"
def replace_file(number):
    draft = directory / "step.tmp"
    draft.write_bytes(str(number).encode() * 100_000)
    os.replace(draft, step)
def replace_by_deleting(number):
    draft = directory / "step.tmp"
    draft.write_bytes(str(number).encode() * 100_000)
    if number > 1:
        os.rename(step, directory / "step.old")
    os.rename(draft, step)
    if number > 1:
        os.unlink(directory / "step.old")
def replace_directory(number):
    part = directory / "part"
    (part / "deep").mkdir(parents=True)
    for path in (part / "a", part / "deep" / "b"):
        path.write_bytes(str(number).encode() * 100_000)
    if number > 1:
        shutil.rmtree(step)
    os.rename(part, step)
def swap_directory(number):
    if number == 1:
        return replace_directory(number)
    os.rename(step, directory / "old")
    replace_directory(1)
    for path in (step / "a", step / "deep" / "b"):
        path.write_bytes(b"2" * 100_000)
    shutil.rmtree(directory / "old")
if os.environ["FT_WORLD"] == "1":
    for number in (1, 2):
        {"replace": replace_file, "delete": replace_by_deleting, "directory": replace_directory, "swap": swap_directory}[how](number)
        reach(f"replaced.{number}")
for path in sorted(path for path in directory.rglob("*") if path.is_file()):
    content = path.read_bytes()
    print(path.relative_to(directory), f"{content[:1].decode()}..{content[-1:].decode()} {len(content)}")
"""


def wait_kept(directory, path):
    """Waits until the agent keeps this whole file, and all above it in $FT_CHECKPOINT_DIR, under their names."""
    def is_kept(path):
        entry = directory.with_name("ckpt.kept") / str(path.parent.stat().st_ino) / path.name
        try:
            return path.stat().st_ino == (int(os.readlink(entry)) if path.is_dir() else entry.stat().st_ino)
        except FileNotFoundError:
            return False

    deadline = time.monotonic() + 10
    while not all(is_kept(one) for one in (path, *path.parents) if one.is_relative_to(directory) and one != directory):
        check(time.monotonic() < deadline, f"{path} is not kept under its name")
        time.sleep(0.002)


@scenario("replaced", each=[{"how": how, "agent": agent} for how, agent in
                            (("c-rename", "lives"), ("replace", "lives"), ("delete", "lives"), ("directory", "lives"), ("swap", "lives"),
                             ("c-rename", "killed"), ("directory", "killed"))])
def replaced(context, how, agent):
    """A program with one restart file (or directory) for all steps replaces it as everybody does, in one step, and is killed
    before ftd can have looked at the new one: that is set aside, and the one before it is there again, also when it is ftd's agent
    that was killed."""
    if how == "c-rename":
        command = [context.program(context.mpi("openmpi4"), "replaced.c")]
    else:
        command = ["/usr/bin/python3", "-c", REPLACE, how]
    job = context.ftrun(None, 1, *command, gates=["replaced.1:0", "replaced.2:0"])
    directory = pathlib.Path(proc.environ(job.at_gate("replaced.1", 0))["FT_CHECKPOINT_DIR"])
    names = ["step/a", "step/deep/b"] if how in ("directory", "swap") else ["step"]
    for name in names:
        job.wait_whole(directory / name)
        wait_kept(directory, directory / name)
    # One that was whole before it was renamed is kept under its old name too until a look is over.
    links = lambda: [(directory / name).stat().st_nlink for name in names]
    eventually(lambda: links() == [2] * len(names), "a whole file is kept under one name")
    first = job.one("ft-agent")
    proc.freeze(first)
    try:
        job.go("replaced.1", 0)
        rank = job.at_gate("replaced.2", 0)
        if agent == "killed":
            job.kill(first)
        else:
            job.kill(rank)
    finally:
        if agent == "lives":
            os.kill(first, signal.SIGCONT)
    job.expect(0)
    check(job.output.text == "".join(f"{name} 1..1 100000\n" for name in names), f"found {job.output.text!r}: {job.err}")
    said = r"^ftd: step in \$FT_CHECKPOINT_DIR is set aside: .*; the whole one before it, written \d+\.\d+ s before, is in its place$"
    check(len(re.findall(said, job.err, re.M)) == 1, job.err)


@scenario("replaced-while-kept")
def replaced_while_kept(context):
    """The agent is killed when it knows that the new restart file is whole and is about to let go of the one before it: a whole file
    is there."""
    command = [context.program(context.mpi("openmpi4"), "replaced.c")]
    job = context.ftrun(None, 1, *command, gates=["replaced.1:0", "replaced.2:0", "agent.whole:*:2"])
    directory = pathlib.Path(proc.environ(job.at_gate("replaced.1", 0))["FT_CHECKPOINT_DIR"])
    job.wait_whole(directory / "step")
    wait_kept(directory, directory / "step")
    job.go("replaced.1", 0)
    job.at_gate("replaced.2", 0)
    job.kill(job.at_gate("agent.whole"))
    job.expect(0)
    check(job.output.text == "step 2..2 100000\n", f"found {job.output.text!r}: {job.err}")
    check("is set aside" not in job.err, job.err)


ONLY = REACH + """
import os, pathlib
gates = os.environ["FT_GATE_DIR"]
if os.environ["FT_WORLD"] == "1":
    reach("only.begin")
    pathlib.Path(os.environ["FT_CHECKPOINT_DIR"], "step").write_bytes(b"x")
    reach("only.written")
"""


@scenario("none-left")
def none_left(context):
    """The only restart file was written too late to be known as whole, and there is none before it: the block does not say that
    there was none."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", ONLY, gates=["only.begin:0", "only.written:0"])
    job.at_gate("only.begin", 0)
    first = job.one("ft-agent")
    proc.freeze(first)
    job.go("only.begin", 0)
    job.at_gate("only.written", 0)
    job.kill(first)
    job.expect(0)
    said = "restarted from the beginning: 1 file of the program's was set aside and none is left (it lies in $FT_CHECKPOINT_DIR.aside)"
    check(said in job.err, job.err)


KEPT = REACH + """
import os, pathlib, sys, time
directory, gates = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"]
for name in ("first", "second"):
    (directory / name).write_bytes(b"x" * 1_000_000)
reach("kept.written")
(directory / "next").write_bytes(b"y")
os.replace(directory / "next", directory / "first")
os.unlink(directory / "second")
reach("kept.replaced")
"""


@scenario("replaced-freed", each=[{"ft": "reinit"}, {"ft": "none"}])
def replaced_freed(context, ft):
    """The memory of a file that was deleted, and of one that a whole one has replaced, is free again; under --ft=none nothing is kept
    at all."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", KEPT, ft=ft, gates=["kept.written:0", "kept.replaced:0"])
    directory = pathlib.Path(proc.environ(job.at_gate("kept.written", 0))["FT_CHECKPOINT_DIR"])
    files = [directory / name for name in ("first", "second")]
    for path in files:
        job.wait_whole(path)
        if ft == "reinit":
            wait_kept(directory, path)
    kept = directory.with_name("ckpt.kept")
    check(kept.exists() == (ft == "reinit"), f"{kept} exists: {kept.exists()}")
    # What is free again nothing has open or named.
    held = [open(path, "rb") for path in files]
    job.go("kept.written", 0)
    job.at_gate("kept.replaced", 0)
    deadline = time.monotonic() + 10
    while links := [os.fstat(file.fileno()).st_nlink for file in held if os.fstat(file.fileno()).st_nlink]:
        check(time.monotonic() < deadline, f"they have {links} names still")
        time.sleep(0.002)
    for file in held:
        file.close()
    job.go("kept.replaced", 0)
    job.expect(0)


MANY = REACH + """
import os, sys, time
directory, gates = os.environ["FT_CHECKPOINT_DIR"], os.environ["FT_GATE_DIR"]
if os.environ["FT_WORLD"] != "1":
    print(len(os.listdir(directory)), sum(name.startswith("torn") for name in os.listdir(directory)))
    sys.exit()
open(f"{directory}/early", "w").close()
reach("many.begin")
torn = os.open(f"{directory}/torn.1", os.O_CREAT | os.O_WRONLY)
for number in range(int(sys.argv[1])):
    os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY))
torn = os.open(f"{directory}/torn.2", os.O_CREAT | os.O_WRONLY)
reach("many.done")
"""


@scenario("many-files", timeout=150)
def many_files(context):
    """More files than the kernel's queue of notices holds, while the agent stands still: it notices that notices were lost, and
    looks at the directory. All that are whole are kept, none that is torn."""
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        number = int(file.read()) + 2000
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", MANY, number, gates=["many.begin:0"])
    rank = job.at_gate("many.begin", 0)
    directory = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"])
    job.wait_whole(directory / "early")
    agent = job.one("ft-agent")
    proc.freeze(agent)
    try:
        job.go("many.begin", 0)
        job.at_gate("many.done", 0)
    finally:
        os.kill(agent, signal.SIGCONT)
    # Any may be the last that the agent looks at; it rests for as long as it works.
    deadline = time.monotonic() + 100
    while len(job.whole(directory)) < number + 1:
        check(time.monotonic() < deadline, f"{len(job.whole(directory))} of {number + 1} files are noted as whole")
        time.sleep(0.01)
    job.kill(rank)
    job.expect(0)
    check(job.output.text == f"{number + 1} 0\n", f"files and torn ones: {job.output.text}, of {number + 1} that are whole")


LOCKED = REACH + """
import os, pathlib, stat, sys, time
directory, gates, mode = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"], int(sys.argv[1], 8)
locked, deep = directory / "locked", directory / "locked" / "deep"
if os.environ["FT_WORLD"] == "1":
    deep.mkdir(parents=True)
    for path in (locked / "whole", deep / "whole"):
        path.write_text("whole")
    files = [open(path / "torn", "wb", buffering=0) for path in (locked, deep)]
    for file in files:
        file.write(b"half")
    reach("locked.written")
    for path in (deep, locked, directory):
        path.chmod(mode)
    reach("locked.done")
for path in (directory, locked, deep):
    print(path.name, oct(stat.S_IMODE(path.stat().st_mode)), end=" ")
    path.chmod(0o755)
print(*sorted(f"{path.relative_to(directory)}" for path in directory.rglob("*") if path.is_file()))
for path in (deep, locked, directory):
    path.chmod(mode)
"""


@scenario("locked-directories", each=[{"mode": "555"}, {"mode": "000"}], public=True)
def locked_directories(context, mode):
    """Torn files in directories in which nobody may write (or look) any more are set aside all the same, whole ones stay, the
    permissions are what they were, and nothing of the directory outlives the job."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", LOCKED, mode, gates=["locked.written:0", "locked.done:0"])
    rank = job.at_gate("locked.written", 0)
    directory = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"])
    for name in ("locked/whole", "locked/deep/whole"):
        job.wait_whole(directory / name)
    job.go("locked.written", 0)
    job.at_gate("locked.done", 0)
    job.kill(rank)
    job.expect(0)
    octal = oct(int(mode, 8))
    check(job.output.text == f"ckpt {octal} locked {octal} deep {octal} locked/deep/whole locked/whole\n", job.output.text + job.err)
    check("with 2 files in $FT_CHECKPOINT_DIR" in job.err, job.err)
    for name in ("locked/torn", "locked/deep/torn"):
        check(f"ftd: {name} in $FT_CHECKPOINT_DIR is set aside: it was open" in job.err, job.err)


FIXED = """
import os, pathlib, subprocess, sys, time
directory, gates = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"]
where, program = sys.argv[1:]
fixed = directory / where
def gate(name):
    with open(f"{gates}/{name}.draft", "w") as draft:
        print(os.getpid(), file=draft)
    os.rename(f"{gates}/{name}.draft", f"{gates}/{name}.0")
    while not os.path.exists(f"{gates}/{name}.0.go"):
        time.sleep(0.01)
if os.environ["FT_WORLD"] == "1":
    fixed.mkdir(parents=True)
    (directory / "beside").mkdir()
    for path in (directory / "whole", directory / "beside" / "whole"):
        path.write_text("whole")
    gate("written")
    file = open(fixed / "torn", "wb", buffering=0)
    file.write(b"half")
    subprocess.run([program, "on", fixed], check=True)
    gate("fixed")
print(*sorted(f"{path.relative_to(directory)}" for path in directory.rglob("*") if path.is_file()))
for path in directory.parent.rglob("fixed"):
    subprocess.run([program, "off", path], check=True)
"""


@scenario("immutable-directory", each=[{"where": "sub/fixed"}, {"where": "fixed"}], as_root=root.Immutable())
def immutable_directory(context, where):
    """A torn file that can neither be moved nor removed, for its directory is immutable, does not stay: what it stands in is set aside
    with it, and this is said. The rest stays."""
    program = root.immutable_program(context.scratch, os.getpid())
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", FIXED, where, program, gates=["written:0", "fixed:0"])
    directory = pathlib.Path(proc.environ(job.at_gate("written", 0))["FT_CHECKPOINT_DIR"])
    # What nobody has seen to be whole before a helper of other rights came and went may be that helper's.
    for name in ("whole", "beside/whole"):
        job.wait_whole(directory / name)
    job.go("written", 0)
    job.kill(job.at_gate("fixed", 0))
    job.expect(0)
    check(job.output.text == "beside/whole whole\n", job.output.text + job.err)
    top = where.partition("/")[0]
    said = rf"^ftd: {top} in \$FT_CHECKPOINT_DIR is set aside with all that is in it, for {where}/torn cannot be taken out of it \(.*\): it was open"
    check(re.search(said, job.err, re.M), job.err)


# The program's own files, which it reaches by a link or a mount in the place of $FT_CHECKPOINT_DIR or of a directory in it.
FOREIGN = """
place=$FT_CHECKPOINT_DIR$2
if [ "$FT_WORLD" = 1 ]; then
    [ -z "$2" ] || echo whole > "$FT_CHECKPOINT_DIR/own"
    case $1 in
    link) [ -n "$2" ] || rmdir "$place"; ln -s "$OUTSIDE" "$place";;
    mount) mkdir -p "$place"; mount --bind "$OUTSIDE" "$place";;
    esac
    ln -s "$OUTSIDE/precious" "$FT_CHECKPOINT_DIR/file"
fi
echo "world $FT_WORLD: $(ls "$place/precious" "$place/locked/deep/data" | wc -l)"
exec 5>> "$place/open"
echo "$FT_WORLD" >&5
echo late > "$place/late"
[ "$FT_WORLD" -eq 3 ] || kill -9 $$
"""


def make_foreign(outside):
    """Some files, and what must stay as it is of each: links, mode and times, too."""
    (outside / "locked" / "deep").mkdir(parents=True)
    for name in ("precious", "locked/data", "locked/deep/data"):
        (outside / name).write_text(name)
    os.link(outside / "precious", outside / "second-name")
    (outside / "locked").chmod(0o555)
    os.chmod(outside / "locked/data", 0o200)


def seen_of(outside):
    seen = {}
    for path in sorted(outside.rglob("*")):
        found = path.lstat()
        if path.name not in ("open", "late"):
            seen[path.relative_to(outside)] = (found.st_ino, found.st_mode, found.st_nlink, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return seen


def leave_foreign_alone(context, outside, start, status=0, what="link", at=""):
    """Two failures and the end: nothing of `outside` is touched, and this is said."""
    make_foreign(outside)
    try:
        before = seen_of(outside)
        job = start()
        job.expect(status)
        after = seen_of(outside)
        check({**before, pathlib.Path("file"): None} == {**after, pathlib.Path("file"): None}, f"{before} became {after}: {job.err}")
        check((outside / "late").exists() and (outside / "open").read_text() == "1\n2\n3\n", f"what the program wrote is gone: {job.err}")
        check(job.output.text.startswith("".join(f"world {world}: 2\n" for world in (1, 2, 3))), job.output.text + job.err)
        check(not re.search(r"is set aside|is removed", job.err), job.err)
        sentence = {("link", ""): rf"\$FT_CHECKPOINT_DIR is a symbolic link to {outside}: what lies behind it is the program's own: ftd leaves it alone",
                    ("mount", ""): r"\$FT_CHECKPOINT_DIR is a mount: what lies behind it is the program's own: ftd leaves it alone"}
        said = sentence.get((what, at), r"what lies behind file, sub in \$FT_CHECKPOINT_DIR, by a symbolic link or a mount, is the program's own")
        check(re.search(f"^ftd: {said}", job.err, re.M), job.err)
        went_on_with = "1 file in" if at else "what lies behind"
        check(f"restarted without a checkpoint of the API, with {went_on_with} $FT_CHECKPOINT_DIR\n" in job.err, job.err)
    finally:
        (outside / "locked").chmod(0o755)
        shutil.rmtree(outside)


@scenario("linked-away", each=[{"at": at, "on": on} for at in ("root", "below") for on in ("disk", "memory")], public=True)
def linked_away(context, at, on):
    """What lies behind a symbolic link that the program has made in the place of $FT_CHECKPOINT_DIR, or in it, is the program's own:
    it is not set aside, not removed, not linked or unlocked, in a failure and at the end; and stderr says that it is not protected."""
    outside = context.work / "outside" if on == "disk" else pathlib.Path(f"/dev/shm/outside.{os.getpid()}")
    place = {"root": "", "below": "/sub"}[at]
    leave_foreign_alone(context, outside, lambda: context.ftrun(None, 1, "bash", "-c", FOREIGN, "foreign", "link", place, env={"OUTSIDE": outside}),
                        at=place)


@scenario("mounted-over", each=[{"at": at, "on": on} for at in ("root", "below") for on in ("disk", "memory")])
def mounted_over(context, at, on):
    """The same of a mount, which is there still when the job ends; the job's directory goes when the mount has gone."""
    outside = context.work / "outside" if on == "disk" else pathlib.Path(f"/dev/shm/outside.{os.getpid()}")
    place = {"root": "", "below": "/sub"}[at]
    text = """unshare --user --map-root-user --mount "$FTRUN" -n 1 --ft=reinit bash -c "$FOREIGN" foreign mount "$1"
        status=$?
        unshare --user --map-root-user "$FTRUN" -n 1 true
        exit $status"""
    job = []
    def start():
        job.append(context.script(text, place, env={"FOREIGN": FOREIGN, "OUTSIDE": outside}))
        return job[0]
    leave_foreign_alone(context, outside, start, what="mount", at=place)
    check(re.search(r"^ftrun: the job's directory \S+ cannot be removed .*mounted", job[0].err, re.M), job[0].err)


LINKED = REACH + """
import os, pathlib, sys, time
directory, gates, outside = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"], pathlib.Path(sys.argv[1])
world = int(os.environ["FT_WORLD"])
print(*sorted(os.listdir(directory)), flush=True)
if world == 3:
    sys.exit()
os.link(outside / "data", directory / f"name.{world}")
open_for_writing = open(outside / "data", "r+")
(directory / f"whole.{world}").write_text("whole")
reach(f"linked.{world}")
"""


@scenario("second-name", public=True)
def second_name(context):
    """A file of the program's own that it hard-links into $FT_CHECKPOINT_DIR and has open when it dies: the name here is set aside, and
    goes with the next failure; its other name, and what it names, stay as they are."""
    outside = pathlib.Path(f"/dev/shm/outside.{os.getpid()}")
    outside.mkdir()
    try:
        data = outside / "data"
        data.write_text("data")
        data.chmod(0o640)
        before = data.stat()
        job = context.ftrun(None, 1, "/usr/bin/python3", "-c", LINKED, outside, gates=["linked.1:0", "linked.2:0"])
        for world in (1, 2):
            rank = job.at_gate(f"linked.{world}", 0)
            directory = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"])
            job.wait_whole(directory / f"whole.{world}")
            aside = directory.with_name("ckpt.aside")
            found = sorted(path.name for path in aside.rglob("*")) if aside.exists() else []
            check(found == [f"name.{number}" for number in range(1, world)], f"in world {world} {found} are set aside")
            job.kill(rank)
        job.expect(0)
        check(job.output.text == "\nwhole.1\nwhole.1 whole.2\n", job.output.text + job.err)
        after = data.stat()
        check([(at.st_ino, at.st_mode, at.st_nlink, at.st_mtime_ns) for at in (before, after)].count((after.st_ino, after.st_mode, 1, after.st_mtime_ns)) == 2
              and data.read_text() == "data", f"{before} became {after}")
    finally:
        shutil.rmtree(outside)


ASIDE = REACH + """
import os, sys, time
directory, gates, world = os.environ["FT_CHECKPOINT_DIR"], os.environ["FT_GATE_DIR"], int(os.environ["FT_WORLD"])
if world < 3:
    file = open(f"{directory}/torn.{world}", "wb", buffering=0)
    file.write(b"x" * 1_000_000)
if world < 4:
    reach(f"aside.{world}")
elif os.path.exists(f"{directory}.aside"):
    print("set aside:", os.listdir(f"{directory}.aside"))
"""


@scenario("aside-emptied", public=True)
def aside_emptied(context):
    """What is set aside takes memory until the next failure, and no longer, whether that leaves something itself or not."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", ASIDE, gates=[f"aside.{world}:0" for world in (1, 2, 3)])
    for world, expected in ((1, []), (2, ["torn.1"]), (3, ["torn.2"])):
        rank = job.at_gate(f"aside.{world}", 0)
        aside = pathlib.Path(proc.environ(rank)["FT_CHECKPOINT_DIR"]).with_name("ckpt.aside")
        found = sorted(os.listdir(aside)) if aside.exists() else []
        check(found == expected, f"in world {world} {found} are set aside")
        job.kill(rank)
    job.expect(0)
    check(job.output.text in ("", "set aside: []\n"), f"what world 2 had left is there still after world 3, which left nothing: {job.output.text}")
    check(not aside.exists(), f"{aside} is there still")


AGAIN = REACH + """
import os, pathlib, shutil, subprocess, sys, time
directory, gates, how = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), os.environ["FT_GATE_DIR"], sys.argv[1]
print(*sorted(f"{path.relative_to(directory)}" for path in directory.rglob("*") if path.is_file()), flush=True)
if os.environ["FT_WORLD"] == "1":
    (directory / "old").write_text("old")
    reach("again.old")
    if how == "remove":
        shutil.rmtree(directory)
        os.makedirs(directory)
    elif how == "script":
        subprocess.run('rm -rf "$FT_CHECKPOINT_DIR"; mkdir -p "$FT_CHECKPOINT_DIR"', shell=True, check=True)
    elif how == "move":
        os.rename(directory, f"{directory}.old")
        os.makedirs(directory)
    elif how == "move-into-place":
        os.mkdir(f"{directory}.new")
        pathlib.Path(f"{directory}.new/early").write_text("early")
        os.rename(directory, f"{directory}.old")
        os.rename(f"{directory}.new", directory)
    elif how == "later":
        shutil.rmtree(directory)
        reach("again.removed")
        os.makedirs(directory)
    (directory / "sub").mkdir()
    for name in ("file", "sub/file"):
        (directory / name).write_text("whole")
    torn = open(directory / "torn", "w")
    reach("again.made")
"""


@scenario("directory-made-again", each=[{"how": how} for how in ("remove", "script", "move", "move-into-place", "later", "agent-killed")], public=True)
def directory_made_again(context, how):
    """A program that removes $FT_CHECKPOINT_DIR, or moves it away, and makes it again: the whole files of the new one are there in the
    next world, those of the old one are not, and what is torn is set aside."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", AGAIN, "later" if how == "agent-killed" else how,
                        gates=["again.old:0", "again.made:0", *(["again.removed:0"] if how in ("later", "agent-killed") else [])])
    directory = pathlib.Path(proc.environ(job.at_gate("again.old", 0))["FT_CHECKPOINT_DIR"])
    job.wait_whole(directory / "old")
    wait_kept(directory, directory / "old")
    held = open(directory / "old")
    agent = job.one("ft-agent")
    if how == "agent-killed":
        # What happens from now on waits for the next agent.
        proc.freeze(agent)
    job.go("again.old", 0)
    if how in ("later", "agent-killed"):
        job.at_gate("again.removed", 0)
        job.go("again.removed", 0)
    rank = job.at_gate("again.made", 0)
    if how == "agent-killed":
        job.kill(agent)
        job.expect(0)
        check(job.output.text == "\n\n", f"nothing of it had been looked at: {job.output.text} {job.err}")
        return
    expected = ["file", "sub/file"] + ["early"] * (how == "move-into-place")
    for name in expected:
        job.wait_whole(directory / name)
    deadline = time.monotonic() + 10
    while os.fstat(held.fileno()).st_nlink != (1 if how.startswith("move") else 0):
        check(time.monotonic() < deadline, f"the old file has {os.fstat(held.fileno()).st_nlink} names")
        time.sleep(0.005)
    job.kill(rank)
    job.expect(0)
    check(job.output.text == "\n" + " ".join(sorted(expected)) + "\n", job.output.text + job.err)
    check(re.search(r"^ftd: torn in \$FT_CHECKPOINT_DIR is set aside: it was open", job.err, re.M), job.err)


@scenario("no-directory-any-more", each=[{"what": what} for what in ("file", "fifo", "loop")], public=True)
def no_directory_any_more(context, what):
    """A file or a pipe in the place of $FT_CHECKPOINT_DIR is set aside, and there is a new directory; a link stays, wherever it leads."""
    make = {"file": 'echo x > "$FT_CHECKPOINT_DIR"', "fifo": 'mkfifo "$FT_CHECKPOINT_DIR"', "loop": 'ln -s ckpt "$FT_CHECKPOINT_DIR"'}[what]
    text = f'[ "$FT_WORLD" -eq 1 ] || exec stat -c %F "$FT_CHECKPOINT_DIR"\nrmdir "$FT_CHECKPOINT_DIR"; {make}; kill -9 $$'
    job = context.ftrun(None, 1, "bash", "-c", text)
    job.expect(0)
    check(job.output.text == ("symbolic link\n" if what == "loop" else "directory\n"), job.output.text + job.err)
    said = (r"\$FT_CHECKPOINT_DIR is a symbolic link to ckpt: " if what == "loop"
            else r"\$FT_CHECKPOINT_DIR was no directory any more: what stood there lies in \S+/ckpt.aside/ckpt until the next failure")
    check(re.search(f"^ftd: {said}", job.err, re.M), job.err)


# A memory directory that is full to its last page, or in which nothing can be made any more, from the time on when two files are whole.
FULL = """
import os, pathlib, signal, struct, time
directory, world = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"]), int(os.environ["FT_WORLD"])
print(*sorted(path.name for path in directory.iterdir()), flush=True)
if world == 3:
    raise SystemExit
def whole():
    data, found = directory.with_suffix(".whole").read_bytes(), set()
    for says, _, inode in struct.iter_unpack("=IiQ", data[16:]):
        {1: found.add, 2: found.discard}.get(says, lambda _: found.clear())(inode)
    return found if data[:1] == bytes(1) else set()
for step in (1, 2) if world == 1 else ():
    (directory / f"step.{step}").write_text("whole")
while {path.stat().st_ino for path in directory.iterdir()} - whole():
    time.sleep(0.002)
try:
    if os.environ["WHAT"] == "pages":
        with open("/dev/shm/filler", "ab", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
    else:
        for number in range(100_000):
            open(f"/dev/shm/filler.{world}.{number}", "x").close()
except OSError as full:
    assert full.errno == 28, full
def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
launcher = parent(parent(os.getpid()))
for pid in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
    if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "ft-agent":
        os.kill(int(pid), signal.SIGKILL)
signal.pause()
"""


@scenario("full-memory", each=[{"what": what} for what in ("pages", "inodes")])
def full_memory(context, what):
    """The agent is killed twice while the memory directory is full to its last page, or has no inode left: that is a recovery as ever,
    and the files that were whole are there."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode != 0:
        raise Skipped("no name spaces for an ordinary user here")
    text = """exec unshare --user --map-root-user --mount bash -c 'mount -t tmpfs -o size=8m,nr_inodes=200 none /dev/shm && exec "$@"' - \
        "$FTRUN" -n 1 --ft=reinit /usr/bin/python3 -c "$FULL" """
    job = context.script(text, env={"FULL": FULL, "WHAT": what})
    job.expect(0)
    check(job.output.text == "\nstep.1 step.2\nstep.1 step.2\n", job.output.text + job.err)
    check(job.err.count("the agent died (SIGKILL) and was started again") == 2 and "set aside" not in job.err, job.err)
