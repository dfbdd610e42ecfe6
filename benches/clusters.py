"""What is measured over nodes: `benches/run.py epochs|losses|pause|agents`; see benches/README.md. The nodes are those of the tests
(tests/harness/cluster.py), name spaces of this machine, with a real etcd and a daemon on each. Root only."""

import datetime
import os
import pathlib
import pwd
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback

from harness import job as jobs
from harness import proc, root
from harness.job import check
from scenarios.copies import kept, wait_kept
from scenarios.hosts import ONE_CARD, Nodes
from scenarios.processes import eventually

HERE = pathlib.Path(__file__).resolve().parent
MEMBERS = 3


def in_name_spaces(bench, what):
    """Calls `what(another)` in a process with name spaces of its own, as a scenario has them; ends the bench when it fails. Each cluster has
    a context of its own, from `another()`: a second one in the same directories would begin with what the first one's daemons kept."""
    if os.geteuid() != 0:
        sys.exit("benches/run.py: only root can make nodes; run epochs, losses, pause, safe and agents as root")
    user = pwd.getpwnam("ftdtest")
    # The installation is in there: of /tmp a node sees this directory alone.
    scratch = bench.scratch
    scratch.chmod(0o755)
    for directory in ("build", "run", "src"):
        (scratch / directory).mkdir(exist_ok=True)
    for source in HERE.glob("*.c"):
        shutil.copy(source, scratch / "src")
    for path in (scratch, scratch / "build", scratch / "run"):
        os.chown(path, user.pw_uid, user.pw_gid)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _inside(bench, what, scratch)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        shutil.rmtree(scratch / "run", ignore_errors=True)
    if status != 0:
        raise RuntimeError("what is said above")


def _inside(bench, what, scratch):
    """Never returns."""
    status = 1
    try:
        os.setsid()
        proc.die_with_parent()
        proc.become_subreaper()
        proc.private_shm()
        root.surround_cluster()
        os.umask(0o022)
        os.chdir(scratch)
        # What the harness says of each job is no result.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        contexts = []

        def another():
            contexts.append(jobs.Context(f"bench{len(contexts)}", scratch, bench.prefix, False))
            return contexts[-1]

        try:
            what(another)
            status = 0
        except BaseException:  # noqa: B036: whatever it is, it is to be said
            traceback.print_exc()
            for job in [job for context in contexts[-1:] for job in context.jobs[-1:]]:
                print(job.dump(), file=sys.stderr)
        for context in contexts:
            context.close()
    finally:
        sys.stdout.flush()
        os._exit(status)


class Quiet:
    """What the harness prints of its jobs goes nowhere."""

    def __enter__(self):
        self.out, sys.stdout = sys.stdout, open(os.devnull, "w")

    def __exit__(self, *_):
        sys.stdout.close()
        sys.stdout = self.out


def say(*words):
    print(*words, flush=True)


# --- what ftd and an agent take while nothing happens -------------------------------------------------------------------

# From the second minute on, half a minute.
SETTLED, WATCHED = 60, 30


def processor_ns(pid):
    """Nanoseconds of processor that a process, and threads of its that have ended, have had (`clock_getcpuclockid`)."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def resident_kb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def helpers(nodes):
    """node -> name -> pids of all of ftd's processes there."""
    names = ("ftd", "ft-agent", "ft-shepherd", "ftrun", "ft-pmix", "ft-ship")
    return {node.name: {name: node.named(name) for name in names} for node in nodes}


def take(nodes, settled, watched):
    """(node, name) -> per cent of a processor, and the largest resident memory in kB, of all processes of that name on the node."""
    time.sleep(settled)
    found = helpers(nodes)
    # Where the scheduler's own counting of a process is all that there is a tick of it more or less is seen; this counts nanoseconds.
    before, began = {pid: processor_ns(pid) for each in found.values() for pids in each.values() for pid in pids}, time.monotonic()
    time.sleep(watched)
    took = time.monotonic() - began
    check(helpers(nodes) == found, "ftd's processes are not the same as before")
    after = {pid: processor_ns(pid) for pid in before}
    return {
        (node, name): (sum(after[pid] - before[pid] for pid in pids) / took / 1e7, max(map(resident_kb, pids)))
        for node, each in found.items() for name, pids in each.items() if pids
    }


def idle_job(context, nodes, mpi, ranks):
    """A job of `ranks` on each node, all of which sleep: behind MPI_Init, or, without an MPI, for good."""
    hosts, size = ",".join(f"{node.name}:{ranks}" for node in nodes.nodes), ranks * len(nodes.nodes)
    if mpi is None:
        job = nodes.sh(hosts, size, "exec sleep 1000", ft="reinit")
    else:
        program = nodes.cluster.program(mpi, "startup.c")
        job = context.ftrun(mpi, size, program, "1000", options=["--hosts", hosts], on=nodes.nodes[0], env=ONE_CARD)
    name = "sleep" if mpi is None else "startup"
    of_ranks = lambda node: [pid for pid in node.pids() if proc.name(pid).startswith(name)]
    eventually(lambda: all(len(of_ranks(node)) == ranks for node in nodes.nodes), "the ranks", 60)
    return job


def least(context, nodes, settled, watched):
    """Per cent of a processor that processes in C take on the first two nodes which do nothing but send each other heartbeats as often as agents do."""
    program = context.work / "heartbeats"
    subprocess.run([os.environ.get("CC", "gcc"), "-O2", HERE / "heartbeats.c", "-o", program], check=True)
    one, other = nodes[:2]
    for node, peer, part in ((one, other, "first"), (other, one, "follows")):
        node.start(program, node.address("mpi"), peer.address("mpi"), part)
    eventually(lambda: all(len(node.named("heartbeats")) == 1 for node in (one, other)), "both processes", 20)
    time.sleep(settled)
    pids = [pid for node in (one, other) for pid in node.named("heartbeats")]
    before, began = list(map(processor_ns, pids)), time.monotonic()
    time.sleep(watched)
    took = time.monotonic() - began
    return [(processor_ns(pid) - spent) / took / 1e7 for pid, spent in zip(pids, before, strict=True)]


# Of a processor, in %, for ftd and an agent together; MB that are resident, of each.
SHARE, RESIDENT = 0.2, 20


def bench_agents(bench, options):
    """What ftd, an agent and the others take on each of some nodes with one job, of ranks that sleep. Whether no limit was missed."""
    result = bench.scratch / "agents"

    def measure(another):
        missed = False
        for size in options.nodes or (2, 3):
            for mpi in [None, *bench.mpis]:
                with Quiet():
                    context = another()
                    with Nodes(context, size, members=1) as nodes:
                        job = idle_job(context, nodes, mpi, options.ranks)
                        took = take(nodes.nodes, 20 if options.quick else SETTLED, 10 if options.quick else WATCHED)
                        job.interrupt(signal.SIGTERM)
                        job.wait()
                        floor = least(context, nodes.nodes, 2, 10 if options.quick else WATCHED)
                own = {node.name: sum(took[node.name, name][0] for name in ("ftd", "ft-agent")) for node in nodes.nodes}
                worst = max(own, key=own.get)
                most = max(memory for (_, name), (_, memory) in took.items() if name in ("ftd", "ft-agent"))
                of = lambda name: statistics.mean(spent for (_, its), (spent, _) in took.items() if its == name)
                others = {name for _, name in took} - {"ftd", "ft-agent"}
                over = statistics.mean(own.values()) >= SHARE or most >= RESIDENT * 1000
                missed |= over
                say(f"{size:5} {str(mpi or 'none'):10} | {of('ftd'):8.3f} {of('ft-agent'):8.3f} {statistics.mean(own.values()):9.3f}"
                    f" {own[worst]:8.3f} | {' and '.join(f'{each:.3f}' for each in floor)} | {most / 1000:6.1f} | {'MISSED' if over else 'ok':6} | " + ", ".join(f"{name} {of(name):.3f}" for name in sorted(others)))

        result.write_text("missed" if missed else "ok")

    say(f"\n## What ftd and an agent take on each node while {options.ranks} ranks there sleep, % of a processor"
        f" (goal: {SHARE} together; {RESIDENT} MB each)")
    say("nodes MPI        |      ftd    agent  together    worst | two in C       | MB, max | goal   | others, all of a kind on a node")
    in_name_spaces(bench, measure)
    return result.read_text() == "ok"


# --- from a proposal to the epoch on every node --------------------------------------------------------------------------

STAMP = r"^(\S+Z)\s+INFO .*?"


def moment(text):
    """Seconds of a time stamp of a log."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def said_of_epochs(text):
    """epoch -> when it was first proposed; and -> node -> when that adopted it."""
    proposed, adopted = {}, {}
    for at, node, epoch in re.findall(STAMP + r"an epoch is proposed node=(\d+) epoch=(\d+)$", text, re.M):
        proposed.setdefault(int(epoch), []).append((moment(at), int(node)))
    for at, node, epoch in re.findall(STAMP + r"an epoch is adopted (?:by=.*? )?node=(\d+) epoch=(\d+)$", text, re.M):
        adopted.setdefault(int(epoch), {}).setdefault(int(node), moment(at))
    return proposed, adopted


class Putter:
    """A process on a node with a connection to etcd like its ftd's, that puts when it is told to."""

    def __init__(self, nodes, node, program):
        self.started = node.start(program, f"/bench/{node.name}", *nodes.store.endpoints, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.put(3)

    def put(self, times):
        """Milliseconds of each of so many puts, one after the other."""
        process = self.started.process
        process.stdin.write(f"{times}\n")
        process.stdin.flush()
        return [float(process.stdout.readline()) for _ in range(times)]

    def end(self):
        self.started.process.stdin.close()
        self.started.process.wait(10)


def put_program():
    build = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "release"
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--release", "--quiet", "--workspace", "--example", "put_speed"]
    subprocess.run(cargo, check=True, cwd=HERE.parent)
    return build / "examples/put_speed"


# So long nothing happens before an epoch, and before a put that it is compared with: what sleeps then has to wake in both.
LONELY = 0.5


def epochs_of(context, size, repetitions, program):
    """A rank of one node after the other is killed. For each epoch: ms from its proposal to its adoption on the proposing node, and on
    all; and ms of puts from that node, in between: of one that comes as lonely as the epoch, and of those that follow it at once."""
    # A line on standard error goes through four processes, while other nodes are still to adopt the epoch.
    logs = context.work / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    with Nodes(context, size, members=MEMBERS) as nodes:
        putters = [Putter(nodes, node, program) for node in nodes.nodes]
        job = nodes.sh(nodes.each_one(), size, "exec sleep 1000", ft="reinit", options=["--ft-max-failures", "1000"],
                       env={"FT_LOG": "error,ft_agent::driver=info", "FT_LOG_DIR": logs})
        ranks = lambda: {pid for node in nodes.nodes for pid in node.named("sleep")}
        eventually(lambda: len(ranks()) == size, "the ranks", 30)
        puts, next_puts = [], []
        for number in range(repetitions):
            # What follows a release, but for the report that waits for an MPI, is over by then.
            time.sleep(LONELY)
            first, *following = putters[number % size].put(3)
            puts.append(first)
            next_puts += following
            time.sleep(LONELY)
            (victim,) = nodes.nodes[number % size].named("sleep")
            before = ranks()
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: len(ranks()) == size and not ranks() & before, "the next world", 30)
        for putter in putters:
            putter.end()
        job.interrupt(signal.SIGTERM)
        job.wait()
        proposed, adopted = said_of_epochs("".join(log.read_text() for log in logs.iterdir()))
    own, every = [], []
    for epoch in range(2, repetitions + 2):
        check(epoch in proposed and len(adopted.get(epoch, {})) == size, f"epoch {epoch}: {proposed.get(epoch)}, {adopted.get(epoch)}")
        at, node = min(proposed[epoch])
        own.append((adopted[epoch][node] - at) * 1e3)
        every.append((max(adopted[epoch].values()) - at) * 1e3)
    return own, every, puts, next_puts


def bench_epochs(bench, options):
    """Whether no limit was missed."""
    # An epoch takes a second and a half; a median of three of them is as good as one.
    repetitions = bench.repetitions if options.times else max(bench.repetitions, 9)
    put_speed = put_program()
    result = bench.scratch / "epochs"

    def measure(another):
        missed = False
        # Nodes see the scratch directory, and not the build's.
        program = shutil.copy(put_speed, bench.scratch / "build")
        for size in options.nodes or (4, 8):
            with Quiet():
                figures = epochs_of(another(), size, repetitions, program)
            written, seen, put, following = map(statistics.median, figures)
            ratio = seen / put
            missed |= ratio > 2
            say(f"{size:5} {put:9.2f} {following:9.2f} {written:10.2f} {seen:15.2f} {ratio:7.2f}  {'MISSED' if ratio > 2 else 'ok'}")
        result.write_text("missed" if missed else "ok")

    say(f"\n## From the proposal of an epoch to its adoption, ms, with {MEMBERS} members of etcd; medians of {repetitions} epochs,"
        f" and of puts {LONELY} s before each and after it (goal: 2 of them)")
    say("nodes  one put  the next   proposer  on every node   ratio")
    in_name_spaces(bench, measure)
    return result.read_text() == "ok"


# --- what a checkpoint costs the application whose copies go to other nodes --------------------------------------------

# On each node.
PAUSED = 2
# So long for each MB nothing follows a checkpoint, in ms: until the copies of all ranks are on the other nodes. Whoever takes them faster
# than they can be copied waits in the third one for that: it has no place.
REST = 16
# Of the speed of a memcpy an ft_checkpoint has so much whose time is that of its copy into the arena.
COPY = 0.9


def pause(context, mpi, size, megabytes, repetitions):
    """Microseconds of memcpy and of ft_checkpoint, of each rank and repetition, and the versions of which a partner had the copy."""
    with Nodes(context, size, members=1) as nodes:
        program = nodes.cluster.program(mpi, "checkpoint.c")
        hosts = ",".join(f"{node.name}:{PAUSED}" for node in nodes.nodes)
        job = context.ftrun(mpi, size * PAUSED, program, str(megabytes), str(repetitions), str(REST * megabytes), on=nodes.nodes[0], env=ONE_CARD,
                            options=["--hosts", hosts, "-v"])
        job.expect(0, patience=300)
    copied = max(map(int, re.findall(r"version (\d+) is safe", job.err)), default=0)
    return [list(map(float, re.findall(rf"{what}_us ([\d.]+)", job.output.text))) for what in ("memcpy", "checkpoint")], copied


def bench_pause(bench, options):
    """ft_checkpoint's time on nodes whose copies go to each other's memory, against a memcpy of the same on the same node. Whether no limit was
    missed."""
    result = bench.scratch / "pause"

    def measure(another):
        missed = False
        for size in options.nodes or (2,):
            for mpi in bench.mpis:
                for megabytes in (64, 256):
                    with Quiet():
                        figures, copied = pause(another(), mpi, size, megabytes, max(bench.repetitions, 9))
                    copy, checkpoint = map(statistics.median, figures)
                    missed |= copy / checkpoint < COPY
                    say(f"{size:5} {mpi.name:9} {megabytes:4} {copy:12.0f} {checkpoint:17.0f} {copy / checkpoint:10.2f} {max(figures[1]):10.0f} {copied:11}"
                        f"  {'MISSED' if copy / checkpoint < COPY else 'ok'}")
        result.write_text("missed" if missed else "ok")

    say(f"\n## ft_checkpoint against memcpy over nodes, {PAUSED} ranks on each, µs, medians of all ranks (goal: the copy into the arena alone, {COPY})")
    say("nodes MPI         MB       memcpy     ft_checkpoint      ratio    longest  safe up to")
    in_name_spaces(bench, measure)
    return result.read_text() == "ok"


# --- from a checkpoint until it is safe in a partner's memory ------------------------------------------------------------

# A job's copies have so much of the speed of libfabric's own writes.
WRITES = 0.8


def safe(context, mpi, size, megabytes, repetitions):
    """Milliseconds until each version is safe: from the first rank's ft_checkpoint, and from the last one's return from it, to the word of the last partner;
    and libfabric's own writes of the same bytes, over the same network, before and after the job."""
    raw_program = context.work / "rma"
    subprocess.run([os.environ.get("CC", "gcc"), "-O2", HERE / "rma.c", "-o", raw_program, "-lfabric"], check=True)
    logs = context.work / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    with Nodes(context, size, members=1) as nodes:
        program = nodes.cluster.program(mpi, "checkpoint.c")
        hosts = ",".join(f"{node.name}:{PAUSED}" for node in nodes.nodes)
        env = {**ONE_CARD, "FT_LOG": "error,ft_agent::partners=info", "FT_LOG_DIR": logs}
        raw = raw_write(raw_program, megabytes, nodes.nodes)
        job = context.ftrun(mpi, size * PAUSED, program, str(megabytes), str(repetitions), str(REST * megabytes), "together", on=nodes.nodes[0],
                            env=env, options=["--hosts", hosts])
        job.expect(0, patience=300)
        raw += raw_write(raw_program, megabytes, nodes.nodes)
    there = {}
    for at, rank, version in re.findall(STAMP + r"kept, .*? rank=(\d+) version=(\d+) ", "".join(log.read_text() for log in logs.iterdir()), re.M):
        there.setdefault(int(version), {})[int(rank)] = moment(at)
    taken = {}
    for version, begun, over in re.findall(r"^checkpoint (\d+) from ([\d.]+) to ([\d.]+)$", job.output.text, re.M):
        taken.setdefault(int(version), []).append((float(begun), float(over)))
    whole, behind = [], []
    for version, times in taken.items():
        # The last one may be over before it is.
        if len(there.get(version, {})) == len(times) == size * PAUSED:
            whole.append((max(there[version].values()) - min(begun for begun, _ in times)) * 1e3)
            behind.append((max(there[version].values()) - max(over for _, over in times)) * 1e3)
    check(len(whole) >= repetitions - 1, f"of {repetitions} versions {len(whole)} are safe")
    return whole, behind, raw


def raw_write(program, megabytes, nodes=None):
    """Milliseconds of libfabric's own RMA writes of as many arenas as there are ranks, from one process to another: over the loopback, or from the
    first of these nodes to the second, over the network on which a job's copies go."""
    inside, here, there = [], "127.0.0.1", []
    if nodes is not None:
        one, other = nodes[:2]
        inside, here = ["nsenter", f"--net=/proc/{one.init}/ns/net"], one.address("mpi")
        there = [f"/proc/{other.init}/ns/net", other.address("mpi")]
    words = ["tcp;ofi_rxm", here, str(megabytes), str(RANKS), "3", *there]
    done = subprocess.run([*inside, program, *words], check=True, stdout=subprocess.PIPE, text=True)
    return list(map(float, done.stdout.split()))


def bench_safe(bench, options):
    """The time until checkpoints are safe in a job, against libfabric's own writes of the same bytes from one of its nodes to the other, before and after it (and
    over the loopback, which is another way). Whether no limit was missed."""
    result = bench.scratch / "safe"

    def measure(another):
        missed = False
        size = RANKS // PAUSED
        # This name space is the bench's own.
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for mpi in bench.mpis:
            for megabytes in (64, 256):
                with Quiet():
                    context = another()
                    whole, behind, raw = map(statistics.median, safe(context, mpi, size, megabytes, max(bench.repetitions, 9)))
                    loopback = statistics.median(raw_write(context.work / "rma", megabytes))
                missed |= raw / behind < WRITES
                say(f"{size:5} {mpi.name:9} {megabytes:4} {loopback:9.1f} {raw:12.1f} {whole:12.1f} {raw / whole:6.2f} {behind:20.1f} {raw / behind:6.2f}"
                    f"  {'MISSED' if raw / behind < WRITES else 'ok'}")
        result.write_text("missed" if missed else "ok")

    say(f"\n## Until a checkpoint is safe, {RANKS} ranks on {RANKS // PAUSED} nodes, ms, medians (goal: {WRITES} of libfabric's own writes, from the last return on)")
    say("nodes MPI         MB  loopback    libfabric   from begin  ratio from the last return ratio")
    in_name_spaces(bench, measure)
    return result.read_text() == "ok"


# --- from the loss of a node to all ranks computing --------------------------------------------------------------------

# T, ftrun's default.
TIME_OUT = 500.0
RANKS = 4


class Loss:
    """How nodes are lost: a function over the nodes, how many, and how much of T there is for it."""

    def __init__(self, how, lost, share):
        self.how, self.lost, self.share = how, lost, share


LOSSES = {
    "crash": Loss(lambda it: it[1].crash(), [1], 1.5),
    "power-off": Loss(lambda it: it[1].power_off(), [1], 1.5),
    "cut": Loss(lambda it: it[1].cut("mpi"), [1], 1.5),
    "cut-both": Loss(lambda it: [it[1].cut("mpi"), it[1].cut("store")], [1], 1.5),
    "cut-out": Loss(lambda it: it[1].cut_way("mpi", "out"), [1], 2.5),
    "cut-in": Loss(lambda it: it[1].cut_way("mpi", "in"), [1], 2.5),
    # The second one is killed before anybody waits for the end of the first one's processes.
    "two-crash": Loss(lambda it: it[1].crash(meanwhile=it[3].crash), [1, 3], 2.5),
    # When all of the first one's have ended.
    "two-apart": Loss(lambda it: [it[1].crash(), it[3].crash()], [1, 3], 2.5),
}

PARTS = ("agreed", "old ranks gone", "released", "past MPI_Init", "state restored")


class Lost:
    """One loss, ms: what it took in all and up to the notice, the block's parts, the first world's start and the restore."""

    def __init__(self, total, parts, start, restore):
        self.total, self.parts, self.start, self.restore = total, parts, start, restore
        self.noticed = total - sum(parts.values())

    def bound(self, share):
        return share * TIME_OUT + self.start + self.restore


def worlds(path):
    """Of each world that computes: rank -> (init, restored, version), ms of CLOCK_MONOTONIC."""
    found, now = [], {}
    for line in path.read_text().splitlines() if path.exists() else []:
        match = re.fullmatch(r"rank (\d+) pid \d+ init (\d+) restored (\d+) version (\d+)", line)
        if match:
            rank, init, restored, version = map(int, match.groups())
            now[rank] = (init / 1e6, restored / 1e6, version)
        elif line == "ready":
            found.append(now)
            now = {}
    return found


def lose(context, mpi, loss, megabytes):
    """A job on nodes of one slot, with spare ones; one or two of the others are lost."""
    spares = len(loss.lost)
    with Nodes(context, RANKS + spares, members=1) as nodes:
        program = nodes.cluster.program(mpi, "recovery.c")
        trace, stop = context.work / "trace", context.work / "stop"
        for path in (trace, stop):
            path.unlink(missing_ok=True)
        env = {**ONE_CARD, "BENCH_TRACE": trace, "BENCH_STOP": stop, "FT_LOG": "error,ft_agent::driver=info"}
        job = context.ftrun(mpi, RANKS, program, str(megabytes), "0", "1", on=nodes.nodes[0], env=env, gates=kept(1, range(RANKS)),
                            options=["--hosts", nodes.each_one(), f"--ft-spares={spares}"])
        eventually(lambda: worlds(trace), "the first world", 60)
        wait_kept(job, range(RANKS))
        # The copies are there, and nobody is busy with them any more.
        time.sleep(0.3)
        wall = time.time() - time.monotonic()
        begun = time.monotonic() * 1e3
        loss.how(nodes.nodes)
        first, second = eventually(lambda: len(found := worlds(trace)) >= 2 and found[:2], "the next world", 60)
        job.wait_err("ftd:   took ", 1, 30)
        time.sleep(0.2)
        stop.touch()
        job.wait()
        released = min(moment(at) for at in re.findall(STAMP + r"a world is released node=\d+ world=1$", job.err, re.M))
        check({version for _, _, version in second.values()} == {1}, f"not version 1 was restored: {second}")
        took = re.search(r"^ftd:   took .*$", job.err, re.M)[0]
        parts = {name: float(value) for name, value in re.findall(r"([A-Za-z_ ]+?) ([\d.]+)(?:,|;|$)", took.partition("on: ")[2])}
        parts = {name.strip(): value for name, value in parts.items()}
        check(tuple(parts) == PARTS, f"not all parts: {took}")
        last = lambda world, at: max(times[at] for times in world.values())
        return Lost(last(second, 1) - begun, parts, last(first, 0) - (released - wall) * 1e3, last(second, 1) - last(second, 0))


def bench_losses(bench, options):
    """Whether no limit was missed."""
    result = bench.scratch / "losses"
    names = options.loss or list(LOSSES)

    def measure(another):
        missed = False
        for name in names:
            for mpi in bench.mpis:
                with Quiet():
                    found = [lose(another(), mpi, LOSSES[name], 16) for _ in range(bench.repetitions)]
                of = lambda value: statistics.median(map(value, found))
                total, bound = of(lambda it: it.total), of(lambda it: it.bound(LOSSES[name].share))
                within = sum(it.total <= it.bound(LOSSES[name].share) for it in found)
                missed |= total > bound
                parts = " ".join(f"{of(lambda it: it.parts[part]):8.1f}" for part in PARTS)
                say(f"{name:10} {mpi.name:9} {total:8.0f} {bound:8.0f} {within:3}/{len(found):<3}| {of(lambda it: it.noticed):8.1f} {parts} |"
                    f" {of(lambda it: it.start):6.1f} {of(lambda it: it.restore):8.1f}  {'MISSED' if total > bound else 'ok'}")
        result.write_text("missed" if missed else "ok")

    say(f"\n## From the loss of nodes to all {RANKS} ranks computing again, ms, T {TIME_OUT:.0f}; medians of {bench.repetitions}."
        " Goal: 1.5 T (2.5 T for one-way cuts and two nodes), one start, the restore")
    say("loss       MPI          total    bound  within |  noticed   agreed  emptied released MPI_Init restored |  start  restore")
    in_name_spaces(bench, measure)
    return result.read_text() == "ok"
