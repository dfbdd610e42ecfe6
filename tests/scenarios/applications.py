"""Applications as Debian has them, over six nodes: LAMMPS, hpcc and Quantum ESPRESSO's pw.x go through the death of a rank and of a node, and
their results are what they say themselves is right. Which pairs run in `make test` says matrix.toml."""

import os
import pathlib
import re
import shutil
import time

from harness import proc, registry
from harness.job import Failed, check
from harness.registry import scenario

from .failures import TIME_OUT
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

    # The rank that dies, or whose node does.
    victim = 0
    # So long it may take after that.
    patience = 150

    def __init__(self, context, nodes, mpi, failure):
        self.context, self.nodes, self.mpi, self.failure = context, nodes, mpi, failure
        self.directory = context.work
        self.victim = 4 if failure == "rank" else self.victim
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

    def failed(self, job):
        """After the failure, while the job goes on."""

    def right(self, job):
        """When the job has ended."""
        raise NotImplementedError

    def by_hand(self, *command, env=None):
        """A run of the MPI's own, without ftd: what it prints."""
        env = self.context.env(self.mpi, {**ONE_CARD, **(env or {})})
        node, user = self.nodes.nodes[0], self.nodes.cluster.user
        status, out, err = node.run(*self.mpi.mpiexec(RANKS, *command), user=user, env=env, cwd=self.directory, patience=120)
        check(status == 0, f"{command} by hand: {status} {out[-2000:]}{err}")
        return out


EVERY, STEPS = 20, 120
LAMMPS_GOES_ON = f"""\
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
thermo_modify format float %20.15g flush yes
restart {EVERY} ${{dir}}/melt.*.restart
run {STEPS} upto
print "result done"
"""
# Rank 0 alone reads the input: what it finds counts, whatever other nodes have.
LAMMPS_BEGINS = """\
set -- "$DIR"/melt.*.restart
[ -e "$1" ] && in=in.again || in=in.first
exec /usr/bin/lmp -log none -in $in
"""


class Lammps(Application):
    """It writes restart files, and begins with the newest one. They are in `$FT_CHECKPOINT_DIR`, which is in the memory of rank 0's node, or, where
    that one dies, on the file system (`crash`) or lost with it (`files-lost`)."""

    def prepare(self):
        self.shared = self.directory / "restart" if self.failure in ("crash", "spare", "again") else None
        if self.shared:
            self.shared.mkdir()
            self.nodes.cluster.give(self.shared)
        self.write("in.first", "variable dir getenv DIR\n" + LAMMPS_NEW.replace("SIDE", "10") + LAMMPS_GOES_ON)
        self.write("in.again", "variable dir getenv DIR\nread_restart ${dir}/melt.*.restart\n" + LAMMPS_GOES_ON)
        self.write("lammps.sh", LAMMPS_BEGINS)
        where = self.shared or "$FT_CHECKPOINT_DIR"
        self.command = ["/bin/sh", "-c", f"DIR={where} && export DIR && . ./lammps.sh"]
        self.by_hand_from = self.directory / "by-hand"

    def files(self, pid):
        """Where they are, as it is seen from here."""
        node = self.nodes.nodes[1]
        return self.shared or pathlib.Path(f"/proc/{node.init}/root{proc.environ(pid)['FT_CHECKPOINT_DIR']}")

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

    def failed(self, job):
        if self.failure == "files-lost":
            return
        again = lambda: "Reading restart" in job.output.text
        eventually(again, "the next world to read a restart file", 60)
        self.by_hand_from.mkdir()
        for path in self.own.glob("melt.*.restart"):
            shutil.copy(path, self.by_hand_from)
        self.nodes.cluster.give(self.by_hand_from, *self.by_hand_from.iterdir())

    def right(self, job):
        check(job.output.results == ["done"], f"results {job.output.results}")
        again = _thermo(job.output.text)
        first = min(again)
        if self.failure == "files-lost":
            return self.said_that_they_are_lost(job, first)
        check(first > 0 and first % EVERY == 0, f"it began at step {first}")
        for path in self.by_hand_from.glob("melt.*.restart"):
            if int(path.name.split(".")[1]) > first:
                path.unlink()
        hand = _thermo(self.by_hand("/usr/bin/lmp", "-log", "none", "-in", "in.again", env={"DIR": self.by_hand_from}))
        check(again == hand, f"from step {first} on:\n{again}\nby hand:\n{hand}")

    def said_that_they_are_lost(self, job, first):
        check(first == 0, f"it began at step {first}")
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
3 Ps
4 Qs
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

    command = ["/usr/bin/hpcc"]
    patience = 450

    def prepare(self):
        self.write("hpccinf.txt", HPCC_INPUT)
        self.out = self.directory / "hpccoutf.txt"

    def said(self):
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def under_way(self, job, pid):
        return "Begin of MPIRandomAccess section." in self.said()

    def at_rest(self, pid):
        return "End of HPL section." not in self.said()

    def right(self, job):
        said = self.said()
        check(said.count("Begin of MPIRandomAccess section.") == 2, "it did not begin again, or more than once")
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
2 2 2 0 0 0
"""


class Pwscf(Application):
    """Its total energy, and how it came to that, are those of a run without ftd. It begins from the beginning."""

    command = ["/usr/bin/pw.x", "-nk", "4", "-nd", "1", "-in", "h2.in"]
    ITERATION = re.compile(r"^ +iteration # +(\d+) ", re.M)
    ENERGY = re.compile(r"^!? +total energy +=( +-?[\d.]+) Ry$", re.M)

    def prepare(self):
        self.write("h.in", HYDROGEN)
        node, user = self.nodes.nodes[0], self.nodes.cluster.user
        env = self.context.env(self.mpi, {})
        status, out, err = node.run("/bin/sh", "-c", "/usr/bin/ld1.x < h.in", user=user, env=env, cwd=self.directory)
        check(status == 0 and (self.directory / "H.UPF").exists(), f"ld1.x: {status} {out}{err}")
        self.write("h2.in", MOLECULES.replace("OUT", "undisturbed"))
        undisturbed = self.by_hand(*self.command)
        self.energies = self.ENERGY.findall(undisturbed)
        check(len(self.energies) > 5 and "JOB DONE." in undisturbed, undisturbed)
        self.write("h2.in", MOLECULES.replace("OUT", "out"))

    def under_way(self, job, pid):
        return "3" in self.ITERATION.findall(job.output.text)

    def at_rest(self, pid):
        return True

    def right(self, job):
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


def stands_still(application, job, nodes, name):
    """The victim, which stands still where something may fail; node and pid."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        check(job.running(), f"the job ended before something could fail: {job.output.text[-3000:]}{job.err}")
        here, first = nodes.nodes[1 + application.victim // 2], ranks_of(nodes.nodes[1], name).get(0)
        victim = ranks_of(here, name).get(application.victim)
        if first and victim and application.under_way(job, first):
            proc.freeze(victim)
            if application.at_rest(first):
                return here, victim
            os.kill(victim, 18)
        time.sleep(0.005)
    raise Failed(f"it is not far enough after a minute: {job.output.text[-3000:]}{job.err}")


@scenario("hosts-application", cluster=True, timeout=600, weight=2, each=registry.applications)
def hosts_application(context, application, failure):
    """An application of Debian's over six nodes, two ranks on each: a rank is killed, or rank 0's node crashes, whose ranks go on where there is
    room, or on a spare node, also where another node crashes when the next epoch is written and nobody acts on it; and the result is right."""
    mpi = context.mpi("openmpi4")
    with Nodes(context, 6) as nodes:
        name = {"lammps": "lmp", "pwscf": "pw.x"}.get(application, application)
        program = APPLICATIONS[application](context, nodes, mpi, failure)
        hosts = ["--hosts", WITH_SPARE, "--ft-spares", "1"] if failure == "spare" else ["--hosts", HOSTS]
        options = [*hosts, "--ft-heartbeat", f"100ms,{TIME_OUT * 1000:.0f}ms"]
        job = context.ftrun(mpi, RANKS, *program.command, options=options, on=nodes.nodes[0], env=ONE_CARD, cwd=program.directory,
                            gates=["agent.agreed"] if failure == "again" else [])
        node, victim = stands_still(program, job, nodes, name)
        check(job.running() and not job.recoveries, "it failed, or ended, before")
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
        program.failed(job)
        job.expect(0, patience=program.patience)
        # Of two that follow on each other the block of the first one may not have been said.
        worlds = [world for world, _ in job.recoveries]
        check(worlds == [2] or failure == "again" and worlds and worlds[-1] in (2, 3), f"recovered {job.recoveries}: {job.err}")
        silent = re.findall(r"node (\w+) was silent for the heartbeat time-out", job.err)
        check(sorted(silent) == sorted(each.name for each in lost), f"given up were {silent}: {job.err}")
        if failure == "spare":
            check("moved     ranks 0-1 from node node1 to node node5\n" in job.err, job.err)
        program.right(job)
        for each in nodes.nodes:
            if each not in lost:
                nodes.empty(each)
