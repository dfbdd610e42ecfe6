"""What is measured of steps of Slurm's: `benches/run.py slurm`; see benches/README.md. Slurm, etcd and the daemons are those of the tests, on nodes
that are name spaces of this machine. Root only."""

import os
import re
import statistics
import time

from clusters import Quiet, in_name_spaces, say, worlds
from harness.job import check
from scenarios.copies import kept, wait_kept
from scenarios.hosts import ONE_CARD
from scenarios.processes import eventually
from scenarios.slurm import idle
from scenarios.slurm_steps import Steps

NODES, TASKS = 4, 4
RANKS = NODES * TASKS
LAYOUT = [f"-N{NODES}", f"--ntasks-per-node={TASKS}"]
GOAL = 1.2


def took(steps, mpi, *words):
    """Milliseconds from the start of an srun to its end, with no other job on the nodes."""
    idle(steps.slurm)
    begun = time.monotonic()
    status, out, err = steps.slurm.run("srun", *words, mpi=mpi, env=ONE_CARD)
    check(status == 0, f"{words}: {status}: {out}{err}")
    return (time.monotonic() - begun) * 1e3


def unable(steps, mpi):
    """What Slurm's own PMIx says when it cannot start programs of that MPI; nothing, where it can."""
    idle(steps.slurm)
    status, out, err = steps.slurm.run("srun", "--mpi=pmix", *LAYOUT, steps.cluster.program(mpi, "startup.c"), mpi=mpi, env=ONE_CARD)
    # That of the rank that is at fault may stand behind those of the others, which Slurm has ended.
    lines = [line.strip() for line in (out + err).splitlines() if re.search("error|fail|not ", line, re.I)]
    return None if status == 0 else f"srun --mpi=pmix ends with {status}{f': {lines[0]}' if lines else ''}"


def start_up(steps, mpi, times, baseline):
    """For each way to start something the milliseconds that it takes, in turns; `baseline`: also under Slurm's own PMIx."""
    program = steps.cluster.program(mpi, "startup.c")
    ways = {
        "pmix": ["--mpi=pmix", *LAYOUT, program], "ft": ["--ft=reinit", *LAYOUT, program],
        "plain true": ["--mpi=none", *LAYOUT, "/bin/true"], "ft true": ["--ft=reinit", *LAYOUT, "/bin/true"],
    }
    if not baseline:
        del ways["pmix"]
    found = {name: [] for name in ways}
    for turn in range(times + 1):
        for name, words in ways.items():
            spent = took(steps, mpi, *words)
            # The first one finds nothing in the caches.
            if turn:
                found[name].append(spent)
    return {name: statistics.median(all_of) for name, all_of in found.items()}


class Failure:
    """A failure of a job that computes: ms until the last rank is past MPI_Init and has its state back, and the block's parts."""

    def __init__(self, past_init, restored, parts):
        self.past_init, self.restored, self.parts = past_init, restored, parts
        self.noticed = restored - sum(parts.values())


def traced(steps):
    """Where the ranks write down, and what ends them."""
    trace, stop = steps.context.work / "trace", steps.context.work / "stop"
    for path in (trace, stop):
        path.unlink(missing_ok=True)
    return trace, stop, {**ONE_CARD, "BENCH_TRACE": trace, "BENCH_STOP": stop}


def of_last(world, at):
    return max(times[at] for times in world.values())


def fail(steps, mpi, what):
    """A rank is killed, or a node crashes."""
    trace, stop, env = traced(steps)
    program = steps.cluster.program(mpi, "recovery.c")
    words = ["-N5", "--ft-spares=1", f"--ntasks-per-node={TASKS}", program, "16", "0", "1"]
    job = steps.srun(*words, mpi=mpi, env=env, gates=kept(1, range(RANKS)))
    eventually(lambda: worlds(trace), "the first world", 60)
    wait_kept(job, range(RANKS))
    # The copies are there, and nobody is busy with them any more.
    time.sleep(0.3)
    if what == "process":
        (inside,) = re.findall(r"^rank 5 pid (\d+) ", trace.read_text(), re.M)
        victim = steps.nodes[1].outside(int(inside))
        begun = time.monotonic() * 1e3
        os.kill(victim, 9)
    else:
        begun = time.monotonic() * 1e3
        steps.nodes[1].crash()
    _, second = eventually(lambda: len(found := worlds(trace)) >= 2 and found[:2], "the next world", 60)
    job.wait_err("ftd:   took ", 1, 30)
    stop.touch()
    check(job.wait() == 0, job.err)
    parts = re.search(r"^ftd:   took .*$", job.err, re.M)[0].partition("on: ")[2]
    parts = {name.strip(): float(value) for name, value in re.findall(r"([A-Za-z_ ]+?) ([\d.]+)(?:,|;|$)", parts)}
    return Failure(of_last(second, 0) - begun, of_last(second, 1) - begun, parts)


def relaunch(steps, mpi):
    """The same death of a rank under Slurm's own PMIx, which ends the step, and a second srun as soon as the first one is over: ms."""
    trace, stop, env = traced(steps)
    program = steps.cluster.program(mpi, "recovery.c")
    idle(steps.slurm)
    words = ["srun", "--mpi=pmix", *LAYOUT, program, "16", "0", "1"]
    job = steps.slurm.job(*words, mpi=mpi, env=env)
    eventually(lambda: worlds(trace), "the first world", 60)
    (inside,) = re.findall(r"^rank 5 pid (\d+) ", trace.read_text(), re.M)
    victim = steps.nodes[1].outside(int(inside))
    begun = time.monotonic() * 1e3
    os.kill(victim, 9)
    job.wait()
    trace.unlink()
    job = steps.slurm.job(*words, mpi=mpi, env=env)
    (world,) = eventually(lambda: worlds(trace), "the second job", 60)
    stop.touch()
    job.wait()
    return of_last(world, 0) - begun


def measure_failures(another, mpi, times, baseline):
    """Per failure what it took; with `baseline` also what Slurm's own PMIx takes to start again."""
    found = {"process": [], "node": []}
    with Steps(another(), NODES + 1) as steps:
        found["process"] = [fail(steps, mpi, "process") for _ in range(times)]
        again = [relaunch(steps, mpi) for _ in range(times if baseline else 0)]
    for _ in range(times):
        with Steps(another(), NODES + 1) as steps:
            found["node"].append(fail(steps, mpi, "node"))
    return found, again


def bench_slurm(bench, _options):
    """Whether no limit was missed."""
    result, times = bench.scratch / "slurm", bench.repetitions

    def measure(another):
        missed, without = False, {}
        say(f"\n## Start-up and end of {RANKS} ranks on {NODES} nodes, ms, medians of {times}. Goal: srun --ft=reinit at most {GOAL} of srun --mpi=pmix")
        say("MPI        | --mpi=pmix  --ft=reinit  ratio | without MPI: srun  --ft=reinit")
        for mpi in bench.mpis:
            with Quiet(), Steps(another(), NODES) as steps:
                without[mpi.name] = unable(steps, mpi)
                of = start_up(steps, mpi, times, without[mpi.name] is None)
            ratio = of["ft"] / of["pmix"] if "pmix" in of else None
            missed |= ratio is not None and ratio > GOAL
            theirs = f"{of['pmix']:10.0f}" if ratio else f"{'–':>10}"
            verdict = f"not compared: {without[mpi.name]}" if ratio is None else "MISSED" if ratio > GOAL else "ok"
            say(f"{mpi.name:10} | {theirs} {of['ft']:12.0f} {f'{ratio:.2f}' if ratio else '–':>6} | {of['plain true']:17.0f} {of['ft true']:12.0f}  {verdict}")
        say(f"\n## From a failure to all {RANKS} ranks computing again, ms, one spare node; medians of {times}")
        say("MPI        failure | past MPI_Init  restored | noticed, then the block's parts | srun --mpi=pmix: abort + relaunch, past MPI_Init")
        for mpi in bench.mpis:
            with Quiet():
                found, again = measure_failures(another, mpi, times, without[mpi.name] is None)
            for what, all_of in found.items():
                of = lambda value: statistics.median(map(value, all_of))
                parts = ", ".join(f"{name} {of(lambda it: it.parts.get(name, 0)):.0f}" for name in all_of[0].parts)
                theirs = f"{statistics.median(again):.0f}" if what == "process" and again else "–"
                say(f"{mpi.name:10} {what:7} | {of(lambda it: it.past_init):13.0f} {of(lambda it: it.restored):9.0f} |"
                    f" noticed {of(lambda it: it.noticed):.0f}, {parts} | {theirs}")
        result.write_text("missed" if missed else "ok")

    in_name_spaces(bench, measure)
    return result.read_text() == "ok"
