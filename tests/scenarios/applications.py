"""Applications as Debian has them, over six nodes: LAMMPS, hpcc and Quantum ESPRESSO's pw.x go through the death of a rank and of a node, and
their results are what they say themselves is right; and through all that heat2d goes through (failures.py), but for what is of checkpoints of
the API. Which pairs run in `make test` says matrix.toml."""

import contextlib
import itertools
import math
import os
import pathlib
import re
import shutil
import signal
import time

from harness import proc, registry
from harness.job import Failed, Skipped, check
from harness.mpirun import mpirun_over
from harness.registry import scenario
from harness.witness import NO_TRACE, Witness, traced

from .clusters import watched
from .failures import BEGUN, FAILURES, SPIN, TIME_OUT, VICTIM, Trial
from .hosts import ONE_CARD, Nodes
from .processes import eventually
from .recovery import LAMMPS_NEW, _open_restart, _thermo

RANKS = 12
# Rank 0 is not where ftrun is, and ftrun's node has room for the ranks of two others.
HOSTS = "node1:2,node2:2,node3:2,node4:2,node5:2,node0:6"
# Nobody has room but the last node, which is spare.
WITH_SPARE = "node1:2,node2:2,node3:2,node4:2,node0:4,node5:2"


class Application:
    """A program, what it reads, and what is right of what it says. The user's directory is the same on all nodes, as on a cluster's file
    system."""

    # Its file.
    binary = None
    # So long it may take after a failure.
    patience = 150
    # Whether it bears ranks that do not yield to each other while they wait, as the witness wants them (failures.py).
    spins = False

    def __init__(self, context, nodes, mpi, size=RANKS, seconds=0, shared=True, program=None):
        """`seconds`: at least so long it computes. `shared`: what it writes outlives any node. `program`: its file, or a copy of that."""
        self.context, self.nodes, self.mpi, self.size, self.seconds, self.shared = context, nodes, mpi, size, seconds, shared
        self.program = program or self.binary
        self.directory = context.work
        self.prepare()

    def write(self, name, text):
        (self.directory / name).write_text(text)

    def prepare(self):
        """Before the job."""

    def under_way(self, job, pid):
        """Whether it is far enough for something to fail. `pid`: of rank 0."""
        raise NotImplementedError

    def at_rest(self, pid):
        """Whether it may fail now that the victim stands still."""
        return True

    def worlds(self, job):
        """So many have begun to compute."""
        raise NotImplementedError

    def progress(self, job):
        """How far it is, in whatever it tells of."""
        raise NotImplementedError

    def keep(self, job):
        """When the next world computes: keeps what that has begun with."""

    def right(self, job, again=True):
        """When the job has ended. `again`: it had to begin again."""
        raise NotImplementedError

    def by_hand(self, *command):
        """A run of the MPI's own, without ftd, on the first node: what it prints."""
        node, user = self.nodes.nodes[0], self.nodes.cluster.user
        env = self.context.env(self.mpi, ONE_CARD)
        status, out, err = node.run(*self.mpi.mpiexec(self.size, *command), user=user, env=env, cwd=self.directory, patience=180)
        check(status == 0, f"{command} by hand: {status} {out[-2000:]}{err}")
        return out

    def placed(self, job):
        """Each rank's node in the job's last world. Waits for its end."""
        name, placement = pathlib.Path(self.program).name, {}
        deadline = time.monotonic() + self.patience
        while job.running() and time.monotonic() < deadline:
            found = {rank: node for node in self.nodes.nodes for rank in ranks_of(node, name)}
            placement = found if len(found) == self.size else placement
            time.sleep(0.2)
        job.expect(0, patience=5)
        return placement


EVERY, STEPS = 20, 60
# Steps in a second, of ranks that share two processors and do not yield.
LAMMPS_RATE = 10
LAMMPS_GOES_ON = f"""\
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
thermo_modify format float %20.15g flush yes
restart {EVERY} ${{dir}}/melt.*.restart
run LAST upto
print "result done"
"""
# Rank 0 alone reads the input: what it finds counts, whatever other nodes have.
LAMMPS_BEGINS = """\
set -- "$DIR"/melt.*.restart
[ -e "$1" ] && in=in.again || in=in.first
exec PROGRAM -log none -in $in
"""


class Lammps(Application):
    """It writes restart files, and begins with the newest one. They are in `$FT_CHECKPOINT_DIR`, which is in the memory of rank 0's node, or on
    the file system."""

    binary = "/usr/bin/lmp"
    spins = True

    def prepare(self):
        self.on_disk = self.directory / "restart" if self.shared else None
        self.by_hand_from = self.directory / "by-hand"
        # Each rank's node in the last world.
        self.placement = {}
        for directory in filter(None, (self.on_disk, self.by_hand_from)):
            directory.mkdir()
            self.nodes.cluster.give(directory)
        steps = STEPS + round(self.seconds * LAMMPS_RATE / 10) * 10
        first, again = "variable dir getenv DIR\n", LAMMPS_GOES_ON.replace("LAST", str(steps))
        self.write("in.first", first + LAMMPS_NEW.replace("SIDE", "10") + again)
        self.write("in.again", first + "read_restart ${dir}/melt.*.restart\n" + again)
        self.write("lammps.sh", LAMMPS_BEGINS.replace("PROGRAM", str(self.program)))
        where = self.on_disk or "$FT_CHECKPOINT_DIR"
        self.command = ["/bin/sh", "-c", f"DIR={where} && export DIR && . ./lammps.sh"]

    def files(self, pid):
        """Where they are, as it is seen from here."""
        node = self.nodes.nodes[1]
        return self.on_disk or pathlib.Path(f"/proc/{node.init}/root{proc.environ(pid)['FT_CHECKPOINT_DIR']}")

    def under_way(self, job, pid):
        self.own = self.files(pid)
        return (self.own / f"melt.{2 * EVERY}.restart").exists()

    def at_rest(self, pid):
        # The others get no further than to the next step without the victim.
        deadline = time.monotonic() + 0.3
        while _open_restart(pid) is None:
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.005)
        return False

    def worlds(self, job):
        return job.output.text.count("LAMMPS (")

    def progress(self, job):
        return len(_thermo(job.output.text))

    def keep(self, job):
        again = lambda: "Reading restart" in job.output.text
        eventually(again, "the next world to read a restart file", 60)
        for path in self.own.glob("melt.*.restart"):
            shutil.copy(path, self.by_hand_from)
        self.nodes.cluster.give(*self.by_hand_from.iterdir())

    def right(self, job, again=True):
        check(job.output.results == ["done"], f"results {job.output.results}")
        thermo = _thermo(job.output.text)
        first = min(thermo)
        check((first > 0) == again and first % EVERY == 0, f"it began at step {first}")
        for path in self.by_hand_from.glob("melt.*.restart"):
            if int(path.name.split(".")[1]) > first:
                path.unlink()
        begins = "in.again" if again else "in.first"
        env = self.context.env(self.mpi, {**ONE_CARD, "DIR": self.by_hand_from})
        placement = [self.placement[rank] for rank in range(self.size)]
        hand = _thermo(mpirun_over(self.mpi, placement, [self.binary, "-log", "none", "-in", begins], env, self.directory))
        check(thermo == hand, f"from step {first} on:\n{thermo}\nby hand:\n{hand}")

    def said_that_they_are_lost(self, job):
        """It had to begin from the beginning."""
        check(job.output.results == ["done"], f"results {job.output.results}")
        check(min(_thermo(job.output.text)) == 0, f"it began at step {min(_thermo(job.output.text))}")
        words = "and there is no file in $FT_CHECKPOINT_DIR on node2; what node node1 had there is lost with it\n"
        check(job.err.count(words) == 1, job.err)


HPCC_INPUT = """\
HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out
8 device
1 sizes
240 Ns
1 blocks
40 NBs
0 PMAP
1 grids
ROWS Ps
COLUMNS Qs
16.0 threshold
1 panel factorizations
2 PFACTs
1 stopping criteria
4 NBMINs
1 panels in recursion
2 NDIVs
1 recursive panel factorizations
1 RFACTs
1 broadcasts
1 BCASTs
1 lookahead depths
1 DEPTHs
2 SWAP
64 threshold
0 L1
0 U
1 Equilibration
8 alignment
##### This line is ignored. #####
0 further sizes for PTRANS
1200 Ns
0 further blocks for PTRANS
40 NBs
"""
# Each, in the order in which they run.
HPCC_TESTS = ["MPIRandomAccess", "StarRandomAccess", "SingleRandomAccess", "MPIRandomAccess_LCG", "StarRandomAccess_LCG",
              "SingleRandomAccess_LCG", "PTRANS", "StarDGEMM", "SingleDGEMM", "StarSTREAM", "SingleSTREAM", "MPIFFT", "StarFFT",
              "SingleFFT", "LatencyBandwidth", "HPL"]


class Hpcc(Application):
    """It checks its results itself. It keeps nothing, and begins from the beginning, behind what it has written before."""

    binary = "/usr/bin/hpcc"
    patience = 450

    def prepare(self):
        rows = max(rows for rows in range(1, self.size) if self.size % rows == 0 and rows * rows <= self.size)
        self.write("hpccinf.txt", HPCC_INPUT.replace("ROWS", str(rows)).replace("COLUMNS", str(self.size // rows)))
        self.out = self.directory / "hpccoutf.txt"
        self.command = [self.program]

    def said(self):
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def under_way(self, job, pid):
        return "Begin of MPIRandomAccess section." in self.said()

    def at_rest(self, pid):
        return "End of HPL section." not in self.said()

    def worlds(self, job):
        return self.said().count("Begin of MPIRandomAccess section.")

    def progress(self, job):
        return self.said().count("End of ")

    def right(self, job, again=True):
        said = self.said()
        check((self.worlds(job) > 1) == again, f"it began {self.worlds(job)} times")
        said = said.rpartition("Begin of MPIRandomAccess section.")[2]
        ended = re.findall(r"^End of (\w+) section\.$", said, re.M)
        check(ended == [*HPCC_TESTS, "Summary"], f"its tests ended so: {ended}")
        passed = re.findall(r"^Found (\d+) errors in \d+ locations \((\w+)\)\.$", said, re.M)
        # Updates that cross each other may be lost, of less than 1 % of the places: so they are without ftd, in the parallel ones.
        check(len(passed) >= 4 and {word for _, word in passed} == {"passed"}, f"random access: {passed}")
        check(re.findall(r"^\s*(\d+) tests completed and (passed|failed) residual checks[.,]", said, re.M)
              == [("5", "passed"), ("0", "failed"), ("1", "passed"), ("0", "failed")], said)
        check("FAILED" not in said and re.search(r"^Success=1$", said, re.M), said[-4000:])


# A pseudopotential of hydrogen, which Debian's `ld1.x` makes out of this.
HYDROGEN = """\
&input
  title='H', zed=1., rel=0, config='1s1.0', iswitch=3, dft='PZ'
/
&inputp
  pseudotype=1, file_pseudopw='H.UPF', lloc=0, tm=.true.
/
1
1S  1  0  1.00  0.00  0.80  0.80  0.0
"""
MOLECULES = """\
&control
  calculation='scf', prefix='h2', outdir='OUT', pseudo_dir='.', disk_io='none'
/
&system
  ibrav=1, celldm(1)=12.0, nat=4, ntyp=1, ecutwfc=40, nosym=.true.
/
&electrons
  conv_thr=1e-9, mixing_beta=0.3
/
ATOMIC_SPECIES
H 1.008 H.UPF
ATOMIC_POSITIONS bohr
H 0.0 0.0 0.0
H 1.4 0.1 0.2
H 5.0 5.1 4.0
H 5.2 6.4 4.3
K_POINTS automatic
DIVISIONS 0 0 0
"""
# Points, for so many seconds at most.
PWSCF_POINTS = [(5, "4 3 2"), (15, "4 4 4"), (math.inf, "12 12 12")]


class Pwscf(Application):
    """Its total energy, and how it came to that, are those of a run without ftd. It begins from the beginning."""

    binary = "/usr/bin/pw.x"
    ITERATION = re.compile(r"^ +iteration # +(\d+) ", re.M)
    ENERGY = re.compile(r"^!? +total energy +=( +-?[\d.]+) Ry$", re.M)

    def prepare(self):
        self.write("h.in", HYDROGEN)
        node, user = self.nodes.nodes[0], self.nodes.cluster.user
        env = self.context.env(self.mpi, {})
        status, out, err = node.run("/bin/sh", "-c", "/usr/bin/ld1.x < h.in", user=user, env=env, cwd=self.directory)
        check(status == 0 and (self.directory / "H.UPF").exists(), f"ld1.x: {status} {out}{err}")
        # Two ranks have some of the points together.
        options = ["-nk", str(self.size // 2), "-nd", "1", "-in", "h2.in"]
        self.command = [self.program, *options]
        points = next(points for enough, points in PWSCF_POINTS if self.seconds < enough)
        molecules = MOLECULES.replace("DIVISIONS", points)
        self.write("h2.in", molecules.replace("OUT", "undisturbed"))
        undisturbed = self.by_hand(self.binary, *options)
        self.energies = self.ENERGY.findall(undisturbed)
        check(len(self.energies) > 5 and "JOB DONE." in undisturbed, undisturbed)
        self.write("h2.in", molecules.replace("OUT", "out"))

    def under_way(self, job, pid):
        return "3" in self.ITERATION.findall(job.output.text)

    def worlds(self, job):
        return job.output.text.count("Program PWSCF")

    def progress(self, job):
        return len(self.ITERATION.findall(job.output.text))

    def right(self, job, again=True):
        check((self.worlds(job) > 1) == again, f"it began {self.worlds(job)} times")
        world = job.output.text.rpartition("Program PWSCF")[2]
        check("JOB DONE." in world and "convergence has been achieved" in world, world)
        energies = self.ENERGY.findall(world)
        # In what is printed the last digit may be rounded otherwise.
        same = len(energies) == len(self.energies) and all(abs(float(a) - float(b)) < 1.5e-8 for a, b in zip(energies, self.energies))
        check(same, f"total energies {energies}, undisturbed {self.energies}")


APPLICATIONS = {"lammps": Lammps, "hpcc": Hpcc, "pwscf": Pwscf}


def ranks_of(node, of):
    """The processes of a node that play ranks, by rank; of a script and what it runs the latter."""
    found = {}
    for pid in node.pids():
        env = proc.environ(pid)
        if "FT_RANK" in env and proc.name(pid) == of and proc.alive(pid):
            found[int(env["FT_RANK"])] = pid
    return found


def stands_still(application, job, first, victim):
    """A rank, which stands still where something may fail: its pid. `first`, `victim`: node and rank of rank 0, and of that one."""
    name = pathlib.Path(application.program).name
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        check(job.running(), f"the job ended before something could fail: {job.output.text[-3000:]}{job.err}")
        zero, pid = (ranks_of(node, name).get(rank) for node, rank in (first, victim))
        if zero and pid and application.under_way(job, zero):
            proc.freeze(pid)
            if application.at_rest(zero):
                check(job.running() and not job.recoveries, "it failed, or ended, before")
                return pid
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)
    raise Failed(f"it is not far enough after a minute: {job.output.text[-3000:]}{job.err}")


@scenario("hosts-application", cluster=True, timeout=600, weight=2, each=registry.applications)
def hosts_application(context, application, failure):
    """An application of Debian's over six nodes, two ranks on each: a rank is killed, or rank 0's node crashes, whose ranks go on where there is
    room, or on a spare node, also where another node crashes when the next epoch is written and nobody acts on it; and the result is right."""
    mpi, kind = context.mpi("openmpi4"), APPLICATIONS[application]
    with Nodes(context, 6) as nodes:
        program = kind(context, nodes, mpi, shared=failure not in ("rank", "files-lost"), program=watched(context, kind.binary))
        with Witness(pathlib.Path(program.program).name) if kind.spins and traced() else contextlib.nullcontext() as seen:
            job, lost = fails(context, nodes, program, failure)
        # Of two that follow on each other the block of the first one may not have been said.
        worlds = [world for world, _ in job.recoveries]
        check(worlds == [2] or failure == "again" and worlds and worlds[-1] in (2, 3), f"recovered {job.recoveries}: {job.err}")
        silent = re.findall(r"node (\w+) was silent for the heartbeat time-out", job.err)
        check(sorted(silent) == sorted(each.name for each in lost), f"given up were {silent}: {job.err}")
        if failure == "spare":
            check("moved     ranks 0-1 from node node1 to node node5\n" in job.err, job.err)
        program.said_that_they_are_lost(job) if failure == "files-lost" else program.right(job)
        for each in nodes.nodes:
            if each not in lost:
                nodes.empty(each)
        if seen is not None:
            seen.no_two_play_one_rank()


def fails(context, nodes, program, failure):
    """The application's job, which has gone through that and ended, and the nodes that it has lost."""
    hosts = ["--hosts", WITH_SPARE, "--ft-spares", "1"] if failure == "spare" else ["--hosts", HOSTS]
    options = [*hosts, "--ft-heartbeat", f"{TIME_OUT * 200:.0f}ms,{TIME_OUT * 1000:.0f}ms"]
    env = {**ONE_CARD, **(SPIN if program.spins else {})}
    job = context.ftrun(program.mpi, RANKS, *program.command, options=options, on=nodes.nodes[0], env=env, cwd=program.directory,
                        gates=["agent.agreed"] if failure == "again" else [])
    first = nodes.nodes[1]
    node, rank = (nodes.nodes[3], 4) if failure == "rank" else (first, 0)
    victim = stands_still(program, job, (first, 0), (node, rank))
    if failure == "rank":
        job.kill(victim)
    else:
        print(f"  {time.monotonic() - job.started:7.3f} s: crash of {node.name}", flush=True)
        node.crash()
    lost = [] if failure == "rank" else [node]
    if failure == "again":
        eventually(job.gate_path("agent.agreed").exists, "the next epoch to be written", 60)
        lost.append(nodes.nodes[3])
        lost[-1].crash(lambda: job.go("agent.agreed"))
    if failure != "files-lost":
        program.keep(job)
    program.placement = program.placed(job)
    return job, lost


class Through(Trial):
    """An application, which goes through what heat2d goes through. Its rank stands still where heat2d's stands at a gate."""

    # Nothing of the API tells when its state is there again.
    parts = BEGUN

    @property
    def gates(self):
        return self.failure.gates

    def begin(self, application):
        """Starts the job."""
        self.application, self.frozen = application, None
        self.spins = application.spins
        self.name = pathlib.Path(application.program).name
        self.start(*application.command, cwd=application.directory)

    def stands(self, copied=True):
        node = self.node(VICTIM // self.failure.per_node)
        self.frozen = stands_still(self.application, self.job, (self.node(0), 0), (node, VICTIM))
        return self.frozen

    def go(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.frozen, signal.SIGCONT)

    def passed(self, steps):
        del steps
        done = self.application.progress(self.job)
        eventually(lambda: self.application.progress(self.job) > done, f"more progress than {done}", 60)

    def world(self, number, steps=1):
        eventually(lambda: self.application.worlds(self.job) >= number, f"world {number}", 60)
        self.passed(steps)

    def result(self, restored):
        again = restored is not False
        if again:
            self.application.keep(self.job)
        self.application.placement = self.application.placed(self.job)
        check(bool(self.job.recoveries) == again, f"recovered {self.job.recoveries}: {self.job.err}")
        self.again = again


@scenario("hosts-application-through", cluster=True, timeout=900, weight=2, each=registry.through)
def hosts_application_through(context, application, failure):
    """An application of Debian's goes through a failure that heat2d goes through, and its result is right; of LAMMPS the witness sees what it sees
    there."""
    failure, mpi = FAILURES[failure], context.mpi("openmpi4")
    with failure.cluster(context) as nodes:
        trial = Through(context, nodes, mpi, failure)
        kind = APPLICATIONS[application]
        seconds = failure.steps * failure.pause / 1000
        program = kind(context, nodes, mpi, size=trial.size, seconds=seconds, program=watched(context, kind.binary))
        with Witness(pathlib.Path(program.program).name) if kind.spins and traced() else contextlib.nullcontext() as seen:
            trial.begin(program)
            failure.function(trial)
            trial.nothing_left()
        # What was cut for good is whole again for a run by hand.
        for one, other in itertools.combinations([node for node in nodes.nodes if node not in trial.dead], 2):
            nodes.cluster.heal_link(one, other, "mpi")
        program.right(trial.job, trial.again)
        if seen is not None:
            trial.witnessed(seen)
        elif kind.spins:
            raise Skipped(NO_TRACE)
