#!/usr/bin/python3
"""Measures what ftd costs and gains; see benches/README.md. Standard library only.

    benches/run.py [--quick] [--row RANKS,PROTECTED_MB,RESIDENT_MB …] [recovery|checkpoint|startup|idle|output|nodes|copies …] [--mpi NAME …]
    benches/run.py [--quick] [--nodes N …] [--ranks N] [--loss NAME …] [epochs|losses|pause|safe|agents|slurm …] [--mpi NAME …]     as root
    benches/run.py --against PREFIX …      this build against the one that is installed there

Every number is a median of at least 20 (with --quick: of 3), and what is compared runs in the same session, in turns.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import clusters  # noqa: E402
import slurm  # noqa: E402
from harness import mpis, proc  # noqa: E402

SIZES = (4, 8, 16)
CHECKPOINT_MB = (1, 16, 256)
SHM = pathlib.Path("/dev/shm")
PATIENCE = 120.0


def monotonic_ms():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e6


class Bench:
    """An installation, by default of this build into a scratch directory, and programs compiled against it."""

    def __init__(self, options, prefix=None):
        self.repetitions = options.times or (3 if options.quick else 21)
        self.rows = [tuple(map(int, row.split(","))) for row in options.row]
        self.mpis = [mpis.ALL[name] for name in options.mpi]
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="ftd-bench-"))
        self.prefix = pathlib.Path(prefix or self.scratch / "prefix").absolute()
        if prefix is None:
            subprocess.run(["make", "-s", "-C", str(HERE.parent), "install", f"PREFIX={self.prefix}"], check=True)

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def program(self, mpi, name):
        target = self.scratch / f"{name}.{mpi}"
        if not target.exists():
            include, lib = self.prefix / "include", self.prefix / "lib"
            subprocess.run(
                [mpi.cc, "-O2", "-I", include, HERE / f"{name}.c", "-o", target, "-L", lib, f"-Wl,-rpath,{lib}",
                 "-lftd_client"], check=True, env=self.env(mpi),
            )
        return str(target)

    def env(self, mpi, **more):
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.scratch), "TMPDIR": str(self.scratch),
               **mpi.env, **{k: str(v) for k, v in more.items()}}
        if os.geteuid() == 0:
            env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return env

    def ftrun(self, size, *command):
        return [str(self.prefix / "bin/ftrun"), "-n", str(size), "--ft=reinit", "--oversubscribe", *command]


class Traced:
    """A job of `recovery`, and what its ranks wrote down."""

    def __init__(self, bench, mpi, argv, trace, stop):
        self.trace, self.read = trace, 0
        self.errors = tempfile.TemporaryFile("a+b")
        self.process = subprocess.Popen(
            argv, env=bench.env(mpi, BENCH_TRACE=trace, BENCH_STOP=stop), stdout=subprocess.DEVNULL, stderr=self.errors,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )

    def lines(self):
        try:
            return self.trace.read_text().splitlines()
        except FileNotFoundError:
            return []

    def world(self, size, patience=PATIENCE):
        """Waits for the next world: (pids by rank, last init, last restored) in milliseconds."""
        deadline = time.monotonic() + patience
        while True:
            new = self.lines()[self.read:]
            if "ready" in new:
                break
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"no world came up (status {self.process.poll()}): {self.err()[-2000:]}")
            time.sleep(0.002)
        self.read += len(new)
        found = {}
        for line in new:
            match = re.fullmatch(r"rank (\d+) pid (\d+) init (\d+) restored (\d+) version (\d+)", line)
            if match:
                rank, pid, init, restored, _ = map(int, match.groups())
                found[rank] = (pid, init / 1e6, restored / 1e6)
        if len(found) != size:
            raise RuntimeError(f"{len(found)} ranks reported, not {size}")
        return ({r: v[0] for r, v in found.items()}, max(v[1] for v in found.values()), max(v[2] for v in found.values()))

    def err(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def end(self):
        try:
            self.process.wait(PATIENCE)
        finally:
            if self.process.poll() is None:
                proc.kill_tree(self.process.pid, also_root=True)


def blocks(text):
    """Per recovery block: phase -> milliseconds since the notice."""
    found = []
    for line in re.findall(r"took\s+[\d.]+ ms from the notice on: (.*)", text):
        at, phases = 0.0, {}
        for name, took in re.findall(r"([A-Za-z_ ]+?) ([\d.]+)(?:,|;|$)", line):
            at += float(took)
            phases[name.strip()] = at
        found.append(phases)
    return found


def recovery_ftd(bench, mpi, size, protected, resident, kills=None):
    """Kills one rank after another in one job; lists of milliseconds since the kill."""
    trace, stop = bench.scratch / "trace", bench.scratch / "stop"
    for path in (trace, stop):
        path.unlink(missing_ok=True)
    job = Traced(bench, mpi, bench.ftrun(size, bench.program(mpi, "recovery"), str(protected), str(resident)), trace, stop)
    init, restored = [], []
    try:
        pids, _, _ = job.world(size)
        for number in range(kills or bench.repetitions):
            time.sleep(0.1)
            begun = monotonic_ms()
            os.kill(pids[number % size], signal.SIGKILL)
            pids, last_init, last_restored = job.world(size)
            init.append(last_init - begun)
            restored.append(last_restored - begun)
        stop.touch()
    finally:
        stop.touch()
        job.end()
    phases = blocks(job.err())
    columns = {"init": init, "restored": restored, "noticed": [], "agreed": []}
    if len(phases) == len(restored):
        for total, phase in zip(restored, phases):
            if "state restored" in phase and "agreed" in phase:
                # The ranks' clock and the agent's block end at the same moment; what is left is the notice.
                noticed = max(0.0, total - phase["state restored"])
                columns["noticed"].append(noticed)
                columns["agreed"].append(noticed + phase["agreed"])
    return columns


def mapped(pids):
    """Files in /dev/shm that these processes have mapped."""
    maps = "".join(pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return {pathlib.Path(name) for name in re.findall(rf"{SHM}/\S+", maps)}


def recovery_relaunch(bench, mpi, size, protected, resident):
    """The same failure under the MPI's own launcher: it aborts, and is started again as soon as it has ended."""
    trace, stop = bench.scratch / "trace", bench.scratch / "stop"
    argv = mpi.mpiexec(size, bench.program(mpi, "recovery"), str(protected), str(resident))
    init = []
    before = set(SHM.iterdir())
    for path in (trace, stop):
        path.unlink(missing_ok=True)
    job = Traced(bench, mpi, argv, trace, stop)
    try:
        pids, _, _ = job.world(size)
        for number in range(bench.repetitions):
            time.sleep(0.1)
            begun = monotonic_ms()
            os.kill(pids[number % size], signal.SIGKILL)
            job.process.wait(PATIENCE)
            trace.unlink()
            # What was started again is what is killed next.
            job = Traced(bench, mpi, argv, trace, stop)
            pids, last_init, _ = job.world(size)
            init.append(last_init - begun)
            # An aborted world leaves its shared memory behind, and the next ones would run short of it.
            used = mapped(pids.values())
            for path in set(SHM.iterdir()) - before - used:
                if path.is_file() and path.stat().st_uid == os.geteuid():
                    path.unlink()
    finally:
        stop.touch()
        job.end()
    return init


def median(values):
    return f"{statistics.median(values):8.1f}" if values else "       –"


def recovery_rows(bench):
    return bench.rows or [(size, 16, 0) for size in SIZES] + [(size, 16, 1024) for size in SIZES] + [(4, 1024, 0)]


def bench_recovery(bench):
    print("\n## Recovery: milliseconds from kill -9 of a rank, medians of", bench.repetitions)
    cases = recovery_rows(bench)
    print(f"{'MPI':10} ranks protected resident |  noticed   agreed  past MPI_Init  restored | abort + relaunch, past MPI_Init")
    for size, protected, resident in cases:
        for mpi in bench.mpis:
            ours = recovery_ftd(bench, mpi, size, protected, resident)
            theirs = recovery_relaunch(bench, mpi, size, protected, resident)
            print(f"{mpi.name:10} {size:5} {protected:6} MB {resident:5} MB | {median(ours['noticed'])} {median(ours['agreed'])} "
                  f"     {median(ours['init'])}  {median(ours['restored'])} | {median(theirs)}", flush=True)


def checkpoint_times(bench, mpi, megabytes, repetitions):
    """Microseconds of memcpy and of ft_checkpoint, one each per repetition."""
    run = subprocess.run(
        bench.ftrun(1, bench.program(mpi, "checkpoint"), str(megabytes), str(repetitions)), env=bench.env(mpi),
        capture_output=True, text=True, timeout=PATIENCE * 3, check=True,
    )
    return [list(map(float, re.findall(rf"{what}_us ([\d.]+)", run.stdout))) for what in ("memcpy", "checkpoint")]


def bench_checkpoint(bench):
    print("\n## ft_checkpoint against memcpy, one rank, warm; medians of", max(bench.repetitions, 3))
    print("MB      memcpy µs  ft_checkpoint µs  memcpy/ft_checkpoint (goal 0.9)")
    mpi = bench.mpis[0]
    for megabytes in CHECKPOINT_MB:
        copy, checkpoint = map(statistics.median, checkpoint_times(bench, mpi, megabytes, bench.repetitions))
        print(f"{megabytes:4} {copy:12.0f} {checkpoint:17.0f} {copy / checkpoint:12.2f}", flush=True)


def run_ms(bench, mpi, argv):
    """Milliseconds from the start of a command to its end."""
    begun = monotonic_ms()
    subprocess.run(argv, env=bench.env(mpi), check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return monotonic_ms() - begun


def bench_startup(bench):
    print("\n## Start-up: milliseconds for a program that only initialises and finalizes MPI, medians of", bench.repetitions)
    print(f"{'MPI':10} ranks |   ftrun  mpirun")
    for mpi in bench.mpis:
        program = bench.program(mpi, "startup")
        for size in SIZES:
            ours, theirs = [], []
            for _ in range(bench.repetitions):
                for argv, times in ((bench.ftrun(size, program), ours), (mpi.mpiexec(size, program), theirs)):
                    times.append(run_ms(bench, mpi, argv))
            print(f"{mpi.name:10} {size:5} | {median(ours)} {median(theirs)}", flush=True)


def spent(root):
    """What the processes of a launcher, without the ranks and what MPIs start in them, have taken: milliseconds of processor, and
    how often they were given one."""
    took = turns = 0
    for pid in [root, *proc.descendants(root)]:
        if proc.name(pid).startswith("startup"):
            continue
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
            try:
                busy, _, times = map(int, (task / "schedstat").read_text().split())
            except FileNotFoundError:
                continue
            took, turns = took + busy / 1e6, turns + times
    return took, turns


# By then shepherds look at their ranks as seldom as they ever do.
SETTLED, WATCHED = 40, 20


def idle_costs(bench, mpi, size, launchers):
    """For each launcher's command line what its processes take per second while all ranks sleep, side by side."""
    quiet = {"env": bench.env(mpi), "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True}
    jobs = [subprocess.Popen(argv, **quiet) for argv in launchers]
    time.sleep(SETTLED)
    before = [spent(job.pid) for job in jobs]
    time.sleep(WATCHED)
    after = [spent(job.pid) for job in jobs]
    if any(job.wait(PATIENCE) for job in jobs):
        raise RuntimeError(f"a job of {mpi} did not end well")
    return [((then[0] - now[0]) / WATCHED, (then[1] - now[1]) / WATCHED) for now, then in zip(before, after)]


SLEEPS = str(SETTLED + WATCHED + 10)


LINES = (20, 80, 1000)
GIGABYTE = 10**9
# As programs print: a line, a write.
PRINTS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    int length = atoi(argv[1]);
    char line[4096];
    setvbuf(stdout, NULL, argv[2][0] == 'l' ? _IOLBF : _IOFBF, 1 << 16);
    for (long written = 0, number = 0; written < atol(argv[3]); written += length, number++) {
        memset(line, 'x', length);
        line[sprintf(line, "%ld", number)] = ' ';
        line[length - 1] = '\\n';
        fwrite(line, 1, length, stdout);
    }
    return 0;
}
"""


def prints(bench):
    """The program that prints."""
    target = bench.scratch / "prints"
    if not target.exists():
        (bench.scratch / "prints.c").write_text(PRINTS)
        subprocess.run(["cc", "-O2", "-o", target, bench.scratch / "prints.c"], check=True)
    return str(target)


def output_seconds(bench, length, how, options, total):
    """How long one rank needs to print so much through ftrun, and how long ftrun computes for it."""
    argv = [str(bench.prefix / "bin/ftrun"), "-n", "1", "--ft=reinit", *options, prints(bench), str(length), how, str(total)]
    before, begun = os.times(), time.monotonic()
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    subprocess.run(argv, check=True, stdout=reader.stdin, stdin=subprocess.DEVNULL, env=bench.env(mpis.ALL["openmpi4"]))
    reader.stdin.close()
    reader.wait()
    took, after = time.monotonic() - begun, os.times()
    return took, after.children_user + after.children_system - before.children_user - before.children_system


def bench_output(bench):
    total, rounds = (GIGABYTE // 10 if bench.repetitions < 5 else GIGABYTE), max(3, bench.repetitions // 3)
    print(f"\n## {total / 1e9:g} GB of standard output of one rank through ftrun, s, --ft-output=all and once; medians of {rounds}")
    print("bytes a line  writes | all: time  processor | once: time  processor | once/all: time  processor")
    for length in LINES:
        for how in ("line", "block"):
            times = [[], []]
            for number in range(rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    times[which].append(output_seconds(bench, length, how, [f"--ft-output={('all', 'once')[which]}"], total))
            (all_time, all_cpu), (time_, cpu) = ([statistics.median(column) for column in zip(*of)] for of in times)
            print(f"{length:12} {how:>7} | {all_time:9.2f} {all_cpu:10.2f} | {time_:10.2f} {cpu:10.2f} | "
                  f"{time_ / all_time:14.3f} {cpu / all_cpu:10.3f}", flush=True)


def bench_idle(bench):
    print("\n## Idle: what the launcher's processes take while 16 ranks sleep, per second")
    print(f"{'MPI':10} | ftrun: ms of processor  turns | mpirun: ms of processor  turns")
    for mpi in bench.mpis:
        program = bench.program(mpi, "startup")
        launchers = [bench.ftrun(16, program, SLEEPS), mpi.mpiexec(16, program, SLEEPS)]
        (ours, our_turns), (theirs, their_turns) = idle_costs(bench, mpi, 16, launchers)
        print(f"{mpi.name:10} | {ours:22.2f} {our_turns:6.1f} | {theirs:23.2f} {their_turns:6.1f}", flush=True)


def bench_nodes(quick):
    """One recovery of each kind in simulated clusters of many nodes, of one slot and of 64, by the shipped core; needs no MPI. Whether
    no limit was missed."""
    print("\n## What one recovery costs each node of a large cluster: the average, and the node that pays most", flush=True)
    build = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    measure = [build / "release/ft-measure", *(["100", "1000"] if quick else [])]
    done = [subprocess.run([*measure, *of]).returncode for of in ([], ["--slots", "64", "--seeds", "1"])]
    return not any(done)


def bench_copies(quick):
    """Arenas of one process into those of another: through two `ft-ship`s, and by libfabric itself in one call for each."""
    print("\n## Copies: 4 arenas to another process on this machine, ms", flush=True)
    print(f"{'provider':12} {'MB each':>8} {'libfabric':>10} {'ft-ship':>10} {'ratio':>7}", flush=True)
    build = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "release"
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--release", "--quiet", "--package", "ft-ship"]
    subprocess.run([*cargo, "--bins", "--example", "ship_speed"], check=True, cwd=HERE.parent)
    with tempfile.TemporaryDirectory(prefix="ftd-bench-") as scratch:
        raw = f"{scratch}/rma"
        subprocess.run([os.environ.get("CC", "gcc"), "-O2", HERE / "rma.c", "-o", raw, "-lfabric"], check=True)
        for provider in ("tcp;ofi_rxm", "shm"):
            for megabytes in (64, 256):
                what = [str(megabytes), "4", "1" if quick else "3"]
                commands = ([raw, provider, "127.0.0.1", *what],
                            [build / "examples/ship_speed", build / "ft-ship", provider, *what])
                times = ([], [])
                for number in range(3 if quick else 7):
                    for which in (0, 1) if number % 2 else (1, 0):
                        done = subprocess.run(commands[which], check=True, stdout=subprocess.PIPE, text=True)
                        times[which].extend(map(float, done.stdout.split()))
                own, ship = map(statistics.median, times)
                print(f"{provider:12} {megabytes:8} {own:10.1f} {ship:10.1f} {own / ship:7.2f}", flush=True)


def in_turns(new, old, rounds, measure):
    """`measure` returns a list of figures of a build. One line: new, old, new/old, and old/old as the noise to compare with."""
    figures = [[], [], []]
    for number in range(rounds):
        # Who comes first changes: what the one leaves in caches must not always favour the same.
        order = [(new, figures[0]), (old, figures[1]), (old, figures[2])]
        for build, into in order[number % 3:] + order[:number % 3]:
            into.extend(measure(build))
    this, other, again = map(statistics.median, figures)
    return f"{this:9.1f} {other:9.1f} {this / other:9.3f} {again / other:9.3f}"


COLUMNS = "     this     other      ratio  other/other"


def two_startup(new, old):
    print("\n## Start-up, ms, this build against the other, medians of", new.repetitions)
    print(f"{'MPI':10} ranks | {COLUMNS}")
    for mpi in new.mpis:
        for size in SIZES:
            def measure(bench):
                return [run_ms(bench, mpi, bench.ftrun(size, bench.program(mpi, "startup")))]
            measure(new), measure(old)
            print(f"{mpi.name:10} {size:5} | {in_turns(new, old, new.repetitions, measure)}", flush=True)


def two_checkpoint(new, old):
    rounds = max(3, new.repetitions // 3)
    print("\n## ft_checkpoint, µs, this build against the other, medians of", 7 * rounds)
    print(f"  MB | {COLUMNS}")
    for megabytes in CHECKPOINT_MB:
        row = in_turns(new, old, rounds, lambda bench: checkpoint_times(bench, bench.mpis[0], megabytes, 7)[1])
        print(f"{megabytes:4} | {row}", flush=True)


def two_recovery(new, old):
    rounds = max(3, new.repetitions // 3)
    print("\n## kill -9 to the last rank past MPI_Init, ms, this build against the other, medians of", 3 * rounds)
    print(f"{'MPI':10} ranks protected resident | {COLUMNS}")
    for size, protected, resident in recovery_rows(new):
        for mpi in new.mpis:
            row = in_turns(new, old, rounds, lambda bench: recovery_ftd(bench, mpi, size, protected, resident, 3)["init"])
            print(f"{mpi.name:10} {size:5} {protected:6} MB {resident:5} MB | {row}", flush=True)


def two_output(new, old):
    total, rounds = (GIGABYTE // 10 if new.repetitions < 5 else GIGABYTE), max(3, new.repetitions // 3)
    print(f"\n## {total / 1e9:g} GB of standard output of one rank through ftrun, s, this build against the other, medians of {rounds}")
    print(f"bytes a line  writes | {COLUMNS}")
    for length in LINES:
        for how in ("line", "block"):
            row = in_turns(new, old, rounds, lambda bench: [output_seconds(bench, length, how, [], total)[0]])
            print(f"{length:12} {how:>7} | {row}", flush=True)


def two_idle(new, old):
    print("\n## Idle: what the launcher's processes take while 16 ranks sleep, per second, this build against the other")
    print(f"{'MPI':10} | ms of processor: this  other  other again | turns: this  other  other again")
    for mpi in new.mpis:
        launchers = [bench.ftrun(16, bench.program(mpi, "startup"), SLEEPS) for bench in (new, old, old)]
        costs = idle_costs(new, mpi, 16, launchers)
        took, turns = zip(*costs)
        print(f"{mpi.name:10} | {took[0]:21.2f} {took[1]:6.2f} {took[2]:12.2f} | {turns[0]:11.1f} {turns[1]:6.1f} {turns[2]:12.1f}",
              flush=True)


ONE = {"recovery": bench_recovery, "checkpoint": bench_checkpoint, "startup": bench_startup, "idle": bench_idle, "output": bench_output}
TWO = {"recovery": two_recovery, "checkpoint": two_checkpoint, "startup": two_startup, "idle": two_idle, "output": two_output}


# Over nodes. What returns False has missed a limit.
OVER_NODES = {"epochs": clusters.bench_epochs, "losses": clusters.bench_losses, "pause": clusters.bench_pause, "safe": clusters.bench_safe,
              "agents": clusters.bench_agents, "slurm": slurm.bench_slurm}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[*ONE, "nodes", "copies", *OVER_NODES, []], default=[])
    parser.add_argument("--quick", action="store_true", help="medians of 3 (of epochs: of 9): to see that it works")
    parser.add_argument("--times", type=int, help="medians of so many")
    parser.add_argument("--mpi", nargs="*", default=["openmpi4", "openmpi5", "mpich4", "mpich5"], choices=[*mpis.ALL, []])
    parser.add_argument("--nodes", nargs="*", type=int, help="epochs, agents: so many nodes")
    parser.add_argument("--ranks", type=int, default=2, help="agents: so many on each node")
    parser.add_argument("--loss", nargs="*", choices=list(clusters.LOSSES), help="losses: only these")
    parser.add_argument("--prefix", help="measure this installation instead of the build in the target directory")
    parser.add_argument("--row", action="append", default=[], metavar="RANKS,PROTECTED_MB,RESIDENT_MB",
                        help="only this row of the recovery; may be given again")
    parser.add_argument("--against", metavar="PREFIX", help="compare with the installation of another build of ftd")
    return parser.parse_args()


def main():
    options = arguments()
    names = options.what or ["startup", "idle", "output", "checkpoint", "recovery", "nodes", "copies", *OVER_NODES]
    well = True
    if "nodes" in names:
        names.remove("nodes")
        well = bool(options.against) or bench_nodes(options.quick)
    if "copies" in names:
        names.remove("copies")
        if not options.against:
            bench_copies(options.quick)
    if names:
        well &= programs(options, names)
    sys.exit(0 if well else 1)


def programs(options, names):
    """Whether no limit was missed."""
    proc.become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(options, options.prefix)
    other = Bench(options, options.against) if options.against else None
    well = True
    try:
        for name in names:
            if name in OVER_NODES:
                well &= bool(other) or OVER_NODES[name](bench, options) is not False
            elif other:
                TWO[name](bench, other)
            else:
                ONE[name](bench)
        return well
    finally:
        # Whatever ended this: nothing that it started runs on (they are all below this subreaper).
        proc.kill_tree(os.getpid(), also_root=False)
        for each in filter(None, (bench, other)):
            each.close()


if __name__ == "__main__":
    main()
