"""Output once: what a rank prints again after a recovery is not shown again, and nothing else is hidden."""

import itertools
import os
import random
import re

from harness import registry
from harness.job import check
from harness.registry import scenario

from .copies import kept, wait_kept
from .hosts import ONE_CARD, Nodes
from .output import printed, until
from .processes import eventually
from .recovery import LAMMPS_NEW

ONCE = ["--ft-output=once"]
TAG = re.compile(rb"\[(\d+)\]<stdout>: (.*)", re.S)
SEEDS = range(12) if registry.soak else range(2)


class Witness:
    """Who has seen all that one rank printed, and keeps the rule by the simplest means: lines as they are, and lists."""

    def __init__(self):
        self.shown = []  # in the order in which it was shown
        self.seen, self.list, self.marks = [], [], {}
        self.highest = self.newest = -1
        self.all = False

    def world(self, records, restored):
        """Another world, in which the rank did this; `restored`: what it took back."""
        self.seen += self.list
        at = 0 if restored is None else self.marks[restored]
        self.seen, self.list = self.seen[:at], self.seen[at:]
        self.highest = max(self.highest, self.newest)
        for kind, what in records:
            if kind == "B":
                if what > self.highest:
                    self.seen, self.list = self.seen + self.list, []
                self.newest = max(self.newest, what)
                self.marks[what] = len(self.seen)
            elif b"\0" in what or self.all:
                self.all = True
                self.shown.append(what)
            elif what in self.list:
                at = self.list.index(what) + 1
                self.seen, self.list = self.seen + self.list[:at], self.list[at:]
            else:
                self.shown.append(what)
                self.seen.append(what)


def lives(path):
    """What a rank says that it did: for each world its records."""
    worlds = []
    for line in path.read_text().splitlines():
        kind, _, what = line.partition(" ")
        if kind == "W":
            worlds.append([])
        else:
            worlds[-1].append((kind, bytes.fromhex(what) if kind == "L" else int(what)))
    return worlds


def shown_to(job, rank, size):
    """The lines of a rank, from ftrun's tagged output."""
    lines = job.out_path.read_bytes().split(b"\n")
    check(lines.pop() == b"", "the output does not end with a line")
    found = [TAG.fullmatch(line) for line in lines]
    strange = [line for line, match in zip(lines, found) if not match or int(match[1]) >= size]
    check(not strange, f"lines that nobody printed: {strange[:5]}")
    return [match[2] for match in found if int(match[1]) == rank]


def check_rank(job, rank, size, worlds, restored):
    """What was shown of a rank is what the rule says. Whoever is killed has noted its last line, or checkpoint, and may not have come to
    it."""
    shown = shown_to(job, rank, size)
    for ends in itertools.product((0, 1), repeat=len(worlds) - 1):
        witness = Witness()
        for records, missing, version in zip(worlds, (*ends, 0), restored):
            witness.world(records[: len(records) - missing], version)
        if witness.shown == shown:
            return
    witness = Witness()
    for records, version in zip(worlds, restored):
        witness.world(records, version)
    at = next((at for at, (one, other) in enumerate(zip(shown, witness.shown)) if one != other), min(len(shown), len(witness.shown)))
    context = f"{shown[max(0, at - 3) : at + 4]}, not {witness.shown[max(0, at - 3) : at + 4]}"
    check(False, f"rank {rank}: line {at} of {len(shown)}: {context}; restored {restored}")


@scenario(
    "once-generated", timeout=150, weight=2,
    each=[{"mpi": mpi, "every": every, "seed": seed} for mpi in ("openmpi5", "mpich4") for every in (0, 4) for seed in SEEDS], spread=True,
)
def once_generated(context, mpi, every, seed):
    """Sixteen ranks print blank, equal and stamped lines, some with a carriage return or a NUL, and more or fewer of them after a
    restart; two of them die, in the middle of what they print. Of every rank all is shown that the rule lets be shown, and no more."""
    dice = random.Random(f"{seed} {every}")
    mpi, size, steps = context.mpi(mpi), 16, 24
    notes = context.work / "notes"
    notes.mkdir()
    victims = [(world, dice.randrange(size), dice.randint(*hit)) for world, hit in ((1, (8, 20)), (2, (2, 12)))]
    job = context.ftrun(
        mpi, size, context.program(mpi, "generates.c"), str(seed), str(steps), str(every), str(notes),
        options=[*ONCE, "--tag-output", "--oversubscribe"], gates=[f"app.world{world}:{rank}:{hit}" for world, rank, hit in victims],
    )
    for world, rank, _ in victims:
        job.kill(job.at_gate(f"app.world{world}", rank, patience=60), f"rank {rank} of world {world}")
    job.expect(0, patience=100)
    restored = [None, *job.restored]
    check(len(restored) == 3 and (every or restored == [None] * 3), f"restored {restored}")
    hidden = 0
    for rank in range(size):
        worlds = lives(notes / str(rank))
        check(len(worlds) == 3, f"rank {rank} lived in {len(worlds)} worlds")
        check_rank(job, rank, size, worlds, restored)
        hidden += sum(kind == "L" for records in worlds for kind, _ in records) - len(shown_to(job, rank, size))
    # How many depends on how far the ranks are apart when one dies.
    check(hidden > 0, "no line was hidden: nothing was tried")


@scenario("once", each=[{"how": how} for how in ("default", "none", "all", "variable", "filter")])
def once(context, how):
    """A program that prints the same steps again shows them once, with its checkpoints and without any; all of them with
    `--ft-output=all`, and where what it prints goes through a filter of its own, so that ftd cannot know what it had printed when it
    took a version."""
    mpi, size, steps = context.mpi("openmpi4"), 3, 12
    every = 0 if how == "none" else 4
    command = [context.program(mpi, "lines.c"), str(steps), str(every), "p"]
    if how == "filter":
        command = ["bash", "-c", 'exec > >(cat); exec stdbuf -oL "$@"', "bash", *command]
    # An empty variable is as good as none: the scenarios' own is not asked for.
    env = {"FT_OUTPUT": "all" if how == "variable" else "", "LINES_AT": "10"}
    options = ["--ft-output=all"] if how == "all" else []
    job = context.ftrun(mpi, size, *command, env=env, options=options, gates=["app.step:1"])
    pid = job.at_gate("app.step", 1)
    # The others have come to their next step.
    for rank in range(size):
        until(lambda: 10 in printed(job.output.text, rank), f"rank {rank} has not printed step 10")
    job.kill(pid)
    job.expect(0)
    version = None if how == "none" else 8
    check(job.restored == [version], f"restored {job.restored}")
    for rank in range(size):
        lines, first = printed(job.output.text, rank), (version or 0) + 1
        if how in ("default", "none"):
            check(lines == list(range(1, steps + 1)), f"rank {rank}: {lines}")
        else:
            check(lines in ([*range(1, seen + 1), *range(first, steps + 1)] for seen in (10, 11)), f"rank {rank}: {lines}")


@scenario("once-fragment")
def once_fragment(context):
    """What a process that dies has printed of a line is ended, and the line comes whole; the beginning of a line that may be one that was
    shown waits for its end, and for no more than ten seconds."""
    script = (
        'echo begun; printf "half"; if [ "$FT_WORLD" = 1 ]; then read -r never < "$NEVER"; fi; echo " of it"; printf "name? "; '
        'if [ "$FT_WORLD" = 2 ]; then read -r never < "$NEVER"; fi; printf "name? "; read -r name < "$GO"; echo "$name"'
    )
    go, never = context.work / "go", context.work / "never"
    os.mkfifo(go)
    os.mkfifo(never)
    job = context.ftrun(None, 1, "bash", "-c", script, options=[*ONCE, "-x", f"GO={go}", "-x", f"NEVER={never}"])
    text = lambda: job.output.text
    until(lambda: text() == "begun\nhalf", lambda: text())
    job.kill(job.ranks(1)[0])
    until(lambda: text() == "begun\nhalf\nhalf of it\nname? ", lambda: text())
    job.kill(job.wait_ranks(1, 2)[0])
    job.wait_err("ftd: recovery", 2)
    begun = "begun\nhalf\nhalf of it\nname? \n"
    check(text() == begun, text())
    until(lambda: text() == begun + "name? name? ", lambda: text(), 30)
    with open(go, "w") as end:
        end.write("me\n")
    job.expect(0)
    check(text() == begun + "name? name? me\n", text())


def without_times(text):
    """LAMMPS's lines but for what they say of time and memory."""
    lines = text.splitlines()
    timed = re.compile(r"CPU = |Loop time|Performance:|% CPU|^(Pair|Neigh|Comm|Output|Modify|Other) +\||Total wall time")
    return [line for line in lines if not timed.search(line)]


@scenario("once-lammps", timeout=150, weight=2)
def once_lammps(context):
    """LAMMPS from Debian without restart files begins again from the beginning after each of two kills, and prints the lines of an
    undisturbed run, once, but for those with times."""
    mpi = context.mpi("openmpi4")
    (context.work / "melt.new").write_text(LAMMPS_NEW.replace("SIDE", "10"))
    (context.work / "in.melt").write_text(
        "include melt.new\npair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\nneighbor 0.3 bin\nfix 1 all nve\nthermo 10\n"
        "thermo_modify flush yes\nrun 800\n"
    )
    command = ["/usr/bin/lmp", "-log", "none", "-in", "in.melt"]
    truth = context.reference(mpi, 2, *command).text
    job = context.ftrun(mpi, 2, *command, options=ONCE)
    for world, step in ((1, 100), (2, 200)):
        until(lambda: re.search(rf"^ +{step} ", job.output.text, re.M), f"LAMMPS does not come to step {step}", 60)
        job.kill(job.wait_ranks(2, world)[world - 1])
    job.expect(0, patience=100)
    check(job.restored == [None, None], f"restored {job.restored}")
    once, wanted = without_times(job.output.text), without_times(truth)
    at = next((at for at, (one, other) in enumerate(zip(once, wanted)) if one != other), min(len(once), len(wanted)))
    check(once == wanted, f"line {at}: {once[max(0, at - 2) : at + 3]}, not {wanted[max(0, at - 2) : at + 3]}")


@scenario("once-over-nodes", cluster=True, timeout=90)
def once_over_nodes(context):
    """A node crashes, and its ranks go on on another one, from copies: their lines, too, are there once, those of the node that stays as those
    of the one that is gone, and each with its tag."""
    mpi, steps = context.mpi("mpich5"), 12
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "lines.c")
        job = context.ftrun(
            mpi, 4, program, str(steps), "4", "p", options=[*ONCE, "--tag-output", "--hosts", "node0,node1,node2", "--ft-spares", "1"],
            on=nodes.nodes[0], gates=["app.step:3", *kept(8)], env={**ONE_CARD, "LINES_AT": "10"},
        )
        job.on = nodes.nodes[1]
        job.at_gate("app.step", 3)
        wait_kept(job)
        steps_of = lambda rank: [int(step) for step in re.findall(rf"^\[{rank}\]<stdout>: rank {rank} step (\d+)$", job.output.text, re.M)]
        eventually(lambda: all(10 in steps_of(rank) for rank in range(4)), "what the ranks print", 20)
        nodes.nodes[1].crash()
        job.expect(0)
        check(job.restored == [8] and "moved     ranks 2-3 from node node1 to node node2" in job.err, f"{job.restored}: {job.err}")
        for rank in range(4):
            check(steps_of(rank) == list(range(1, steps + 1)), f"rank {rank}: {steps_of(rank)}")


@scenario("once-late-over-nodes", cluster=True, timeout=90)
def once_late_over_nodes(context):
    """A rank goes on on another node, and only when it has printed its lines again there those come that it had printed before: each is there once,
    and what it had printed on the old node alone is shown as well."""
    said, go, end = (context.work / name for name in ("said", "go", "end"))
    script = (f'[ $FT_RANK = 0 ] || {{ until [ -e {end} ]; do sleep 0.05; done; exit 0; }}; echo a; until [ -e {go} ]; do sleep 0.05; done;'
              f' echo b; echo c; echo world $FT_WORLD; : > {said}; [ $FT_WORLD = 2 ] || sleep 600; until [ -e {end} ]; do sleep 0.05; done; echo d')
    with Nodes(context, 4) as nodes:
        job = nodes.sh("node1,node2,node3:2", 3, script, ft="reinit", options=ONCE)
        shown = lambda text: eventually(lambda: job.output.text == text, f"{text!r} to be shown", 20)
        shown("a\n")
        nodes.cluster.cut_link(nodes.nodes[0], nodes.nodes[1], "store")
        go.touch()
        eventually(said.exists, "what the rank prints", 20)
        nodes.nodes[1].cut("mpi")
        shown("a\nb\nc\nworld 2\n")
        nodes.cluster.heal_link(nodes.nodes[0], nodes.nodes[1], "store")
        nodes.nodes[1].heal("mpi")
        eventually(lambda: "world 1\n" in job.output.text, "what the rank had printed before", 20)
        end.touch()
        job.expect(0)
        check(job.output.text == "a\nb\nc\nworld 2\nworld 1\nd\n", job.output.text)
        check("moved     rank 0 from node node1 to node node3\n" in job.err, job.err)
        for node in nodes.nodes[1:]:
            nodes.empty(node)
