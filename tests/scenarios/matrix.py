"""The failure matrix: who dies where, with every MPI and several sizes. See matrix.toml."""

import os
import re
import signal
import struct
import time

from harness import proc, registry
from harness.job import check

STEPS, PLACE = 12, 6

# The first world is released as well; the release after the first failure is the second one.
SECOND = 2


def traced(path, size):
    """Per rank the world and the version for which its ft_checkpoint returned last."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    data = data.ljust(8 * size, b"\0")
    return [(value >> 48, value & ((1 << 48) - 1)) for value in struct.unpack(f"<{size}Q", data[: 8 * size])]


def committed(path, size):
    """Per rank the last version that its ft_checkpoint returned for."""
    return [version for _, version in traced(path, size)]


# What a batch script has around ftrun: a monitor in the background, and a tee; and it becomes ftrun itself.
SURROUNDINGS = """
sleep 600 > /dev/null 2>&1 & monitor=$!
exec > >(exec tee log)
echo $monitor $! > surroundings
exec "$FTRUN" "$@"
"""


class Kill:
    """One row of the matrix, played."""

    def __init__(self, context, mpi, size, place, victim):
        self.context = context
        self.mpi = context.mpi(mpi)
        self.size, self.place, self.victim = size, place, victim
        self.first = 1
        self.other = 0 if size == 2 else 2
        self.trace = context.work / "trace"
        self.stand = []  # (gate, rank or "-") that the test waits for and opens afterwards
        self.gates = []  # what FT_GATE arms
        self.killed = set()  # ranks that the test killed
        self.surely = set()  # those of them that ftd cannot have been ending itself
        self.expected = PLACE - 1

    def arm(self, gate, rank, nth=1, mark=False, wait=True):
        """Arms a gate."""
        self.gates.append(f"{gate}:{'*' if rank == '-' else rank}:{nth}" + (":mark" if mark else ""))
        if wait:
            self.stand.append((gate, rank))

    def victims_here(self, keeper_needed=False):
        """Ranks that stand at the place: two of them when several are to die at once and somebody else is left."""
        if self.victim == "several" and not (keeper_needed and self.size == 2):
            return [self.first, self.other]
        return [self.first]

    def prepare(self):
        """Arms the place's gates."""
        place = self.place
        if place in ("compute", "recv", "allreduce"):
            for rank in self.victims_here(place != "compute"):
                self.arm(f"app.{place}", rank)
        elif place == "init-before":
            self.expected = None
            for rank in self.victims_here():
                self.arm("mpi.before-init", rank)
        elif place == "init-fence":
            self.expected = None
            if self.mpi.name.startswith("mpich5"):
                # MPICH 5 meets in shared memory, not at the process manager: the victim is inside MPI_Init and cannot
                # leave it, because another rank is held just before it.
                self.arm("mpi.in-init", self.first, mark=True)
                self.arm("mpi.after-init", self.first, mark=True, wait=False)
                self.arm("mpi.before-init", self.other)
            else:
                self.arm("agent.fence", "-")
        elif place == "finalize":
            self.expected = STEPS
            self.arm("mpi.in-finalize", self.first, mark=True)
            self.arm("mpi.after-finalize", self.first, mark=True, wait=False)
            for rank in range(self.size):
                if rank != self.first:
                    self.arm("mpi.before-finalize", rank)
        elif place in ("checkpoint-copy", "checkpoint-commit", "checkpoint-after"):
            gate = {"copy": "client.copying", "commit": "client.copied", "after": "client.committed"}[place[11:]]
            for rank in self.victims_here():
                self.arm(gate, rank, nth=PLACE)
            if place == "checkpoint-after":
                self.expected = PLACE
        elif place == "restore":
            self.arm("app.compute", self.other, wait=False)
            self.arm("client.restoring", self.first)
        else:
            self.arm("app.compute", self.first, wait=False)
            self.arm(f"agent.{place}", "-", nth=SECOND if place == "released" else 1)
        if self.victim == "again" and place not in ("released", "restore", "noticed", "agreed"):
            self.arm("agent.released", "-", nth=SECOND, wait=False)

    def first_failure(self, job):
        """Places inside a recovery need a failure before."""
        if self.place in ("restore", "noticed", "agreed", "released"):
            rank = self.other if self.place == "restore" else self.first
            job.kill(job.at_gate("app.compute", rank), f"rank {rank}, so that there is a recovery")
            self.killed.add(rank)
            self.surely.add(rank)

    def strike(self, job):
        """The victim is at its place: kill it there."""
        pids = {(gate, rank): job.at_gate(gate, rank) for gate, rank in self.stand}
        for (gate, rank), pid in pids.items():
            check(rank == "-" or self.mpi.loaded(pid), f"rank {rank} at {gate} has loaded no MPI")
        if self.place == "init-fence" and self.stand[0][0] == "mpi.in-init":
            self.wait_for_shared_memory(job, pids[self.stand[0]])
            check(not job.gate_path("mpi.after-init", self.first).exists(), "MPI_Init had returned already")
        if self.place == "checkpoint-after":
            here = {rank for _, rank in self.stand}
            deadline = time.monotonic() + 20
            while any(v < PLACE for r, v in enumerate(committed(self.trace, self.size)) if r not in here):
                check(time.monotonic() < deadline, "the other ranks do not come to commit the version")
                time.sleep(0.001)
        if self.place == "finalize":
            # It cannot leave before the others come, unless its server dies: when ft-pmix is killed, or the agent and with
            # it ft-pmix, MPI_Finalize may return an error the moment after.
            check(not self.has_returned(job, pids), "MPI_Finalize had returned already")
        if self.victim in ("one", "several", "again"):
            self.strike_ranks(job, pids)
            check(not self.has_returned(job, pids), "MPI_Finalize had returned before the kill")
        elif self.victim == "agent":
            job.kill(job.one("ft-agent"), "the agent")
        elif self.victim == "pmix":
            # Between two worlds there may be none, or one that is about to go.
            found = job.below("ft-pmix")
            if self.place not in ("noticed", "agreed", "released"):
                check(len(found) > 0, "there is no ft-pmix to kill")
            for pid in found:
                try:
                    job.kill(pid, "ft-pmix")
                except ProcessLookupError:
                    check(self.place in ("noticed", "agreed", "released"), "ft-pmix was gone before it was killed")
        elif self.victim == "shepherd":
            ranks = job.ranks()
            shepherd = job.shepherd_of(ranks[self.first]) if self.first in ranks else job.below("ft-shepherd")[-1]
            job.kill(shepherd, "a shepherd")
        # Ranks stay where they are until ftd ends them: only the agent has to go on, if it lives. Before MPI_Init another
        # ft-pmix may simply take the place of the one that died.
        for gate, rank in self.stand:
            if rank == "-" or self.needless():
                job.go(gate, rank)

    def has_returned(self, job, pids):
        """Whether the process that stood in MPI_Finalize has left it. (Its successor may do so soon.)"""
        mark = job.gate_path("mpi.after-finalize", self.first)
        return mark.exists() and mark.read_text().strip() == str(pids.get(("mpi.in-finalize", self.first)))

    @staticmethod
    def wait_for_shared_memory(job, pid):
        """The rank has come as far in MPI_Init as the memory that it shares with the others."""
        deadline = time.monotonic() + 20
        while True:
            with open(f"/proc/{pid}/maps") as maps:
                if "/dev/shm/mpich" in maps.read():
                    return
            check(job.running() and time.monotonic() < deadline, "the victim does not come to share memory in MPI_Init")
            time.sleep(0.001)

    def strike_ranks(self, job, pids):
        standing = {rank: pid for (gate, rank), pid in pids.items() if rank != "-"}
        if self.place == "finalize" or (self.place == "init-fence" and standing):
            standing = {self.first: standing[self.first]}
        if self.place == "agreed":
            # Nothing is released: the processes of the world that ends are what there is to kill, if they still are.
            standing = {r: p for r, p in job.ranks().items() if r in (self.first, self.other)}
        elif not standing:
            world = {"released": 2, "noticed": 1, "init-fence": 1}[self.place]
            chosen = [self.other] if self.place == "noticed" else [self.first]
            ranks = job.ranks(world)
            if self.place != "noticed":
                ranks = job.wait_ranks(self.size, world)
            check(all(rank in ranks for rank in chosen), f"world {world} has only ranks {sorted(ranks)}")
            standing = {rank: ranks[rank] for rank in chosen}
        if self.victim == "several" and len(standing) == 1 and self.size > 1:
            spare = next((r for r in job.ranks() if r not in standing), None)
            if spare is not None:
                standing[spare] = job.ranks()[spare]
        self.killed |= set(standing)
        try:
            job.kill_all({f"rank {rank}": pid for rank, pid in standing.items()})
        except ProcessLookupError:
            # Only where ftd itself is ending the old world a process may be gone by now.
            expected = self.place in ("agreed", "noticed") or self.victim == "several"
            check(expected, f"one of the ranks {sorted(standing)} was gone before it was killed")

    def needless(self):
        """Whether the job may go on without a recovery."""
        return self.place == "init-before" and self.victim == "pmix"

    def again(self, job):
        """One more during the recovery."""
        if self.victim != "again" or "agent.released" not in ",".join(self.gates) or self.place == "released":
            return
        job.at_gate("agent.released")
        ranks = job.wait_ranks(self.size, 2)
        self.killed.add(self.other)
        job.kill(ranks[self.other], f"rank {self.other} of the world that recovers")
        job.go("agent.released")

    def assert_blame(self, job):
        """What died is named in a block, and why; and nobody is whom the test did not kill."""
        if self.needless():
            return
        words = {
            "agent": r"lost its agent", "pmix": r"lost its PMIx server", "shepherd": r"was lost \(its shepherd died\)",
        }.get(self.victim, r"rank \d+ on node 0 was killed by SIGKILL")
        # Between two worlds the ft-pmix that is killed is one that ftd is ending, or one that nobody has dialled yet: it is
        # replaced without a recovery.
        if not (self.victim == "pmix" and self.place in ("noticed", "agreed", "released")):
            check(re.search(rf"^ftd:   (failed|      )    .*{words}", job.err, re.M), f"no block says '{words}'")
        sentence = r"^ftd:   (?:failed|      )    rank (\d+) on node 0 (?:was killed by SIGKILL|died)"
        dead = {int(rank) for rank in re.findall(sentence, job.err, re.M)}
        # An agent that dies takes with it what it has not said yet.
        check(self.victim == "agent" or self.surely <= dead, f"ranks {sorted(self.surely - dead)} were killed and are not blamed")
        if self.victim == "several":
            named = {int(rank) for line in re.findall(r"^ftd:   when .*$", job.err, re.M) for rank in re.findall(r"process \d+ was rank (\d+)", line)}
            check(dead == named, f"ranks {sorted(dead)} are blamed, and the processes of {sorted(named)} are named")
        # A rank that stood below the shepherd that was killed died with it.
        excused = {self.first} if self.victim == "shepherd" else set()
        check(dead <= self.killed | excused, f"ranks {sorted(dead - self.killed - excused)} are blamed and were not killed")

    def assert_surroundings(self, job):
        """What the script had started lives on, and has all of the output."""
        job.wait()
        pids = [int(pid) for pid in (self.context.work / "surroundings").read_text().split()]
        monitor, tee = pids
        check(proc.alive(monitor), "the script's monitor was ended with the job")
        deadline = time.monotonic() + 10
        while proc.alive(tee):
            check(time.monotonic() < deadline, "tee does not come to the end of the output")
            time.sleep(0.005)
        log = (self.context.work / "log").read_text()
        check(log == job.output.text and log.count("\nresult ") >= 1, f"tee has written:\n{log}")
        os.kill(monitor, signal.SIGTERM)
        while proc.alive(monitor):
            check(time.monotonic() < deadline, "the monitor does not end")
            time.sleep(0.005)

    def play(self):
        """The whole row."""
        env = {"PLACES_STEPS": STEPS, "PLACES_STEP": PLACE, "PLACES_TRACE": self.trace}
        program = self.context.program(self.mpi, "places.c")
        reference = self.context.reference(self.mpi, self.size, program, env={"PLACES_STEPS": STEPS})
        self.prepare()
        if self.context.public:
            job = self.context.script(
                SURROUNDINGS, "-n", self.size, "--ft=reinit", program, mpi=self.mpi, env=env, gates=self.gates
            )
        else:
            job = self.context.ftrun(
                self.mpi, self.size, program, options=["--oversubscribe"], env=env, gates=self.gates
            )
        self.first_failure(job)
        self.strike(job)
        self.again(job)
        if self.context.public:
            self.assert_surroundings(job)
        job.expect(0, reference)
        starts = job.output.starts
        check(len(job.restored) >= 1 or self.needless(), "ftd printed no recovery block")
        self.assert_blame(job)
        check(
            all(version == self.expected for version in job.restored),
            f"ftd says it restored {job.restored}; the newest complete version was {self.expected}",
        )
        check(
            len(starts) >= 1 and starts[-1] == self.expected and all(v in (None, self.expected) for v in starts),
            f"the program was given {starts}; the newest complete version was {self.expected}",
        )
        check(
            None not in starts[1:] or self.expected is None,
            f"a world began from the beginning although version {self.expected} was complete: {starts}",
        )


def limit(row):
    """Seconds for a row."""
    return 60 + 4 * row["size"]


for _number, _row in enumerate(registry.rows):

    # Every twelfth row has nothing private and runs inside a script.
    @registry.scenario("matrix", timeout=limit(_row), each=[_row], public=_number % 12 == 5)
    def matrix(context, mpi, size, place, victim):
        """One failure, or several, at one place."""
        Kill(context, mpi, size, place, victim).play()
