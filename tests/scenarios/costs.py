"""What a failure cost: in the recovery's block, at the job's end, and before there is one, of a job that nothing protects."""

import re
import socket
import time

from harness.job import check
from harness.registry import scenario

from .copies import kept, wait_kept
from .hosts import ONE_CARD, Nodes
from .output import printed, until
from .processes import eventually


@scenario("what-it-cost", each=[{"how": how} for how in ("version", "beginning", "nothing")])
def what_it_cost(context, how):
    """The block says when and where it was, which process died, what was lost and which failure it was; the job says at its end what it
    cost in all, where nothing has failed only when it is asked."""
    mpi, size = context.mpi("openmpi4"), 3
    every = 0 if how == "beginning" else 4
    command = [context.program(mpi, "lines.c"), "12", str(every), "p"]
    if how == "nothing":
        for options, lines in (([], []), (["--ft-summary"], ["no failure", r"9 checkpoints of 3 ranks, \d+\.\d MiB: \d+\.\d s in ft_checkpoint at most; \d+\.\d MiB of memory"])):
            job = context.ftrun(mpi, size, *command, options=options)
            job.expect(0)
            said = [line.removeprefix("ftd: summary   ") for line in job.err.splitlines()]
            check(len(said) == len(lines) and all(map(re.fullmatch, lines, said)), job.err)
        return
    job = context.ftrun(mpi, size, *command, env={"LINES_AT": "10"}, gates=["app.step:1"])
    begun, victim = time.time(), job.at_gate("app.step", 1)
    until(lambda: all(10 in printed(job.output.text, rank) for rank in range(size)), "step 10 is not printed")
    time.sleep(1.2)
    job.kill(victim)
    job.expect(0)
    block = job.err[job.err.index("ftd: recovery") :]
    when = re.search(r"^ftd:   when      ([\d-]+ [\d:]+), on (\S+); process (\d+) was rank 1", block, re.M)
    check(when and (when[2], int(when[3])) == (socket.gethostname(), victim), block)
    # strptime would be loaded only now, and may not be readable.
    at = time.mktime((*map(int, re.split("[- :]", when[1])), 0, 0, -1))
    check(begun - 1 <= at <= time.time() + 1, f"{when[1]}: {block}")
    lost = re.search(r"^ftd:   lost      ([\d.]+) s of computing(.*)$", block, re.M)
    behind = ": all of it" if how == "beginning" else ", since version 8 was complete"
    check(lost and float(lost[1]) >= 1.0 and lost[2] == behind, block)
    check(re.search(r"^ftd:   count     failure \d of this job; \d in a row without progress, of 5 \(--ft-max-failures\)$", block, re.M), block)
    check("begun anew" not in block, block)
    summary = re.findall(r"^ftd: summary   (.*)$", job.err, re.M)
    check(len(summary) == 2 and re.fullmatch(r"1 failure was survived; lost: [\d.]+ s of computing and [\d.]+ s of recovering", summary[0]), job.err)
    check(summary[1].startswith("no checkpoint of the API" if how == "beginning" else "9 checkpoints of 3 ranks, "), job.err)


@scenario("what-it-cost-over-nodes", cluster=True, timeout=90)
def over_nodes(context):
    """Over nodes the block says the same of a rank that has died on another node than the one that speaks, with its number there; the summary
    comes once, and of checkpoints from each node."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, "lines.c")
        job = context.ftrun(mpi, 4, program, "12", "4", "p", options=["--hosts", "node0,node1"], on=nodes.nodes[0], gates=["app.step:3", *kept(8)],
                            env={**ONE_CARD, "LINES_AT": "10"})
        job.on = nodes.nodes[1]
        victim = job.at_gate("app.step", 3)
        steps = lambda rank: re.findall(rf"^rank {rank} step (\d+)$", job.output.text, re.M)
        eventually(lambda: all("10" in steps(rank) for rank in range(4)), "step 10 of all ranks", 30)
        number = re.search(r"^NSpid:.*\t(\d+)$", open(f"/proc/{victim}/status").read(), re.M)[1]
        wait_kept(job)
        time.sleep(1.5)
        job.kill(victim)
        job.expect(0)
        block = job.err[job.err.index("ftd: recovery") :]
        check(re.search(rf"^ftd:   when      [\d-]+ [\d:]+, on node0; process {number} on node node1 was rank 3$", block, re.M), f"{number}: {block}")
        lost = re.search(r"^ftd:   lost      ([\d.]+) s of computing, since version 8 was complete", block, re.M)
        check(lost and float(lost[1]) >= 1.0, block)
        check("count     failure 1 of this job; 1 in a row" in block, block)
        summary = re.findall(r"^ftd: summary   (.*)$", job.err, re.M)
        words = ["1 failure was survived; lost: ", "node0: 6 checkpoints of 2 ranks, ", "node1: 6 checkpoints of 2 ranks, "]
        check(len(summary) == 3 and all(any(line.startswith(word) for line in summary) for word in words), f"{summary}")
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("unprotected", each=[{"how": how} for how in ("nothing", "file", "none")])
def unprotected(context, how):
    """A job that has computed for long and has nothing to go on from is told so once; one with a file in $FT_CHECKPOINT_DIR is not, and neither
    is one that survives nothing anyway."""
    script = 'if [ "$HOW" = file ]; then echo x > "$FT_CHECKPOINT_DIR/x"; fi; sleep 6'
    ft = "none" if how == "none" else "reinit"
    job = context.ftrun(None, 2, "bash", "-c", script, options=["-x", f"HOW={how}"], ft=ft, hurry=200)
    job.expect(0)
    sentence = ("ftd: nothing protects this job: after 10 min there is neither a checkpoint (ft_checkpoint) nor a file in $FT_CHECKPOINT_DIR, so after a "
                "failure it begins from the beginning; --ft=none ends it instead\n")
    check(job.err == (sentence if how == "nothing" else ""), job.err)
