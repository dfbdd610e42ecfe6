"""Nothing printed is lost: what the ranks print, on its way through every kind of buffer, pipe, terminal and disk."""

import errno
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

from harness import proc
from harness.job import Skipped, check
from harness.registry import scenario


def until(what, sentence, patience=20.0):
    """Polls until it holds; returns what it returned."""
    deadline = time.monotonic() + patience
    while not (found := what()):
        check(time.monotonic() < deadline, sentence() if callable(sentence) else sentence)
        time.sleep(0.005)
    return found


def two_sleepers(job):
    """The two ranks of a job that have become `sleep`."""
    found = job.below("sleep")
    return found if len(found) == 2 else None


def ftrun_of(job):
    """The `ftrun` that a script has started: the uppermost one."""
    found = job.below("ftrun")
    return next(pid for pid in found if proc.stat(pid)[1] not in found)


def printed(text, rank):
    """The steps whose lines a rank printed, in order."""
    return [int(step) for step in re.findall(rf"^rank {rank} step (\d+)$", text, re.M)]


def check_printed(job, size, steps, version):
    """Every rank's lines up to the restored version are there once, and the later ones again below them; nothing else is."""
    text = job.output.text
    for rank in range(size):
        steps_of = printed(text, rank)
        first = len(steps_of) - (steps - version)
        check(first >= version, f"rank {rank} lost lines that were printed before version {version}: {steps_of}")
        wanted = [*range(1, first + 1), *range(version + 1, steps + 1)]
        check(steps_of == wanted, f"rank {rank} printed {steps_of}, not {wanted}")
    strange = [line for line in text.splitlines() if not re.fullmatch(r"rank \d (step|checkpoint) \d+", line)]
    check(not strange, f"lines that nobody printed: {strange}")


PYTHON = """
import ctypes, os, sys
from mpi4py import MPI

ft = ctypes.CDLL("libftd_client.so.0")
ft.ft_checkpoint.argtypes = [ctypes.c_uint64]
state, version, step = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_int()
empty = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: sys.stdout.flush())
assert ft.ft_on_checkpoint(empty, None) == 0
assert ft.ft_init(ctypes.byref(state)) == 0
assert ft.ft_protect(0, ctypes.byref(step), ctypes.c_size_t(4)) == 0
ft.ft_restore(ctypes.byref(version))
while step.value < int(sys.argv[1]):
    MPI.COMM_WORLD.allreduce(1)
    step.value += 1
    print("rank", MPI.COMM_WORLD.rank, "step", step.value)
    if step.value % int(sys.argv[2]) == 0:
        assert ft.ft_checkpoint(step.value) == 0
"""

# What prints, and how; each of these but the first two loses lines when ft_checkpoint does not empty that buffer.
HOWS = {"c": "p", "c-reader": "r", "c-large-buffer": "f", "c-own-buffer": "o", "c-registered": "b", "cplusplus": "c", "cplusplus-unsynced": "u", "cplusplus-clog": "l"}


def lines_program(context, mpi, how):
    """Command line of the program, without its numbers, and what follows them."""
    if how == "fortran":
        return [context.program(mpi, "lines.f90")], []
    if how == "python":
        (context.work / "lines.py").write_text(PYTHON)
        return ["/usr/bin/python3", "lines.py"], []
    if not how.startswith("cplusplus"):
        return [context.program(mpi, "lines.c")], [HOWS[how]]
    source, program = context.work / "lines.cpp", context.work / "lines"
    source.write_text(next((context.scratch / "src").rglob("lines.c")).read_text())
    include = next((context.scratch / "src").rglob("gate.h")).parent
    subprocess.run(
        ["/usr/bin/mpicxx.openmpi", "-Wall", "-Wno-unused-function", "-o", program, source, "-I", include,
         "-I", context.prefix / "include", "-L", context.prefix / "lib", f"-Wl,-rpath,{context.prefix}/lib",
         "-lftd_client"], env=context.env(mpi, {}), check=True,
    )
    to_stdout = ["bash", "-c", 'exec "$@" 2>&1', "bash"] if how == "cplusplus-clog" else []
    return [*to_stdout, str(program)], [HOWS[how]]


@scenario("printed", each=[{"how": how} for how in [*HOWS, "fortran", "python"]])
def printed_before(context, how):
    """A program prints a line per step, takes a checkpoint in every fourth, never flushes, and dies: no line of a step up to
    the restored version is missing."""
    mpi = context.mpi("openmpi4")
    command, rest = lines_program(context, mpi, how)
    steps, size = 15, 3
    # Standard input that never ends: a thread of the program may be reading it.
    read, write = os.pipe()
    job = context.ftrun(
        mpi, size, *command, str(steps), "4", *rest, gates=["client.copied:1:3"], stdin=read,
        env={"LD_LIBRARY_PATH": context.prefix / "lib"} if how == "python" else {},
    )
    os.close(read)
    job.kill(job.at_gate("client.copied", 1))
    if how == "c-reader":
        job.wait_err("restored +version", 1)
        until(lambda: job.output.text.count(f"step {steps}\n") >= size, lambda: f"the end is not printed: {job.output.text}")
    os.close(write)
    job.expect(0)
    check(job.restored == [8], f"restored {job.restored}")
    check_printed(job, size, steps, 8)
    if how == "fortran":
        for rank in range(size):
            check(f"rank {rank} checkpoint 8\n" in job.output.text, "what a registered subroutine printed was lost")


@scenario("printed-held")
def printed_held(context):
    """A thread that holds stdout for ever holds up no checkpoint for long, and it is said once that output may be lost."""
    mpi = context.mpi("openmpi4")
    job = context.ftrun(mpi, 2, context.program(mpi, "lines.c"), "4", "2", "h")
    job.expect(0)
    check(len(re.findall("another thread held stdout", job.err)) == 2, f"not said once per rank: {job.err}")


@scenario("live-output", each=[{"mpi": "openmpi4", "ft": "reinit"}, {"mpi": "openmpi4", "ft": "none"}, {"mpi": "mpich4", "ft": "reinit"}])
def live_output(context, mpi, ft):
    """A line is on ftrun's stdout while the program computes on, though the program never flushes and calls nothing of ftd's;
    and what the program printed before MPI_Init, or redirected, is not touched."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 2, context.program(mpi, "lines.c"), "9", "0", "p", ft=ft, gates=["app.step:1"])
    job.at_gate("app.step", 1)
    until(lambda: printed(job.output.text, 1) == [1, 2, 3, 4, 5, 6], lambda: f"not live: {job.output.text!r}")
    job.go("app.step", 1)
    job.expect(0)
    check(printed(job.output.text, 1) == list(range(1, 10)), job.output.text)


@scenario("not-live", each=[{"how": "file"}, {"how": "own-buffer"}])
def not_live(context, how):
    """A stdout that a wrapper sent to a file, or that has a buffer of the program's own, stays as the program wants it."""
    mpi = context.mpi("openmpi4")
    program = context.program(mpi, "lines.c")
    script = f"exec {program} 9 0 {'p >out.$FT_RANK' if how == 'file' else 'o'}"
    job = context.ftrun(mpi, 2, "bash", "-c", script, gates=["app.step:1"])
    job.at_gate("app.step", 1)
    out = context.work / "out.1" if how == "file" else job.out_path
    # Rank 0 is in step 7, so whatever was to come of rank 1's lines has long come: the gate is behind them.
    check(not printed(out.read_text(), 1), f"the buffer was taken away: {out.read_text()!r}")
    job.go("app.step", 1)
    job.expect(0)
    check(printed(out.read_text(), 1) == list(range(1, 10)), out.read_text())


# A rank without MPI: it writes much, then computes; the next world says that it is there.
FLOOD = """
if [ "$FT_WORLD" = 1 ]; then seq -f "$FT_RANK %g" 20000; else touch "$HERE/second.$FT_RANK"; fi
exec sleep 1000
"""


@scenario("stopped-terminal", public=True)
def stopped_terminal(context):
    """The terminal that ftrun writes to stands still, with room for a few bytes, and Ctrl-S is pressed in it: deaths are seen
    and recovered from all the same, and when the terminal goes on nothing is missing."""
    terminal, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    job = context.script(
        '"$FTRUN" -n 2 --ft=reinit bash -c "$FLOOD" >"$TERMINAL"',
        env={"TERMINAL": os.ttyname(slave), "FLOOD": FLOOD, "HERE": context.work},
    )
    sleepers = until(
        lambda: two_sleepers(job),
        "the ranks are still writing: ftrun does not read while its terminal stands still",
    )
    termios.tcflow(slave, termios.TCOOFF)
    job.kill(sleepers[0])
    for rank in range(2):
        until((context.work / f"second.{rank}").exists, "a death was not seen while the terminal stood still")
    check("restarted" in job.wait_err("restarted.*|restored.*", 1)[0], job.err)
    text = bytearray()
    termios.tcflow(slave, termios.TCOON)
    while text.count(b"\n") < 40000:
        text += os.read(terminal, 1 << 16)
    for rank in range(2):
        lines = [line for line in text.decode().splitlines() if line.startswith(f"{rank} ")]
        check(lines == [f"{rank} {n}" for n in range(1, 20001)], f"rank {rank}'s lines are not whole")
    os.kill(ftrun_of(job), signal.SIGTERM)
    check(job.wait(30) == 143, "not ended by SIGTERM")
    os.close(terminal)
    os.close(slave)


@scenario("stalled-pipe")
def stalled_pipe(context):
    """A pipe that nobody reads: a signal to ftrun ends the job all the same, and ftrun."""
    pipe = context.work / "pipe"
    os.mkfifo(pipe)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    flood = "while :; do echo some words that fill a pipe; done & exec sleep 1000"
    job = context.start(
        ["bash", "-c", 'exec "$@" >pipe', "bash", context.prefix / "bin/ftrun", "-n", "2", "--ft=reinit", "bash", "-c", flood],
        hurry=10,
    )
    until(lambda: two_sleepers(job), "the ranks do not run")
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    until(lambda: not select.select([], [writer], [], 0)[1], "the pipe does not become full")
    os.close(writer)
    os.kill(job.pid, signal.SIGTERM)
    check(job.wait(30) == 143, "not ended by SIGTERM")
    os.close(read)


# A disk with 64 KiB left, in a name space where that can be made. What the job printed comes out of it at the end.
SMALL_DISK = """
mkdir small
mount -t tmpfs -o size=256k small small && head -c 192K /dev/zero >small/filler || exit 99
$FTRUN -n 1 --ft=reinit bash -c 'for n in {1..1500}; do printf "%099d\\n" $n; done; touch $HERE/printed; sleep 0.1' >small/out &
ftrun=$!
until [ -e room ] || ! kill -0 $ftrun 2>/dev/null; do sleep 0.01; done
[ ! -e room ] || rm small/filler
wait $ftrun
status=$?
cat small/out >whole
exit $status
"""


def on_a_small_disk(context, hurry):
    """The job of the small disk."""
    probe = subprocess.run(["unshare", "-Urm", "true"], capture_output=True)
    if probe.returncode != 0:
        raise Skipped("no name spaces for an ordinary user here")
    script = context.work / "small.sh"
    script.write_text(f"FTRUN={context.prefix}/bin/ftrun\n{SMALL_DISK}")
    return context.start(["unshare", "-Urm", "bash", script], env={"HERE": context.work}, hurry=hurry)


WHOLE = [f"{n:099d}" for n in range(1, 1501)]


@scenario("full-disk")
def full_disk(context):
    """A disk that is full for a moment costs a sentence, and no line."""
    job = on_a_small_disk(context, 1)
    job.wait_err(r"standard output cannot be written: No space left on device; it is tried again for 30 s\n", 1)
    (context.work / "room").touch()
    job.expect(0)
    check((context.work / "whole").read_text().splitlines() == WHOLE, "lines are missing, or torn")
    check(job.err.count("cannot be written") == 1 and "lost" not in job.err, job.err)


@scenario("full-disk-for-ever", each=[{"what": "small"}, {"what": "dev-full"}])
def full_disk_for_ever(context, what):
    """A disk that stays full: the job goes on to its end, and the status and a sentence say how much was lost."""
    begun = time.monotonic()
    if what == "small":
        job = on_a_small_disk(context, 10)
    else:
        job = context.start(
            ["bash", "-c", 'exec "$@" >/dev/full', "bash", context.prefix / "bin/ftrun", "-n", "1", "bash", "-c",
             "for n in {1..1500}; do printf '%099d\\n' $n; done"], hurry=10,
        )
    check(job.wait(40) == 1, "the job's status does not say that output was lost")
    # A tenth of 30 s.
    check(time.monotonic() - begun >= 3, f"it was tried again for {time.monotonic() - begun:.1f} s only")
    check("it is tried again for 3 s\n" in job.err, job.err)
    written = (context.work / "whole").read_text() if what == "small" else ""
    lost = int(job.wait_err(r"ftrun: (\d+) bytes of standard output were lost", 1)[0])
    check(lost + len(written) == 100 * 1500, f"{lost} bytes lost and {len(written)} written are not {100 * 1500}")
    check("\n".join(WHOLE).startswith(written), "what was written is not the beginning")
    check("No space left on device" in job.err, job.err)


@scenario("reader-left")
def reader_left(context):
    """`ftrun … | head -1`: the job goes on to its end, and that is its status."""
    job = context.script(
        '"$FTRUN" -n 1 bash -c \'seq 100000; touch done\' | head -1; exit ${PIPESTATUS[0]}',
    )
    check(job.wait(30) == 0 and (context.work / "done").exists(), f"the job ended with its reader: {job.err}")
    check(job.output.text == "1\n", job.output.text)


@scenario("helpers-unheard", each=[{"where": "left"}, {"where": "full"}])
def helpers_unheard(context, where):
    """What helpers say cannot be written: nobody reads standard error any more, or its disk is full. None dies of that; what
    a full disk has lost of standard error, ftrun counts."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    # The agent says something about every message.
    redirect = {"left": "2> >(exec true)", "full": "2>/dev/full"}[where]
    job = context.script(
        f'FT_LOG=debug "$FTRUN" -n 2 --ft=reinit "$PROGRAM" {redirect}',
        mpi=mpi, env={"PROGRAM": program, "PLACES_SLEEP": 20}, hurry=30,
    )
    status = job.wait(60)
    check("result " in job.output.text and status == (1 if where == "full" else 0), f"status {status}, and {job.output.text!r}")


@scenario("log-unread", each=[{"who": "rank"}, {"who": "agent"}])
def log_unread(context, who):
    """Nobody reads standard error, and agent and ft-pmix log all that they do: a rank's death, or the agent's, is seen and recovered
    from all the same, and the result is right."""
    mpi = context.mpi("openmpi4")
    program = context.program(mpi, "places.c")
    reference = context.reference(mpi, 2, program)
    read = unread_pipe(context)
    job = context.script(
        'FT_LOG=debug exec "$FTRUN" -n 2 --ft=reinit "$PROGRAM" 2>pipe', mpi=mpi, env={"PROGRAM": program},
        gates=["app.compute:1"],
    )
    rank = job.at_gate("app.compute", 1)
    job.kill(rank if who == "rank" else job.one("ft-agent"))
    until(lambda: job.output.results, "no result while nobody reads standard error")
    check(set(job.output.results) == set(reference.results), f"{job.output.results}, undisturbed {reference.results}")
    text = rest_of(read)
    job.expect(0)
    check(b"ftd: recovery, epoch 2" in text and b"DEBUG ft_agent" in text, f"not in the log: {text[-3000:]}")


@scenario("log-dropped")
def log_dropped(context):
    """There is no room for a single line of the agent's while a rank dies: the lines are counted, and the count is said where they
    are missing."""
    read = unread_pipe(context)
    rank = 'if [ "$FT_WORLD" = 1 ]; then exec sleep 1000; fi; touch "$HERE/up"; while [ ! -e "$HERE/go" ]; do sleep 0.01; done; echo on'
    job = context.script(
        'FT_LOG=debug exec "$FTRUN" -n 1 --ft=reinit bash -c "$RANK" 2>pipe', env={"RANK": rank, "HERE": context.work}
    )
    (sleeper,) = until(lambda: job.below("sleep"), "the rank does not run")
    agents = os.open(f"/proc/{job.one('ft-agent')}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    filled = 0

    def fill():
        nonlocal filled
        # Room for many is no room for one when they do not fit at once.
        for lines in (500, 1):
            try:
                while True:
                    filled += os.write(agents, b"filler\n" * lines)
            except BlockingIOError:
                pass
        return filled > 3 << 19

    until(fill, "ftrun reads nothing")
    job.kill(sleeper)
    until(lambda: fill() and (context.work / "up").exists(), "a death was not seen while nobody reads the log")
    os.close(agents)
    text = bytearray()
    # Now it is read, as fast as it comes.
    fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, 1 << 20)
    while text.count(b"filler\n") * 7 < filled:
        check(select.select([read], [], [], 20)[0], f"{text.count(b'filler')} of {filled // 7} lines came: {text[-300:]}")
        text += os.read(read, 1 << 20)
    (context.work / "go").touch()
    text += rest_of(read)
    job.expect(0)
    check(job.output.text == "on\n", job.output.text)
    check(re.search(rb"^ftd: ft-agent: \d+ lines dropped here", text, re.M), f"not said: {text[-3000:]}")


def unread_pipe(context):
    """A small named pipe that is open for reading, and that nobody reads."""
    os.mkfifo(context.work / "pipe")
    read = os.open(context.work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, 4096)
    return read


def rest_of(read):
    """All that comes out of a pipe until nobody writes any more."""
    text = bytearray()
    os.set_blocking(read, True)
    while part := os.read(read, 1 << 16):
        text += part
    os.close(read)
    return text


# The second world begins a line, waits, and ends it.
TWO_HALVES = """
if [ "$FT_WORLD" = 1 ]; then printf 'first world'; exec sleep 1000; fi
printf 'second '
touch "$HERE/second"
while [ ! -e "$HERE/go" ]; do sleep 0.01; done
printf 'world\\n'
"""


@scenario("stopped-in-recovery")
def stopped_in_recovery(context):
    """ftrun stands still for the whole of a recovery and longer: what it reads of both worlds afterwards it tells apart."""
    job = context.ftrun(None, 1, "bash", "-c", TWO_HALVES, env={"HERE": context.work})
    until(lambda: "first world" in job.output.text and job.below("sleep"), "the first world does not run")
    (sleeper,) = job.below("sleep")
    ours = {job.pid, *job.below("ftrun")}
    proc.freeze(*ours)
    job.kill(sleeper)
    until((context.work / "second").exists, "no second world while ftrun is stopped")
    for pid in ours:
        os.kill(pid, signal.SIGCONT)
    job.wait_err("restarted", 1)
    (context.work / "go").touch()
    job.expect(0)
    check(job.output.text == "first world\nsecond world\n", f"{job.output.text!r}")


@scenario("last-output", each=[{"how": "killed"}, {"how": "stopped"}])
def last_output(context, how):
    """When only ftrun's output is left to be written, to a pipe that nobody reads, there is nothing else of the job any more, so
    that SIGKILL leaves nothing; and Ctrl-Z stops ftrun then as ever."""
    pipe = context.work / "pipe"
    os.mkfifo(pipe)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    job = context.start(
        ["bash", "-c", 'exec "$@" >pipe', "bash", context.prefix / "bin/ftrun", "-n", "1", "bash", "-c", "seq 30000; touch printed"],
    )
    until((context.work / "printed").exists, "the rank does not end")
    # Then ftrun's two processes are all that is left of the job.
    until(lambda: len(proc.descendants(job.pid)) == 1, "the others of the job do not end")
    ours = [job.pid, job.launcher]
    if how == "killed":
        left = lambda: proc.shared_files() - context.shared_before  # noqa: E731
        until(lambda: not left(), lambda: f"left: {left()}", patience=5)
        job.kill(job.pid)
        job.wait(20)
    else:
        os.kill(job.pid, signal.SIGTSTP)
        until(lambda: all(proc.stat(pid)[0] == "T" for pid in ours), "Ctrl-Z is not heard")
        os.kill(job.pid, signal.SIGCONT)
        until(lambda: not any(proc.stat(pid)[0] == "T" for pid in ours), "it does not go on")
        text = bytearray()
        os.set_blocking(read, True)
        while part := os.read(read, 1 << 16):
            text += part
        check(text.decode().split() == [str(n) for n in range(1, 30001)], "the output is not whole")
        job.expect(0)
    os.close(read)


@scenario("terminal-hung-up")
def terminal_hung_up(context):
    """A terminal that hung up, with nobody to hear of it (nohup), is a reader that left: the job goes on to its end."""
    terminal, slave = pty.openpty()
    job = context.script(
        "trap '' HUP; \"$FTRUN\" -n 1 bash -c 'echo on; touch on; until [ -e off ]; do sleep 0.01; done; seq 1000' >\"$TERMINAL\"",
        env={"TERMINAL": os.ttyname(slave)},
    )
    until((context.work / "on").exists, "the rank does not begin")
    shown = b""
    while not shown.endswith(b"\n"):
        shown += os.read(terminal, 4)
    check(shown == b"on\r\n", f"the terminal shows {shown}")
    os.close(slave)
    os.close(terminal)
    (context.work / "off").touch()
    job.expect(0, patience=20)
    check(job.err == "", job.err)


CLOSED = [(out, err, into) for out in ("", ">&-") for err in ("", "2>&-") for into in ("", "<&-")]


@scenario("closed-streams", each=[{"what": "rank"}, {"what": "recovery"}, {"what": "refused"}])
def closed_streams(context, what):
    """Every combination of closed standard streams: the job runs; what cannot be written is counted, and the status and, where one
    can be read, a sentence say so. Nothing of ftd's own gets the number of a closed one."""
    speak = 'echo "out $(cat | wc -c)"; echo err >&2'
    for out, err, into in CLOSED:
        case = " ".join(filter(None, (out, err, into))) or "none"
        rank = {"rank": f"{speak}", "refused": "true", "recovery": f'[ $FT_WORLD = 2 ] || kill -9 $$; {speak}'}[what]
        options = "-n 0" if what == "refused" else "-n 1 --ft=reinit"
        job = context.script(f'"$FTRUN" {options} bash -c "$RANK" {out} {err} {into}', env={"RANK": rank})
        status = job.wait(20)
        said, text = job.err, job.output.text
        if what == "refused":
            where = said if not err else text if not out else "'0' is not a number of ranks"
            check(status == 2 and "'0' is not a number of ranks" in where, f"{case}: {status} {said} {text}")
            continue
        check(status == (1 if out or err else 0), f"{case}: exit status {status}: {said} {text}")
        check(out or re.search("^out 0$", text, re.M), f"{case}: standard output is {text!r}")
        check(err or re.search("^err$", said, re.M), f"{case}: standard error is {said!r}")
        check(err or what == "rank" or "was killed by SIGKILL" in said, f"{case}: no block: {said}")
        if out and not err:
            check("6 bytes of standard output were lost: it is not open for writing" in said, f"{case}: {said}")
        if err and not out:
            check("bytes of standard error were lost: it is not open for writing" in text, f"{case}: {text}")
        check("panicked" not in said + text, f"{case}: {said} {text}")


@scenario("closed-in-script", each=[{"mpi": mpi} for mpi in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def closed_in_script(context, mpi):
    """A script closes standard streams of the rank: nothing that ftd or the MPI opens gets their numbers, and the rank, which cannot
    read or write them, runs as it would under the MPI's own launcher."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "streams.c")
    for number, closed in enumerate((("<&-", ">&-"), ("2>&-",), (">&-", "2>&-"), ("<&-", ">&-", "2>&-"))):
        said = context.work / f"said.{number}"
        job = context.ftrun(mpi, 2, "bash", "-c", f'"$0" {" ".join(closed)}; exit $?', program, env={"SAID": said})
        check(job.wait(30) == 0, f"{closed}: exit status {job.process.returncode}: {job.err}")
        expected = [errno.EBADF * (stream in closed) for stream in ("<&-", ">&-", "2>&-")]
        for rank in range(2):
            found = [int(word) for word in (context.work / f"{said.name}.{rank}").read_text().split()]
            check(found[1:] == expected[1:] and (not expected[0] or found[0]), f"{closed}: rank {rank} finds {found}: {job.err}")
        check("recovery" not in job.err and "cut off" not in job.err, f"{closed}: {job.err}")


@scenario("closed-quiet")
def closed_quiet(context):
    """Nothing is lost of a job that prints nothing: its status is its own."""
    job = context.script('"$FTRUN" -n 2 true >&- 2>&- <&-; echo $?; "$FTRUN" --version >&-; echo $?')
    job.expect(0)
    check(job.output.text == "0\n1\n" and "standard output cannot be written" in job.err, f"{job.output.text} {job.err}")


LINES = """
import os, sys
letter, length, count = b"abcd"[int(os.environ["FT_RANK"]) :][:1], int(sys.argv[1]), int(sys.argv[2])
for _ in range(count):
    os.write(1, letter * (length - 1) + b"\\n")
"""


@scenario("long-lines", each=[{"length": 65536, "count": 1}, {"length": 300000, "count": 10}])
def long_lines(context, length, count):
    """A line of 64 KiB that is written at once stays whole, whoever prints besides; of longer ones no byte is lost."""
    job = context.ftrun(None, 4, "/usr/bin/python3", "-c", LINES, length, count)
    job.expect(0)
    text = job.output.text
    check({letter: text.count(letter) for letter in "abcd\n"} == {**dict.fromkeys("abcd", (length - 1) * count), "\n": 4 * count},
          f"{len(text)} bytes of {4 * length * count}")
    mixed = [line[:1] for line in text.splitlines() if line.strip(line[0])]
    check(length > 65536 or not mixed, f"{mixed}")


UNREAD = """
$FTRUN -n 4 /usr/bin/python3 -c "$LINES" 20000 150 | { until [ -e room ]; do sleep 0.01; done; cat >whole; }
exit ${PIPESTATUS[0]}
"""


@scenario("long-lines-unread")
def long_lines_unread(context):
    """Nobody reads what ftrun prints, for longer than an unfinished line waits, while the ranks stand in the middle of lines that they
    write at once: none of them is cut for that."""
    job = context.script(UNREAD, env={"LINES": LINES})
    ranks = lambda: [pid for pid in job.below("python3") if "pipe_write" in proc.waits_in(pid)]  # noqa: E731
    until(lambda: len(ranks()) == 4, "the ranks do not come to wait")
    still_since = time.monotonic()
    # Twice what such a line waits: ftrun reads no more.
    while time.monotonic() < still_since + 0.1:
        still_since = still_since if len(ranks()) == 4 else time.monotonic()
        time.sleep(0.005)
    (context.work / "room").touch()
    job.expect(0)
    lines = (context.work / "whole").read_text().splitlines()
    cut = [line for line in lines if line not in {letter * 19999 for letter in "abcd"}]
    check(len(lines) == 600 and not cut, f"{len(lines)} lines of 600, and {len(cut)} of them are mixed")


@scenario("cut-line")
def cut_line(context):
    """The end of a line that another rank's line has ended meanwhile is no line of its own."""
    ends = [context.work / name for name in ("first", "second")]
    for end in ends:
        os.mkfifo(end)
    script = f'if [ $FT_RANK = 0 ]; then printf text; read -r word < {ends[1]}; echo; else read -r word < {ends[0]}; echo other; fi'
    job = context.ftrun(None, 2, "bash", "-c", script, options=["-l"])
    shown = "[0] text"
    for end, more in zip(ends, ("\n[1] other\n", "")):
        until(lambda: job.output.text == shown, job.output.text)
        end.write_text("go\n")
        shown += more
    job.expect(0)
    check(job.output.text == shown, job.output.text)
