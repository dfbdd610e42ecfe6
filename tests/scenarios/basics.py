"""Jobs without failures, the command line, and the endings that are the application's own wish."""

import os
import re
import signal
import socket
import subprocess
import time

from harness import proc
from harness.job import check
from harness.mpis import ALL
from harness.registry import scenario

EVERY_MPI = [{"mpi": name} for name in ALL]


@scenario("undisturbed", each=[{"mpi": name, "size": size} for name in ALL for size in (1, 4)])
def undisturbed(context, mpi, size):
    """Nothing fails: the result is mpirun's, and ftd says nothing."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, size, program)
    job.expect(0, context.reference(mpi, size, program))
    check(job.err.strip() == "", f"stderr of an undisturbed job: {job.err}")
    check(job.output.starts == [None], f"starts: {job.output.starts}")


@scenario("library", each=EVERY_MPI)
def library(context, mpi):
    """Every rank runs with the MPI that the scenario is named after, in the first world and in the next."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:1", "client.restoring:1"])
    for gate in ("app.compute", "client.restoring"):
        pid = job.at_gate(gate, 1)
        check(len(mpi.loaded(pid)) == 1, f"rank 1 has loaded {mpi.loaded(pid)}")
        if gate == "app.compute":
            job.kill(pid)
    job.go("client.restoring", 1)
    job.expect(0)
    other = ALL["mpich4" if mpi.name != "mpich4" else "openmpi4"]
    victim = context.ftrun(other, 2, context.program(other, "places.c"), gates=["app.compute:1"])
    try:
        mpi.loaded(victim.at_gate("app.compute", 1))
        check(False, "another MPI was taken for this one")
    except LookupError:
        pass
    victim.go("app.compute", 1)
    victim.expect(0)


@scenario("nothing-held-back", each=[{"mpi": m} for m in ("openmpi4", "openmpi5")])
def nothing_held_back(context, mpi):
    """What a rank and its PMIx server tell each other goes out at once: no small message waits until the one before it is acknowledged.
    That holds in the next world, too."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:0", "app.compute:1", "client.restoring:0", "client.restoring:1"])
    for gate in ("app.compute", "client.restoring"):
        ranks = [job.at_gate(gate, rank) for rank in range(2)]
        servers = [proc.connections(pid) for pid in job.below("ft-pmix")]
        for rank, pid in enumerate(ranks):
            pairs = [(own, server[other, mine]) for (mine, other), own in proc.connections(pid).items()
                     for server in servers if (other, mine) in server]
            check(len(pairs) == 1, f"{len(pairs)} connections of rank {rank} with its server")
            for side, end in zip(("rank", "server"), pairs[0]):
                check(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0, f"{gate}: the {side}'s end for rank {rank} holds back what is small")
        if gate == "app.compute":
            job.kill(ranks[1])
    for rank in range(2):
        job.go("client.restoring", rank)
    job.expect(0)


@scenario("mode-none", each=EVERY_MPI)
def mode_none(context, mpi):
    """--ft=none only launches; a death ends the job."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 4, program, ft="none")
    job.expect(0, context.reference(mpi, 4, program))
    dies = context.ftrun(mpi, 4, program, ft="none", gates=["app.compute:1"])
    dies.kill(dies.at_gate("app.compute", 1))
    check(dies.wait(20) == 128 + signal.SIGKILL, f"exit status {dies.process.returncode}")
    check(len(dies.output.starts) == 1, "the job was restarted")


@scenario("own-end", each=[{"mpi": m, "how": h} for m in ALL for h in ("abort", "exit", "return", "late")])
def own_end(context, mpi, how):
    """MPI_Abort, exit and return without MPI_Finalize, and a non-zero status after it, end the job with that status."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 3, context.program(mpi, "ending.c"), how, "1", "42")
    status = job.wait(20)
    check(status == 42, f"exit status {status}, expected 42")
    check(job.restored == [], "ftd restarted what the program itself ended")
    check(job.err.strip() != "", "ftd does not say why the job ended")


@scenario("return-zero-without-finalize")
def return_zero(context):
    """Leaving main with 0 but without MPI_Finalize is an end by the application's own wish, and no clean one."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "ending.c"), "return", "1", "0")
    check(job.wait(20) != 0, "exit status 0 for a program that left without MPI_Finalize")
    check("MPI_Finalize" in job.err, f"the reason is not named: {job.err}")


@scenario("on-abort-recover", each=[{"mpi": m, "how": h} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5")
                                    for h in ("abort-once", "exit-once", "return-once")])
def on_abort_recover(context, mpi, how):
    """--ft-on-abort=recover makes a failure of it."""
    mpi = context.mpi(mpi)
    once = {"ENDING_ONCE": context.work / "once"}
    job = context.ftrun(mpi, 3, context.program(mpi, "ending.c"), how, "1", "42",
                        options=["--ft-on-abort=recover"], env=once)
    job.expect(0)
    check(job.output.results == ["of ending"], f"results {job.output.results}")
    check(job.restored == [None], f"recoveries {job.restored}")


@scenario("crash-loop", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def crash_loop(context, mpi):
    """A rank that crashes by itself every time ends the job after --ft-max-failures, with its history."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 3, context.program(mpi, "ending.c"), "crash", "1", options=["--ft-max-failures=3"])
    status = job.wait(40)
    check(status == 128 + signal.SIGSEGV, f"exit status {status}, expected that of SIGSEGV")
    check(len(job.restored) == 2, f"{len(job.restored)} recoveries before the third death ended the job")
    history = re.findall(r"epoch \d+, [\d.]+ s after the start: rank 1 on node 0 was killed by SIGSEGV", job.err)
    check(len(history) == 3, f"the history does not name rank and signal three times: {history}")


@scenario("crash-once")
def crash_once(context):
    """One crash is a failure like any other."""
    mpi = context.mpi("mpich5")
    once = {"ENDING_ONCE": context.work / "once"}
    job = context.ftrun(mpi, 4, context.program(mpi, "ending.c"), "crash-once", "2", env=once)
    job.expect(0)
    check(job.restored == [None], f"recoveries {job.restored}")
    check("SIGSEGV" in job.err, "the block does not name the signal")


@scenario("survivors-abort", each=[{"place": p, "how": h} for p in ("app.recv", "app.allreduce") for h in ("noticed", "frozen")])
def survivors_abort(context, place, how):
    """Open MPI 5's survivors abort when a peer over TCP dies: collateral, never the job's end. The agent stands still until
    they do, once it has noticed the death, or before: then it learns of the aborts and of the death at the same time."""
    mpi = context.mpi("openmpi5")
    program = context.program(mpi, "places.c")
    env = {"OMPI_MCA_btl": "self,tcp"}
    reference = context.reference(mpi, 4, program, env=env)
    gates = [f"{place}:1", *(["agent.noticed:*:1"] if how == "noticed" else [])]
    job = context.ftrun(mpi, 4, program, env={**env, "FT_LOG": "ft_agent=info"}, gates=gates)
    victim = job.at_gate(place, 1)
    agent, survivors = job.one("ft-agent"), [job.ranks()[rank] for rank in (2, 3)]
    if how == "frozen":
        proc.freeze(agent)
    job.kill(victim)
    # No go: the keeper stays where it is, the others notice the broken connections. Who spins in MPI and then sleeps waits
    # for the answer to its PMIx_Abort.
    if how == "noticed":
        job.at_gate("agent.noticed")
    # Ten looks in a row: a lock of a moment is a futex as well.
    deadline, waiting = time.monotonic() + 20, 0
    while waiting < 10:
        check(time.monotonic() < deadline, "no survivor aborts")
        waiting = waiting + 1 if any("futex" in proc.waits_in(pid) for pid in survivors) else 0
        time.sleep(0.01)
    if how == "frozen":
        os.kill(agent, signal.SIGCONT)
    else:
        job.go("agent.noticed")
    job.expect(0, reference)
    aborts = set(re.findall(r"PMIx_Abort rank=(\d+) status=", job.err))
    check(aborts and aborts <= {"2", "3"}, f"no survivor's abort reached the agent: {job.err}")
    check(job.restored == [5], f"restored {job.restored}")
    blamed = re.findall(r"^ftd:   (?:failed|      )    (rank \d+ .*)$", job.err, re.M)
    collateral = "because of that death; it is not blamed"
    check(blamed and blamed[0] == "rank 1 on node 0 was killed by SIGKILL", f"blamed: {blamed}")
    check(all(line.endswith(collateral) for line in blamed[1:]), f"blamed: {blamed}")


@scenario("cancel", each=[{"mpi": m, "number": n} for m in ("openmpi5", "mpich4") for n in ("SIGINT", "SIGTERM", "SIGHUP")])
def cancel(context, mpi, number):
    """Ctrl-C ends a job whose ranks have no handler at once; so do SIGTERM and, but for UCX, which catches it, SIGHUP."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 4, context.program(mpi, "places.c"), gates=["app.compute:1"], options=[f"--ft-grace={1 if number == 'SIGHUP' else 60}"])
    job.at_gate("app.compute", 1)
    job.interrupt(getattr(signal, number))
    status = job.wait(30)
    check(status == 128 + getattr(signal, number), f"exit status {status}")
    check(job.restored == [], "a cancelled job was recovered")


# The ranks hear no signal, or have a handler of their own: they would use up all the time that they are given. In a later world
# those of `slow` take theirs to start.
DEAF = 'trap "" INT; [ "$SLOW" != yes ] || [ "$FT_WORLD" = 1 ] || sleep 60; exec "$@"'


@scenario("cancel-in-recovery", each=[{"gate": g} for g in ("agent.noticed", "agent.agreed", "agent.released")])
def cancel_in_recovery(context, gate):
    """Ctrl-C in the middle of a recovery ends the job as well, at once."""
    mpi = context.mpi("mpich4")
    nth = 2 if gate == "agent.released" else 1
    job = context.ftrun(mpi, 4, "bash", "-c", DEAF, "deaf", context.program(mpi, "places.c"), options=["--ft-grace=60"],
                        gates=["app.compute:1", f"{gate}:*:{nth}"])
    job.kill(job.at_gate("app.compute", 1))
    job.at_gate(gate)
    job.interrupt()
    job.go(gate)
    check(job.wait(30) == 128 + signal.SIGINT, f"exit status {job.process.returncode}")


@scenario("cancel-in-slow-start", each=[{"who": w, "when": t} for w in ("rank", "agent") for t in ("early", "late")])
def cancel_in_slow_start(context, who, when):
    """Nor is Ctrl-C heard by ranks that are still to come to `MPI_Init` after a failure, whether ftd has gone on to other things
    (the block is out), and whether the agent is one that has never seen them there."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, "bash", "-c", DEAF, "deaf", context.program(mpi, "places.c"), options=["--ft-grace=60"],
                        gates=["app.compute:1"], hurry=10, env={"SLOW": "yes"})
    rank = job.at_gate("app.compute", 1)
    job.kill(rank if who == "rank" else job.one("ft-agent"))
    if when == "late":
        job.wait_err(r"restored +nothing so far", 1)
    job.wait_ranks(2, 2)
    job.interrupt()
    check(job.wait(30) == 128 + signal.SIGINT, f"exit status {job.process.returncode}")
    check("had not ended" not in job.err, job.err)


@scenario("cancel-before-the-cause")
def cancel_before_the_cause(context):
    """A job that is cancelled when a death is agreed and its cause is not known yet: the block waits for the cause."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:1", "agent.agreed"])
    rank = job.at_gate("app.compute", 1)
    shepherd = job.shepherd_of(rank)
    proc.freeze(shepherd)
    job.kill(rank)
    job.at_gate("agent.agreed")
    job.interrupt()
    job.go("agent.agreed")
    # Too early is what this looks for; no harm is done when it looks too early itself.
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline and "failed" not in job.err:
        time.sleep(0.01)
    os.kill(shepherd, signal.SIGCONT)
    check(job.wait(20) == 128 + signal.SIGINT, f"exit status {job.process.returncode}")
    lines = [line for line in job.err.splitlines() if "rank 1 on node 0" in line]
    check(len(lines) == 1 and lines[0].startswith("ftd:   failed") and "killed by SIGKILL" in lines[0], f"{job.err}")


@scenario("signals-forwarded")
def signals_forwarded(context):
    """SIGUSR1 to ftrun reaches every rank."""
    script = 'trap "echo got $FT_RANK; exit 0" USR1; touch ready.$FT_RANK; while :; do sleep 0.02; done'
    job = context.ftrun(None, 3, "bash", "-c", script)
    deadline = time.monotonic() + 10
    while len(list(context.work.glob("ready.*"))) < 3:
        check(time.monotonic() < deadline, "the ranks did not start")
        time.sleep(0.01)
    job.interrupt(signal.SIGUSR1)
    job.expect(0)
    check(sorted(job.output.text.split("\n")) == ["", "got 0", "got 1", "got 2"], f"output {job.output.text!r}")


@scenario("no-mpi")
def no_mpi(context):
    """A program that never calls MPI just runs; its status is the job's; killed, it is started again."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "nompi.c")
    job = context.ftrun(None, 3, program)
    job.expect(0)
    check(sorted(job.output.text.split()) == sorted("hello from 0 hello from 1 hello from 2".split()), job.output.text)
    check(context.ftrun(None, 2, program, "7").wait(10) == 7, "exit status of a program without MPI")
    job = context.ftrun(None, 3, program, gates=["app.compute:*"])
    for rank in range(3):
        job.at_gate("app.compute", rank)
    job.kill(job.at_gate("app.compute", 1))
    for rank in range(3):
        job.go("app.compute", rank)
    job.expect(0)
    check(sorted(set(re.findall(r"hello from (\d)", job.output.text))) == ["0", "1", "2"], job.output.text)


@scenario("clean-end-then-death")
def clean_end_then_death(context):
    """Some ranks have ended cleanly, then another dies: all of them run again (docs/guide.md)."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "nompi.c")
    job = context.ftrun(None, 3, program, gates=["app.compute:1"])
    pid = job.at_gate("app.compute", 1)
    deadline = time.monotonic() + 10
    while job.output.text.count("hello") < 2 or len(job.ranks()) > 1:
        check(time.monotonic() < deadline, "the other ranks do not end")
        time.sleep(0.01)
    job.kill(pid)
    job.expect(0)
    check(job.output.text.count("hello from 1") == 1, job.output.text)
    check(job.output.text.count("hello from 0") == 2, job.output.text)


@scenario("tag-output")
def tag_output(context):
    """--tag-output names the rank of every line, also after a recovery."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "io.c"), options=["--tag-output"], gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0)
    lines = job.output.text.strip().splitlines()
    check(len(lines) == 3, f"lines: {lines}")
    for rank in range(3):
        check(any(re.match(rf"\S*\b{rank}\b\S*\s.*rank {rank} stdin", line) for line in lines), f"rank {rank}: {lines}")
    check(re.search(r"^\S*\b2\b\S*\s.*rank 2 on stderr", job.err, re.M), f"stderr is not tagged: {job.err}")


@scenario("environment")
def environment(context):
    """-x VAR, -x VAR=value, --chdir."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "io.c")
    elsewhere = context.dir / "else where"
    elsewhere.mkdir()
    job = context.ftrun(mpi, 2, program, options=["-x", "PROBE=a b", "--chdir", str(elsewhere)])
    job.expect(0)
    check(job.output.text.count(f"cwd {elsewhere} probe a b") == 2, job.output.text)
    job = context.ftrun(mpi, 2, program, options=["-x", "PROBE"], env={"PROBE": "from outside"})
    job.expect(0)
    check(job.output.text.count("probe from outside") == 2, job.output.text)


def _stdin_hash(data):
    value = 1469598103934665603
    for byte in data:
        value = ((value ^ byte) * 1099511628211) % (1 << 64)
    return f"stdin {len(data)} bytes {value:016x}"


@scenario("stdin", each=[{"kind": k} for k in ("file", "file-offset", "pipe", "slow-pipe", "large-pipe", "null", "closed")])
def stdin(context, kind):
    """Rank 0 reads standard input from its first byte in every world; the other ranks read nothing."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "io.c")
    data = b"".join(b"line %d of the input\n" % i for i in range(200000 if kind == "large-pipe" else 500))
    gates = [] if kind in ("null", "closed") else ["io.half:0"]
    feeder = None
    if kind.startswith("file"):
        path = context.work / "input"
        path.write_bytes((b"skip me\n" if kind == "file-offset" else b"") + data)
        source = os.open(path, os.O_RDONLY)
        if kind == "file-offset":
            os.lseek(source, 8, os.SEEK_SET)
    elif kind in ("null", "closed"):
        data, source = b"", subprocess.DEVNULL
    else:
        path = context.work / "input"
        path.write_bytes(data)
        wait = "sleep 0.3;" if kind == "slow-pipe" else ""
        feeder = subprocess.Popen(
            ["bash", "-c", f"head -n 3 input; {wait} tail -n +4 input"], cwd=context.work, stdout=subprocess.PIPE
        )
        source = feeder.stdout
    if kind == "closed":
        job = context.start(
            ["bash", "-c", 'exec <&-; exec "$@"', "bash", context.prefix / "bin/ftrun", "-n", "3", "--ft=reinit", program],
            mpi=mpi,
        )
    else:
        job = context.ftrun(mpi, 3, program, stdin=source, gates=[*gates, "app.compute:0"])
        if gates:
            job.kill(job.at_gate("io.half", 0), "rank 0 after its first byte of input")
            job.kill(job.at_gate("app.compute", 0), "rank 0 when it has read all")
        else:
            job.go("app.compute", 0)
    job.expect(0)
    if feeder:
        feeder.stdout.close()
        feeder.wait(5)
    lines = job.output.text.splitlines()
    check(any(line.startswith(f"rank 0 {_stdin_hash(data)}") for line in lines), f"{lines}, not {_stdin_hash(data)}")
    check(sum(f"{_stdin_hash(b'')}" in line for line in lines) == (3 if not data else 2), f"{lines}")


@scenario("wrapper", each=[{"kind": k, "mpi": m} for k in ("bash", "numactl", "nested") for m in ("openmpi4", "mpich5")])
def wrapper(context, kind, mpi):
    """The rank is the process that calls MPI_Init, whatever stands above it."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    command = {
        "bash": ["bash", "-c", f"{program}; exit $?"],
        "numactl": ["numactl", "--physcpubind=all", program],
        "nested": ["bash", "-c", f"sleep 30 & env A=b bash -c '{program} 3<&-; exit $?'; code=$?; kill %1; exit $code"],
    }[kind]
    job = context.ftrun(mpi, 3, *command, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0, context.reference(mpi, 3, program))
    check(job.restored == [5], f"restored {job.restored}")


@scenario("wrapper-fails")
def wrapper_fails(context):
    """A script whose rank ended well, and that fails afterwards, has failed, also when the rank was no child of its any more."""
    mpi = context.mpi("mpich4")
    script = '( "$0" ok & echo $! > rank.$FT_RANK ); while kill -0 $(cat rank.$FT_RANK) 2> /dev/null; do sleep 0.01; done; exit 3'
    job = context.ftrun(mpi, 2, "bash", "-c", script, context.program(mpi, "ending.c"))
    job.expect(3)
    check("result of ending" in job.output.text and job.restored == [], f"{job.output.text}{job.err}")


@scenario("script-killed-afterwards", each=[{"how": "itself"}, {"how": "KILL"}])
def script_killed_afterwards(context, how):
    """A script that is killed when its rank has ended well, and not from outside (`trap 'kill 0' EXIT`), ends the job with that: it
    is not run again. One that is killed from outside is."""
    mpi = context.mpi("openmpi4")
    end = "kill -TERM $$" if how == "itself" else "[ $FT_WORLD = 1 -a $FT_RANK = 1 ] && kill -KILL $$; exit 0"
    job = context.ftrun(mpi, 2, "bash", "-c", f'"$0"; {end}', context.program(mpi, "places.c"))
    job.expect(143 if how == "itself" else 0)
    said = "ended well, and then its script was killed by SIGTERM" in job.err
    check(said == (how == "itself") and len(job.recoveries) == (how != "itself"), job.err)


@scenario("wrapper-killed", each=[{"how": how} for how in ("reinit", "none", "leaves")])
def wrapper_killed(context, how):
    """A script that is killed while its rank computes, or that leaves it with a status of its own: what it would have done after
    the rank is not missing in silence."""
    mpi, size = context.mpi("mpich4"), 2
    program = context.program(mpi, "places.c")
    leaves = 'if [ "$FT_RANK" = 1 ]; then ("$0" &); until [ -e leave ]; do sleep 0.01; done; exit 3; fi; "$0"'
    script = leaves if how == "leaves" else '"$0"; code=$?; echo done >result.$FT_RANK; exit $code'
    ft = "none" if how == "none" else "reinit"
    job = context.ftrun(mpi, size, "bash", "-c", script, program, ft=ft, gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    shepherd = job.shepherd_of(rank)
    if how == "leaves":
        (context.work / "leave").touch()
    else:
        job.kill(proc.stat(rank)[1])
    deadline = time.monotonic() + 10
    while proc.stat(rank)[1] != shepherd:
        check(time.monotonic() < deadline, "the wrapper does not leave its rank")
        time.sleep(0.005)
    job.go("app.compute", 1)
    if how == "reinit":
        job.expect(0, context.reference(mpi, size, program))
        check((context.work / "result.1").exists(), "the script did not come to its end")
    else:
        job.expect({"none": 137, "leaves": 3}[how])
        check("rank 1" in job.err, job.err)


PYTHON_PROGRAM = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
total = 0
for step in range(1, 11):
    total = (total * 31 + world.allreduce(world.rank * step)) % 1000003
    world.barrier()
    if step == 5 and world.rank == 1:
        try:
            with open(os.environ["HERE"], "x") as file:
                file.write(f"{os.getpid()}\\n")
        except FileExistsError:
            pass
        else:
            while True:
                pass
if world.rank == 0:
    print("result", total)
"""


@scenario("mpi4py", each=[{"how": "script"}, {"how": "module"}])
def mpi4py(context, how):
    """python3 program.py and python3 -m mpi4py program.py."""
    mpi = context.mpi("openmpi4")
    (context.work / "program.py").write_text(PYTHON_PROGRAM)
    here = context.work / "here"
    command = ["/usr/bin/python3", *(["-m", "mpi4py"] if how == "module" else []), "program.py"]
    job = context.ftrun(mpi, 3, *command, env={"HERE": here})
    deadline = time.monotonic() + 20
    while not here.exists() or not here.read_text().endswith("\n"):
        check(job.running() and time.monotonic() < deadline, "rank 1 did not come to its place")
        time.sleep(0.01)
    job.kill(int(here.read_text()), "rank 1, computing in Python")
    job.expect(0)
    total = 0
    for step in range(1, 11):
        total = (total * 31 + 3 * step) % 1000003
    check(job.output.results == [str(total)], f"{job.output.results}, not {total}")
    check(job.restored == [None], f"restored {job.restored}")
