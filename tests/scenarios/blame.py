"""Whose a death is, what ends a job, what its block says: blame, history, blocks, versions that differ, jobs of one."""

import os
import pathlib
import re
import signal
import subprocess
import time

from harness import proc
from harness.job import Skipped, check
from harness.registry import scenario


@scenario("own-deaths", each=[{"how": "same-rank"}, {"how": "in-turn"}, {"how": "wrapped"}])
def own_deaths(context, how):
    """A program that crashes by itself, each time after computing for longer than what is progress after a kill, ends after
    --ft-max-failures with its history: also when different ranks crash in turn, and below a wrapper."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "blame.c")
    command = [program, "crash-one" if how == "same-rank" else "crash-after", "1300"]
    if how == "wrapped":
        command = ["bash", "-c", '"$0" "$@"; exit $?', *command]
    # Thirty seconds of computing are one.
    job = context.ftrun(mpi, 3, *command, options=["--ft-max-failures=3"], hurry=30)
    status = job.wait(40)
    check(status == 128 + signal.SIGSEGV, f"exit status {status}, expected that of SIGSEGV")
    check("the program died by itself 3 times in a row without a newer complete checkpoint between" in job.err, job.err)
    lines = re.findall(
        r"^\S*\s+epoch (\d+), ([\d.]+) s after the start: rank (\d) on node 0 was killed by SIGSEGV; restored before: nothing$",
        job.err, re.M,
    )
    victims = [1, 1, 1] if how == "same-rank" else [1, 2, 0]
    check([(int(epoch), int(rank)) for epoch, _, rank in lines] == list(zip((1, 2, 3), victims)), f"{lines}\n{job.err}")
    times = [float(seconds) for _, seconds, _ in lines]
    check(times[0] >= 1.3 and times[1] >= times[0] + 1.3 and times[2] >= times[1] + 1.3, f"times {times}")
    check(len(job.restored) == 2, f"{len(job.restored)} blocks for two recoveries")


@scenario("outside-deaths")
def outside_deaths(context):
    """A rank that is killed again and again without a checkpoint, but computes long enough between: no crash loop."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "blame.c")
    # Each world computes for longer than what counts as that here, and then stands at the gate; more does no harm.
    job = context.ftrun(mpi, 2, program, "compute", "1400", options=["--ft-max-failures=2"], hurry=30, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.gate_path("app.compute", 1).unlink()
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0)
    check(job.restored == [None] * 2, f"restored {job.restored}")


@scenario("cpu-limit", each=[{"how": "direct"}, {"how": "wrapped"}])
def cpu_limit(context, how):
    """SIGKILL for a limit of CPU time is the program's own death, and named."""
    mpi = context.mpi("mpich4")
    run = 'exec "$0" spin' if how == "direct" else '"$0" spin; exit $?'
    script = f'if [ "$FT_RANK" = 1 ]; then ulimit -t 1; fi; {run}'
    job = context.ftrun(mpi, 2, "bash", "-c", script, context.program(mpi, "blame.c"), options=["--ft-max-failures=2"], hurry=60)
    status = job.wait(40)
    check(status == 128 + signal.SIGKILL, f"exit status {status}")
    check("the program died by itself 2 times" in job.err, job.err)
    check(len(re.findall(r"after the start: rank 1 on node 0 was killed because its limit of CPU time was used up", job.err)) == 2, job.err)


@scenario("block-for-every-recovery", each=[
    {"how": how} for how in ("never-restores", "abort-restored", "wrong-size", "wrong-size-one")
])
def block_for_every_recovery(context, how):
    """The block comes although the program never asks for its state, or aborts while others still have to get theirs; it
    stands above what ended the job, and says what was taken back."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "blame.c"), how, gates=["app.compute:2"])
    job.kill(job.at_gate("app.compute", 2))
    job.expect({"abort-restored": 3, "wrong-size-one": 4}.get(how, 0))
    check(len(re.findall(r"^ftd: recovery, epoch 2, world 2$", job.err, re.M)) == 1, job.err)
    check(re.search(r"failed +rank 2 on node 0 was killed by SIGKILL", job.err), job.err)
    if how == "never-restores":
        check("restored  nothing: no rank has asked for version 1 (ft_restore)" in job.err, job.err)
    elif how.startswith("wrong-size"):
        one = how == "wrong-size-one"
        check(("restored  version 1 from" if one else "restored  nothing of version 1\n") in job.err, job.err)
        who = "rank 2" if one else r"rank \d \(and in ranks? [\d, -]+\)"
        why = "version 1 holds 8 bytes of region 0, but 4 bytes are protected now: nothing was restored"
        check(re.search(rf"^ftd: +ft_restore failed in {who}: {why}$", job.err, re.M), job.err)
        check("no rank has asked" not in job.err, job.err)
    else:
        check(job.restored == [1], f"restored {job.restored}: {job.err}")
        check(job.err.index("recovery, epoch 2") < job.err.index("called MPI_Abort with code 3"), job.err)


def again(job, gate, rank):
    """The gate stops the next world's process as well."""
    for path in (job.gate_path(gate, rank), job.gate_dir / f"{gate}.{rank}.go"):
        path.unlink()


LATE = r"^ftd:   restored  version 5 from the memory of this node, in epoch 2, [\d.]+ ms from the notice on$"


@scenario("block-late", each=[{"how": how} for how in ("slow-init", "slow-init-agent", "before-init", "copying")])
def block_late(context, how):
    """The block waits for ranks that are inside MPI_Init; what has not come about when it is printed is not denied, and told
    when it has, whoever of agent and rank had died."""
    mpi, slow = context.mpi("mpich4"), how.startswith("slow-init")
    gate = {"before-init": "mpi.before-init", "copying": "client.restoring"}.get(how, "mpi.in-init")
    job = context.ftrun(mpi, 1, context.program(mpi, "places.c"), gates=["app.compute:0", f"{gate}:0"],
                        hurry={"slow-init": 5, "slow-init-agent": 30}.get(how, 10))
    if how != "copying":
        job.at_gate(gate, 0)
        job.go(gate, 0)
    victim = job.at_gate("app.compute", 0)
    if how != "copying":
        again(job, gate, 0)
    # A new agent has not seen that the program uses MPI.
    job.kill(job.one("ft-agent") if how == "slow-init-agent" else victim)
    job.at_gate(gate, 0)
    if how == "slow-init":
        # Longer than a program has that does not come to MPI_Init, and a third of what it has inside.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            check("ftd: recovery" not in job.err, job.err)
            time.sleep(0.05)
    else:
        asked = "version 5 was asked for (ft_restore), and no rank has it back"
        denied = asked if how == "copying" else "no rank has asked for version 5 (ft_restore)"
        job.wait_err(rf"(?m)^ftd:   restored  nothing so far: {re.escape(denied)}\n(?=ftd:   took .*\n)", 1)
        check(("; not seen past MPI_Init: rank 0" in job.err) == (how != "copying"), job.err)
    job.go(gate, 0)
    job.expect(0)
    check(len(re.findall("^ftd: recovery", job.err, re.M)) == 1, job.err)
    check(job.output.starts == [None, 5] and job.restored == [5], f"{job.output.starts} {job.restored}: {job.err}")
    check(len(re.findall(LATE, job.err, re.M)) == (how != "slow-init"), job.err)


@scenario("block-of-two-agents", each=[{"how": how} for how in ("agreed", "released")])
def block_of_two_agents(context, how):
    """An agent dies in a recovery that it has not reported: the next one's block names whom that was for as well, and reckons
    from its death on."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"),
                        gates=["app.compute:1", f"agent.{how}:*:{2 if how == 'released' else 1}"])
    job.kill(job.at_gate("app.compute", 1))
    job.at_gate(f"agent.{how}")
    job.kill(job.one("ft-agent"))
    job.expect(0)
    failed = re.findall(r"^ftd:   (?:failed|      )    (\S.*)$", job.err, re.M)
    check(failed == ["rank 1 on node 0 was killed by SIGKILL", "node 0 lost its agent"], f"{failed}: {job.err}")
    check(len(re.findall("^ftd: recovery", job.err, re.M)) == 1 and job.restored == [5], job.err)


@scenario("agent-twice")
def agent_twice(context):
    """Two agents die in a row: the block says so in one line."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:1", "agent.agreed"])
    job.at_gate("app.compute", 1)
    job.kill(job.one("ft-agent"))
    job.kill(job.at_gate("agent.agreed"))
    job.expect(0)
    failed = re.findall(r"^ftd:   (?:failed|      )    (\S.*)$", job.err, re.M)
    check(failed == ["node 0 lost its agent (2 times)"], f"{failed}: {job.err}")


@scenario("shepherd-once", each=[{"mpi": "mpich4"}, {"mpi": "openmpi4"}])
def shepherd_once(context, mpi):
    """The death of a shepherd costs one epoch, and its block says whose it was: its rank, which dies of it, is seen first."""
    mpi = context.mpi(mpi)
    for victim in (0, 1, 2):
        job = context.ftrun(mpi, 3, context.program(mpi, "blame.c"), "compute", "0", gates=[f"app.compute:{victim}"])
        job.kill(job.shepherd_of(job.at_gate("app.compute", victim)))
        job.expect(0)
        blocks = re.findall(r"^ftd: recovery, epoch (\d+), world (\d+)$", job.err, re.M)
        check(blocks == [("2", "2")], f"blocks of epoch and world {blocks}: {job.err}")
        failed = re.findall(r"^ftd:   (?:failed|      )    (\S.*)$", job.err, re.M)
        check(failed == [f"rank {victim} on node 0 was lost (its shepherd died)"], f"{failed}: {job.err}")


@scenario("block-without-mpi")
def block_without_mpi(context):
    """Of a program that never calls MPI the block does not say that it did not come past MPI_Init; and where a program's own ends
    are recovered from, nobody is said not to be blamed."""
    script = 'if [ $FT_WORLD = 1 ]; then [ $FT_RANK = 0 ] && kill -9 $$; exec sleep 60; fi; [ $FT_WORLD = 2 ] && exit 7; exit 0'
    job = context.ftrun(None, 3, "bash", "-c", script, options=["--ft-on-abort=recover"])
    job.expect(0)
    check(len(re.findall(r"^ftd: recovery, epoch", job.err, re.M)) == 2, job.err)
    check("exited with code 7" in job.err and "not blamed" not in job.err, job.err)
    check("MPI_Init" not in job.err and "ft_restore" not in job.err, job.err)


@scenario("block-own-files", each=[{"where": "directory"}, {"where": "elsewhere"}])
def block_own_files(context, where):
    """A program that goes on from its own restart files is not said to start from the beginning, wherever they lie."""
    mpi = context.mpi("openmpi4")
    program, elsewhere = context.program(mpi, "blame.c"), context.work / "elsewhere"
    elsewhere.mkdir()
    wrapper = ["env", f"FT_CHECKPOINT_DIR={elsewhere}"] if where == "elsewhere" else []
    job = context.ftrun(mpi, 2, *wrapper, program, "own-files", gates=["app.compute:1"])
    victim = job.at_gate("app.compute", 1)
    for rank in range(2):
        path = pathlib.Path(proc.environ(victim)["FT_CHECKPOINT_DIR"]) / f"state.{rank}"
        if where == "directory":
            job.wait_whole(path)
        check(path.exists(), f"no {path}")
    job.kill(victim)
    job.expect(0)
    said = {"directory": "restarted without a checkpoint of the API, with 2 files in $FT_CHECKPOINT_DIR",
            "elsewhere": "restarted without a checkpoint: there was no complete one of the API, and there is no file in $FT_CHECKPOINT_DIR"}
    check(f"{said[where]}\n" in job.err and "from the beginning" not in job.err, job.err)


@scenario("versions", each=[{"how": how} for how in ("same", "differ", "missing", "back", "finalized")])
def versions(context, how):
    """Ranks whose versions differ, or of which one takes none, are named at once, or when the others have no place left; a
    rank that is merely late is not; a version that repeats or goes back is refused, and so is, at once, one that a rank cannot
    take because it has called ft_finalize."""
    mpi = context.mpi("mpich4")
    gates = {"differ": ["app.compute:0"], "finalized": ["agent.finalized:2"]}.get(how, [])
    patience = "60" if how == "finalized" else "4"
    job = context.ftrun(
        mpi, 4, context.program(mpi, "versions.c"), how, gates=gates, hurry=10,
        env={"FT_CHECKPOINT_TIMEOUT": patience},
    )
    if how == "differ":
        job.at_gate("app.compute", 0)
        job.wait_err(r"rank 3 checkpointed version 11 without version 10, which (rank|ranks) ", 1)
        job.go("app.compute", 0)
    if how == "finalized":
        # The agent does not get to tell the others: rank 2 does not come back meanwhile.
        job.at_gate("agent.finalized", 2)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            check("rank 2 version 3" not in job.err, "ft_finalize has returned, and nobody has been told")
            time.sleep(0.01)
        job.go("agent.finalized", 2)
    job.expect(0)
    if how == "missing":
        said = re.findall(r"rank 2 has not checkpointed version 1, which ranks 0-1, 3 took 10 s ago or earlier", job.err)
        check(len(said) == 1, job.err)
    else:
        check("has not checkpointed" not in job.err, job.err)
    check(("without version" in job.err) == (how == "differ"), job.err)
    if how == "finalized":
        assert_left(job)
    refused = sorted(re.findall(r"rank (\d) version (\d): ", job.err)) if how == "back" else []
    check(len(refused) == (8 if how == "back" else 0), job.err)


@scenario("versions-impatient", each=[{"how": how} for how in ("missing", "apart")])
def versions_impatient(context, how):
    """However short FT_CHECKPOINT_TIMEOUT is, the sentence of the checkpoint that fails for it names the ranks that are missing,
    and the version."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 4, context.program(mpi, "versions.c"), how, env={"FT_CHECKPOINT_TIMEOUT": "1"})
    job.expect(0)
    lacking = {rank: "rank 2 has not checkpointed version 1" for rank in (0, 1, 3)}
    if how == "apart":
        lacking = {rank: "rank 3 has not checkpointed version 10" for rank in range(3)}
        lacking[3] = "ranks 0-2 have not checkpointed version 11"
    said = re.findall(r"^ftd: rank (\d): version \d+ was not written: .* for 1 s \(FT_CHECKPOINT_TIMEOUT\): (.*), and no version "
                      r"counts before every rank has it$", job.err, re.M)
    check(sorted(said) == sorted((str(rank), words) for rank, words in lacking.items()), job.err)


def assert_left(job):
    """Rank 2 is named by each version of the others that is refused, once by the job at most; nobody has waited."""
    left = "rank 2 has called ft_finalize after version 2"
    for rank in (0, 1, 3):
        refused = re.findall(rf"^ftd: rank {rank}: version (\d+) was not written: {left} and takes no more", job.err, re.M)
        # They have heard that rank 2 is back from ft_finalize.
        check(refused == [str(version) for version in range(3, 13)], f"rank {rank} was refused {refused}: {job.err}")
    check(not re.search(rf"^ftd: {left}, and ", job.err, re.M), job.err)
    check("ftd: rank 2: ft_checkpoint after ft_finalize: nothing was written" in job.err, job.err)
    check("released none" not in job.err, job.err)


@scenario("spawn-refused", each=[{"mpi": m, "ft": ft} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5")
                                 for ft in ("none", "reinit")])
def spawn_refused(context, mpi, ft):
    """MPI_Comm_spawn is refused with a sentence that is true in each mode; a program that handles the error goes on, and no
    rank is lost; without a handler the program ends by its own wish."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "spawns.c")
    sentence = "MPI_Comm_spawn of /bin/true was refused: ftd starts the ranks of ftrun -n and no others, with --ft=none as with"
    job = context.ftrun(mpi, 2, program, "return", ft=ft)
    job.expect(0)
    # Debian's MPICH 4 refuses by itself, without a question to anybody.
    check(sentence in job.err or mpi.name == "mpich4", job.err)
    check(job.output.results == ["of spawns"], f"{job.err}{job.output.text}")
    check("has children" not in job.output.text and job.restored == [], f"{job.err}{job.output.text}")
    job = context.ftrun(mpi, 2, program, ft=ft)
    check(job.wait(30) != 0 and job.restored == [], job.err)
    check("called MPI_Abort" in job.err or "exited with code" in job.err, job.err)


@scenario("jobs-of-one", each=[{"mpi": m, "ft": ft} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")
                               for ft in ("none", "reinit")])
def jobs_of_one(context, mpi, ft):
    """A wrapper that takes the preload away does not make as many jobs of one as there are ranks: the job ends with a
    sentence, and not with 0."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "ending.c")
    for wrapper in ("env -u LD_PRELOAD", "env LD_PRELOAD="):
        job = context.ftrun(mpi, 2, "bash", "-c", f'exec {wrapper} "$0" ok', program, ft=ft)
        status = job.wait(30)
        check(status != 0, f"{wrapper}: exit status 0\n{job.output.text}{job.err}")
        check(job.output.results == [] and job.restored == [], f"{wrapper}: {job.output.text}{job.err}")
        check(re.search(r"^ftrun: rank \d ", job.err, re.M), f"{wrapper}: no sentence: {job.err}")


def refused_as_job_of_one(context, mpi, command, what, **how):
    """Runs two ranks of a command; they end with a sentence, and nothing has run."""
    job = context.ftrun(mpi, 2, *command, **how)
    status = job.wait(30)
    check(status not in (0, None), f"{what}: exit status {status}\n{job.output.text}{job.err}")
    check(job.output.results == [] and job.restored == [], f"{what}: {job.output.text}{job.err}")
    check(re.search(r"^ftrun: rank \d cannot be started: process \d+ .*job of its own", job.err, re.M),
          f"{what}: no sentence: {job.err}")


def sweep(context):
    """Where nothing is preloaded nobody notes what an MPI makes, and a process that is ended in MPI_Init leaves it (guide: Memory)."""
    for path, _ in proc.shared_files() - context.shared_before:
        pathlib.Path(path).unlink()


def kept(mpi):
    """What a cleared environment needs for its MPI to run at all."""
    return " ".join(f'{name}="${name}"' for name in ("PATH", "HOME", *mpi.env))


@scenario("jobs-of-one-cleared", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def jobs_of_one_cleared(context, mpi):
    """A wrapper that clears the environment, or ftd's part of it, and keeps the preload: also where the wrapper's own end says that
    all is well. What is only the MPI's own, the preload sets anew."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "ending.c")
    cleared = f'env -i {kept(mpi)} LD_PRELOAD="$LD_PRELOAD"'
    for wrapper, after in (
        (f"exec {cleared}", ""), (cleared, "; true"), (f"nice {cleared} bash -c 'exec \"$0\" \"$@\"'", "; true"),
        ("env -u FT_SOCKET", "; true"), ("FT_SOCKET=", "; true"), ("FT_SOCKET=/no/such/socket", "; true"),
        ("env -u FT_RANK", "; true"),
    ):
        refused_as_job_of_one(context, mpi, ["bash", "-c", f'{wrapper} "$0" ok{after}', program], wrapper)
    job = context.ftrun(mpi, 2, "bash", "-c", 'exec env -u PMIX_NAMESPACE -u MPIR_CVAR_ASYNC_PROGRESS -u I_MPI_ASYNC_PROGRESS -u JSM_JSRUN_PORT "$0" ok', program)
    job.expect(0)
    check(job.output.results == ["of ending"], f"{job.output.text}{job.err}")


def linked_statically(context, mpi):
    """A program that has MPICH linked in."""
    program = context.work / "static"
    subprocess.run(
        [mpi.cc, "-o", program, next((context.scratch / "src").rglob("ending.c")),
         *"-Wl,--as-needed -Wl,-Bstatic -lmpich -Wl,-Bdynamic -lpthread -lhwloc -lucp -lucs -lm".split()],
        env=context.env(mpi, {}), check=True,
    )
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    check("mpi" not in linked, linked)
    return program


@scenario("jobs-of-one-linked-in")
def jobs_of_one_linked_in(context):
    """A program with its MPI linked in, with its symbols and without, to which a wrapper gives a cleared environment: ftd sees it and
    says so, or its MPI, which nothing serves, fails at once, whatever the wrapper makes of that."""
    mpi = context.mpi("mpich4")
    program, stripped = linked_statically(context, mpi), context.work / "stripped"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    for wrapper, after, file, options in (
        ("exec env -i", "", program, []), ("env -i", "; true", stripped, []), ("env -i", "; true", program, ["--ft-mpi=mpich"]),
        ('env -i LD_PRELOAD="$LD_PRELOAD"', "; true", program, []),
    ):
        job = context.ftrun(mpi, 2, "bash", "-c", f'{wrapper} "$0" slow{after}', file, options=options)
        status, what = job.wait(30), f"{wrapper}{after} {options}"
        check(status is not None and (status != 0 or after), f"{what}: exit status {status}\n{job.output.text}{job.err}")
        check(job.output.results == [] and job.restored == [], f"{what}: {job.output.text}{job.err}")
        check("job of its own" in job.err or "Fatal error in" in job.err, f"{what}: no word about it: {job.err}")
    # Its shepherd's own child, and what is named to it.
    job = context.ftrun(mpi, 2, "env", "-i", program, "slow")
    check(job.wait(30) not in (0, None) and job.output.results == [], f"env -i: {job.output.text}{job.err}")
    sweep(context)
    for command in (["bash", "-c", '"$0" ok; exit $?', program], ["setsid", program, "ok"]):
        job = context.ftrun(mpi, 2, *command, options=["--ft-mpi=mpich"])
        job.expect(0)
        check(job.output.results == ["of ending"] and job.err == "", f"{command}: {job.output.text}{job.err}")
    job = context.ftrun(mpi, 2, "setsid", program, "exit", "1", "7", options=["--ft-mpi=mpich"])
    check(job.wait(30) == 7, job.err)


@scenario("jobs-of-one-bare", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def jobs_of_one_bare(context, mpi):
    """A wrapper that clears the whole environment, the preload too: seen at the processes, whatever the wrapper's end says. A second
    program of a script is seen as well, after all ranks have joined and ended, and long after the job's start."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "ending.c")
    bare = f"env -i {kept(mpi)}"
    for script in (f'exec {bare} "$0" slow', f'{bare} "$0" slow; true', f'sleep 0.6; {bare} bash -c "$0 slow; true"; true'):
        refused_as_job_of_one(context, mpi, ["bash", "-c", script, program], script)
    for second in (f"{bare}", f'{bare} LD_PRELOAD="$LD_PRELOAD"'):
        job = context.ftrun(mpi, 2, "bash", "-c", f'"$0" ok && {second} "$0" slow; true', program)
        status = job.wait(30)
        check(status not in (0, None) and job.output.results == ["of ending"], f"{second}: {status} {job.output.text}{job.err}")
        check(re.search(r"^ftrun: rank \d cannot be started: process \d+ .*job of its own", job.err, re.M), job.err)
    sweep(context)


UNSEEN_SCRIPT = """
: > ready.$FT_RANK
until [ -e go ]; do sleep 0.02; done
env -i %s "$0" ok
true
"""


def wait_for_files(context, name):
    deadline = time.monotonic() + 30
    while not all((context.work / f"{name}.{rank}").exists() for rank in range(2)):
        check(time.monotonic() < deadline, f"no files {name}.0 and {name}.1 within 30 s")
        time.sleep(0.01)


@scenario("jobs-of-one-unseen", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def jobs_of_one_unseen(context, mpi):
    """A program with a cleared environment that nobody looks at until it is over, for the agent stands still, and whose end a script
    makes a good one: it starts no job of one, and the job ends with a sentence."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 2, "bash", "-c", UNSEEN_SCRIPT % kept(mpi), context.program(mpi, "ending.c"))
    wait_for_files(context, "ready")
    agent = job.one("ft-agent")
    proc.freeze(agent)
    try:
        (context.work / "go").touch()
        # Whoever has come to MPI_Init waits for the agent's word.
        time.sleep(1)
    finally:
        os.kill(agent, signal.SIGCONT)
    status = job.wait(30)
    check(status not in (0, None) and job.output.results == [], f"{status}: {job.output.text}{job.err}")
    check(re.search(r"^ftrun: rank \d cannot be started: process \d+ .*job of its own", job.err, re.M), job.err)
    sweep(context)


IDLE = """
import mpi4py, sys, time
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    assert "/libmpi" in maps.read()
time.sleep(0.4)
print("just runs")
"""


ASKING = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    int initialised = 1;
    MPI_Initialized(&initialised);
    usleep(400 * 1000);
    printf("initialised %d\n", initialised);
}"""


WRAPPERS = {"none": "", "no-preload": "env -u LD_PRELOAD", "cleared": "env -i HOME=/tmp",
            "only-preload": 'env -i LD_PRELOAD="$LD_PRELOAD"'}


@scenario("no-job-of-one-tools", each=[{"wrapper": wrapper} for wrapper in WRAPPERS])
def no_job_of_one_tools(context, wrapper):
    """What comes with an MPI and initialises none just runs: the MPI's own tools, a script that has only imported it, and a program
    that only asks whether it is initialised; in the ranks' environment, without the preload, and in a cleared one."""
    mpi, wrapper = context.mpi("openmpi4"), WRAPPERS[wrapper]
    source, asking = context.work / "asking.c", context.work / "asking"
    source.write_text(ASKING)
    subprocess.run([mpi.cc, "-o", asking, source], env=context.env(mpi, {}), check=True)
    for _ in range(3):
        tool = context.ftrun(mpi, 2, "bash", "-c", f"{wrapper} /usr/bin/ompi_info --all | grep -c 'Open MPI: 4'")
        tool.expect(0)
        check(tool.output.text == "1\n1\n" and tool.err == "", f"{tool.output.text}{tool.err}")
    job = context.ftrun(mpi, 2, "bash", "-c", f'{wrapper} /usr/bin/python3 -c "$0"', IDLE)
    job.expect(0)
    check(job.output.text == "just runs\n" * 2 and job.err == "", f"{job.output.text}{job.err}")
    job = context.ftrun(mpi, 2, "bash", "-c", f"{wrapper} {asking}")
    job.expect(0)
    check(job.output.text == "initialised 0\n" * 2 and job.err == "", f"{job.output.text}{job.err}")


# Tools of MPIs that open nothing when they are initialised.
SILENT = {"impi": "impi_info", "mpich5": "mpichversion"}


@scenario("no-job-of-one-silent", each=[{"mpi": name} for name in SILENT])
def no_job_of_one_silent(context, mpi):
    """... also an MPI's tools by which nothing can be told: one after the other, for each is over at once."""
    mpi, tool = context.mpi(mpi), SILENT[mpi]
    file = pathlib.Path(mpi.launcher).with_name(tool)
    if not file.exists():
        raise Skipped(f"{file} is not installed")
    library = " ".join(f'{name}="${name}"' for name in mpi.env)
    script = f"for n in {{1..60}}; do env -i {library} {file} > /dev/null || exit; done; echo $n"
    job = context.ftrun(mpi, 2, "bash", "-c", script)
    job.expect(0)
    check(job.output.text == "60\n" * 2 and job.err == "", f"{job.output.text}{job.err}")


FORGETFUL = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int before = argc > 1, size;
    if (before) clearenv();
    MPI_Init(&argc, &argv);
    clearenv();
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("result %d\n", size);
    MPI_Finalize();
}"""


@scenario("forgotten-environment", each=[{"mpi": m} for m in ("openmpi4", "mpich4")])
def forgotten_environment(context, mpi):
    """A program that clears its own environment: after MPI_Init it is a rank like any other, before it has no place."""
    mpi = context.mpi(mpi)
    source, program = context.work / "forgetful.c", context.work / "forgetful"
    source.write_text(FORGETFUL)
    subprocess.run([mpi.cc, "-o", program, source], env=context.env(mpi, {}), check=True)
    job = context.ftrun(mpi, 2, program)
    job.expect(0)
    check(job.output.results == ["2", "2"], f"{job.output.text}{job.err}")
    refused_as_job_of_one(context, mpi, [program, "before"], "clearenv")


ALONE_BY_HANDLE = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL | os.RTLD_DEEPBIND)
code = library.MPI_Init(None, None)
print("result", code)
"""


@scenario("jobs-of-one-handle", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5")])
def jobs_of_one_handle(context, mpi):
    """An MPI that is looked up in the library's own handle, and a process whose memory map nobody may read: where nothing can be
    preloaded and nothing be seen, no MPI starts alone either."""
    mpi = context.mpi(mpi)
    ending = context.program(mpi, "ending.c")
    library = mpi.library_of(ending, context.env(mpi, {}))
    job = context.ftrun(mpi, 2, "/usr/bin/python3", "-c", ALONE_BY_HANDLE, library)
    check(job.wait(30) != 0, f"exit status 0\n{job.output.text}{job.err}")
    check(job.output.results == [], f"{job.output.text}{job.err}")
    # PR_SET_DUMPABLE is lost at exec, so the library that hides the process is the program's own.
    source, hiding = context.work / "hide.c", context.work / "hide.so"
    source.write_text("#include <sys/prctl.h>\n__attribute__((constructor)) static void hide(void) "
                      "{ prctl(PR_SET_DUMPABLE, 0); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", hiding, source], check=True)
    job = context.ftrun(mpi, 2, "env", f"LD_PRELOAD={hiding}", ending, "ok")
    check(job.wait(30) != 0, f"exit status 0\n{job.output.text}{job.err}")
    check(job.output.results == [], f"{job.output.text}{job.err}")


@scenario("wrong-mpi", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "mpich5abi", "impi")])
def wrong_mpi(context, mpi):
    """--ft-mpi names the other family: what the preload reaches is served as what it is, and one sentence says so; what it does not
    reach ends with a sentence. There are never as many jobs of one as there are ranks, neither when what it says is right."""
    mpi = context.mpi(mpi)
    program, other = context.program(mpi, "ending.c"), "mpich" if mpi.family == "openmpi" else "openmpi"
    for command, how in (
        ([program, "ok"], {"options": [f"--ft-mpi={other}"]}),
        (["bash", "-c", '"$0" ok; exit $?', program], {"env": {"FT_MPI": other}}),
    ):
        job = context.ftrun(mpi, 2, *command, **how)
        job.expect(0)
        check(job.output.results == ["of ending"], f"{command}: {job.output.text}{job.err}")
        check(job.err.count(f"--ft-mpi={other} (FT_MPI) is wrong: the program has loaded ") == 1, f"{command}: {job.err}")
    for command in ([program, "ok"], ["bash", "-c", 'exec env -u LD_PRELOAD "$0" ok', program]):
        job = context.ftrun(mpi, 2, *command, options=[f"--ft-mpi={mpi.family}"])
        job.expect(0)
        check(job.output.results == ["of ending"] and job.err == "", f"{command}: {job.output.text}{job.err}")
    library = mpi.library_of(program, context.env(mpi, {}))
    for command in (
        ["bash", "-c", 'exec env -u LD_PRELOAD "$0" ok', program],
        ["/usr/bin/python3", "-c", ALONE_BY_HANDLE, library],
    ):
        job = context.ftrun(mpi, 2, *command, options=[f"--ft-mpi={other}"])
        check(job.wait(30) != 0, f"{command}: exit status 0\n{job.output.text}{job.err}")
        check(job.output.results == [], f"{command}: {job.output.text}{job.err}")
        # Some die of a signal over it, again and again.
        sentence = r"^ftrun: (?:rank \d |the job cannot continue, because the program died by itself)"
        check(re.search(sentence, job.err, re.M), f"{command}: no sentence: {job.err}")


@scenario("no-job-of-one")
def no_job_of_one(context):
    """A program that is linked with an MPI and never calls it just runs; so does one without MPI and without the preload."""
    mpi = context.mpi("mpich4")
    source, program = context.work / "linked.c", context.work / "linked"
    source.write_text('#include <mpi.h>\n#include <stdio.h>\nint main(int c, char **v) { if (c > 1) MPI_Init(&c, &v); '
                      'printf("just runs\\n"); return 0; }\n')
    subprocess.run([mpi.cc, "-o", program, source], env=context.env(mpi, {}), check=True)
    for command in ([program], ["env", "-u", "LD_PRELOAD", "echo", "just runs"]):
        job = context.ftrun(mpi, 2, *command)
        job.expect(0)
        check(job.output.text == "just runs\n" * 2, job.output.text)
