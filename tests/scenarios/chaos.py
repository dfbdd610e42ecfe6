"""Random failures at random moments (`make soak` only): no gate, no place, whatever comes."""

import random
import time

from harness import registry
from harness.job import check
from harness.mpis import ALL
from harness.registry import scenario

SEEDS = range(5)
KILLS = 40
# ftrun starts an agent again at most five times within half a minute.
MOST_AGENTS = 4


def victims(job, dice, agents):
    """What dies next: names and pids. Empty when there is nothing of the kind at this moment."""
    what = dice.choices(["rank", "ranks", "shepherd", "pmix", "agent"], [60, 15, 10, 7, 8])[0]
    if what == "agent":
        return "the agent", job.below("ft-agent")[: int(agents < MOST_AGENTS)]
    if what in ("shepherd", "pmix"):
        found = job.below(f"ft-{what}")
        return what, [dice.choice(found)] if found else []
    found = sorted(job.ranks().items())
    chosen = dice.sample(found, min(len(found), 1 if what == "rank" else dice.randint(2, 4)))
    return f"rank {', '.join(str(rank) for rank, _ in chosen)}", [pid for _, pid in chosen]


@scenario("chaos", timeout=240, weight=2, each=[{"mpi": m, "seed": s} for m in ALL for s in SEEDS] if registry.soak else [])
def chaos(context, mpi, seed):
    """Kills a millisecond to a second apart hit whatever is there; the result is the undisturbed one, versions only grow."""
    dice = random.Random(seed)
    mpi = context.mpi(mpi)
    size = dice.choice([3, 4, 6, 8])
    program = context.program(mpi, "heat2d.c")
    command = [program, "-g", "64", "-s", "300", "-c", "5", "-p", "20"]
    reference = context.reference(mpi, size, *command)
    job = context.ftrun(mpi, size, *command, options=["--ft-max-failures=1000"])
    agents = 0
    for _ in range(KILLS):
        # As often within a recovery as between two.
        time.sleep(10 ** dice.uniform(-3.0, 0.0))
        if not job.running():
            break
        name, pids = victims(job, dice, agents)
        agents += name == "the agent" and bool(pids)
        for pid in pids:
            try:
                job.kill(pid, name)
            except ProcessLookupError:
                pass
    job.expect(0, reference, patience=120)
    versions = [version for version in job.restored if version is not None]
    check(versions == sorted(versions), f"versions went back: {job.restored}")
    first = next((at for at, version in enumerate(job.restored) if version is not None), len(job.restored))
    check(None not in job.restored[first:], f"a world began from the beginning although a version was complete: {job.restored}")
