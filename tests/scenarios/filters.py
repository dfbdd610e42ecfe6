"""What a rank prints through a filter of its own, and what it leaves behind."""

import os
import pathlib
import re
import shutil
import signal
import struct
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .output import check_printed, printed, until

# Nothing comes through before the test says so: then the rank is dead.
LATE = 'while [ ! -e "$HERE/go" ]; do sleep 0.01; done; exec cat'
HOWS = {
    # A child of the rank itself, and one that shows nothing itself before it.
    "loop": f'exec "$@" > >({LATE} | while read -r line; do echo "$line"; done)',
    # The first line of many scripts. tee has the log besides.
    "tee": f'exec > >({LATE} | tee -a "$HERE/log.$FT_RANK"); "$@"; exit $?',
    "pipeline": f'set -o pipefail; "$@" | {{ {LATE}; }} | grep "" | sed -e "s/^/ /" | cut -c2-',
    # It has closed what it read before it prints: so do sort, and cut, and all that print at their end.
    "closes": 'set -o pipefail; "$@" | { mapfile -t all; exec <&-; while [ ! -e "$HERE/go" ]; do sleep 0.01; done; '
              'printf "%s\\n" "${all[@]}"; }',
    # In a session of its own, by a pipe with a name.
    "session": f'mkfifo "$HERE/p.$$"; setsid bash -c \'{LATE}\' <"$HERE/p.$$" & exec "$@" >"$HERE/p.$$"',
    # It has opened that pipe itself, as `awk '...' pipe` does: not as its standard input.
    "by-name": 'mkfifo "$HERE/p.$$"; bash -c \'exec 5<"$0"; while [ ! -e "$HERE/go" ]; do sleep 0.01; done; '
               'mapfile -u 5 -t all; printf "%s\\n" "${all[@]}"\' "$HERE/p.$$" & exec "$@" >"$HERE/p.$$"',
}
# The program starts its filter itself after MPI_Init; it is the direct child, or stands below a script.
OWN = {"own": 'exec "$@"', "own-below": '"$@"; exit $?'}
# It stands above the rank, which has a terminal of its own.
SCRIPT = 'exec script -qefc "stty -opost; exec $*" /dev/null'


def hear(context, job, path):
    """The process whose number the rank has written there, once it has ended."""
    pid = int(until(lambda: path.exists() and path.read_text(), "the rank does not print"))
    until(lambda: not proc.alive(pid), "the rank does not end")
    check(not job.output.text, f"the filter did not wait: {job.output.text[:100]!r}")
    (context.work / "go").touch()


@scenario("filter-at-the-end", each=[{"how": how} for how in HOWS])
def filter_at_the_end(context, how):
    """What a rank has printed comes out whole though its filter begins to read when the rank is dead; the status is the rank's."""
    rank = 'seq 6000; echo $$ >"$HERE/rank.new"; mv "$HERE/rank.new" "$HERE/rank"; exit 3'
    job = context.ftrun(None, 1, "bash", "-c", HOWS[how], "bash", "bash", "-c", rank, env={"HERE": context.work})
    hear(context, job, context.work / "rank")
    job.expect(3)
    check(job.output.text.split() == [str(n) for n in range(1, 6001)], f"not whole: {job.output.text[-100:]!r}")
    if how == "tee":
        check((context.work / "log.0").read_text() == job.output.text, "the log is another")
    check("had not printed" not in job.err, job.err)


@scenario("filter-that-becomes-silent")
def filter_that_becomes_silent(context):
    """What was a filter and can print nothing any more is not waited for, and nothing is said to be lost."""
    script = 'exec > >(echo $BASHPID >"$HERE/filter.new"; mv "$HERE/filter.new" "$HERE/filter"; read -r line; echo "$line"; ' \
             'exec sleep 100 <&- >/dev/null 2>&1); until [ -e "$HERE/go" ]; do sleep 0.01; done; trap "" PIPE; echo 1; ' \
             'until grep -qs sleep "/proc/$(cat "$HERE/filter")/comm"; do sleep 0.01; done'
    job = context.ftrun(None, 1, "bash", "-c", script, env={"HERE": context.work})
    filter = int(until(lambda: (path := context.work / "filter").exists() and path.read_text(), "the filter does not begin"))
    directory = pathlib.Path(proc.environ(filter)["FT_SOCKET"]).parent
    until(lambda: filter | 1 << 60 in proc.noted(directory), "it is not noted as a filter")
    (context.work / "go").touch()
    job.expect(0)
    check(job.output.text == "1\n" and job.err == "", f"{job.output.text!r} {job.err!r}")


# Rank 0 ends the job when rank 1 has printed.
ENDS = """
if [ "$FT_RANK" = 0 ]; then while [ ! -e "$HERE/rank" ]; do sleep 0.01; done; exit 3; fi
seq 6000; echo $$ >"$HERE/rank.new"; mv "$HERE/rank.new" "$HERE/rank"; exec sleep 1000
"""


@scenario("filter-of-the-killed")
def filter_of_the_killed(context):
    """One rank ends the job by itself: what another one, which is killed for that, has printed comes out of its filter."""
    job = context.ftrun(None, 2, "bash", "-c", HOWS["loop"], "bash", "bash", "-c", ENDS, env={"HERE": context.work})
    hear(context, job, context.work / "rank")
    job.expect(3)
    check(job.output.text.split() == [str(n) for n in range(1, 6001)], f"not whole: {job.output.text[-100:]!r}")


def seen(environ):
    """How many shepherds of a process's job have noted a filter."""
    each = proc.noted_by_each(pathlib.Path(environ["FT_SOCKET"]).parent)
    return sum(any(pid >> 60 == 1 for pid in noted) for noted in each)


@scenario(
    "filter-in-a-recovery",
    each=[{"mpi": "openmpi4", "how": how} for how in [*HOWS, "script"]]
    + [{"mpi": "mpich4", "how": "tee"}, {"mpi": "openmpi4", "how": "agent"}, {"mpi": "openmpi4", "how": "wrapper"},
       {"mpi": "openmpi4", "how": "shepherd"}, {"mpi": "mpich4", "how": "own"}, {"mpi": "openmpi4", "how": "own-below"}],
)
def filter_in_a_recovery(context, mpi, how):
    """A rank is killed, or the agent, a shepherd, or the rank and its wrapper in one: every line that a rank had handed to its filter comes out,
    above the recovery block and before the next world's; the job ends with its right result."""
    mpi, size, steps = context.mpi(mpi), 2, 15
    hows = {**HOWS, **OWN, "script": SCRIPT, "agent": HOWS["tee"], "wrapper": HOWS["pipeline"], "shepherd": HOWS["tee"]}
    command = [context.program(mpi, "lines.c"), str(steps), "4", "w" if how in OWN else "p"]
    stopping = [] if how in ("agent", "shepherd") else range(size)
    job = context.ftrun(
        mpi, size, "bash", "-c", hows[how], "bash", *command, env={"HERE": context.work, "LINES_FILTER": LATE},
        gates=["client.copied:0:3", "client.copied:1:3", *(f"shepherd.stop:{slot}" for slot in stopping)],
    )
    ranks = {rank: job.at_gate("client.copied", rank) for rank in range(size)}
    if how in OWN:
        until(lambda: seen(proc.environ(ranks[1])) >= size, "no filters are noted")
    terminals = job.below("script")
    proc.freeze(*terminals)
    if how == "agent":
        job.kill(job.one("ft-agent"))
    elif how == "shepherd":
        job.kill(job.shepherd_of(ranks[1]))
    elif how == "wrapper":
        job.kill_all({"rank": ranks[1], "wrapper": proc.stat(ranks[1])[1]})
    else:
        job.kill(ranks[1])
    for slot in stopping:
        job.at_gate("shepherd.stop", slot)
        job.go("shepherd.stop", slot)
    # The other ranks live on until the filters of a dead shepherd have ended.
    dead = [ranks[1]] if how == "shepherd" else ranks.values()
    until(lambda: not any(map(proc.alive, dead)), "the old world's ranks are not killed")
    for pid in terminals:
        os.kill(pid, signal.SIGCONT)
    (context.work / "go").touch()
    job.expect(0)
    check_printed(job, size, steps, 8)
    for rank in range(size):
        check(printed(job.output.text, rank)[:12] == [*range(1, 13)], f"rank {rank}'s lines were lost: {job.output.text}")
    check(job.restored == [8] and "had not printed" not in job.err, job.err)


CHANGES = """
import os, subprocess, sys, time
if os.environ["FT_WORLD"] == "1":
    for number in range(8):
        filter = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        os.dup2(filter.stdin.fileno(), 1)
        print("line", number, flush=True)
        while not os.path.exists(f"{os.environ['HERE']}/go.{number}"):
            time.sleep(0.005)
"""


@scenario("filter-begun-late")
def filter_begun_late(context):
    """A rank sends its output elsewhere again and again: each time that is noted long before five seconds have passed, after which what
    else happens on its slot is looked at; and so what it had printed last comes out when it is killed. (How soon, a unit test says.)"""
    begun = time.monotonic()
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", CHANGES, env={"HERE": context.work})
    rank = job.wait_ranks(1)[0]
    environ = proc.environ(rank)
    directory = pathlib.Path(environ["FT_SOCKET"]).parent
    for number in range(8):
        until(lambda: sum(pid >> 60 == 1 for pid in proc.noted(directory)) > number, f"filter {number} is not noted")
        if number < 7:
            (context.work / f"go.{number}").touch()
    took = time.monotonic() - begun
    check(took < 15, f"eight filters were noted within {took:.1f} s only")
    job.kill(rank)
    job.expect(0)
    check(sorted(job.output.text.splitlines()) == [f"line {number}" for number in range(8)], f"{job.output.text}{job.err}")


@scenario("filter-of-the-unreadable", each=[{"mpi": "openmpi4", "how": how} for how in ("pipeline", "own-below")])
def filter_of_the_unreadable(context, mpi, how):
    """The rank's program may not be read (mode 0711 of another user's), so that nobody sees where it prints. What stands beside it and reads
    a pipe passes on all it has; what it has started itself may be its helper as well, is killed, and the loss is said."""
    mpi = context.mpi(mpi)
    program = context.work / "unreadable"
    shutil.copy(context.program(mpi, "lines.c"), program)
    program.chmod(0o111)
    command = [program, "15", "4", "w" if how in OWN else "p"]
    job = context.ftrun(mpi, 2, "bash", "-c", {**HOWS, **OWN}[how], "bash", *command, env={"HERE": context.work, "LINES_FILTER": LATE},
                        gates=["client.copied:0:3", "client.copied:1:3", "shepherd.stop:0", "shepherd.stop:1"])
    # What it has loaded cannot be looked at.
    job.mpi = None
    ranks = [job.at_gate("client.copied", rank) for rank in range(2)]
    wait_hidden(ranks[1])
    job.kill(ranks[1])
    for slot in range(2):
        job.at_gate("shepherd.stop", slot)
        job.go("shepherd.stop", slot)
    until(lambda: not any(map(proc.alive, ranks)), "the old world's ranks are not killed")
    (context.work / "go").touch()
    if how in OWN:
        job.expect(1)
        said = r"^ftd: slot \d: the rank's program may not be read, so that .* is lost with them: process \d+ \(\w+\)"
        check(len(re.findall(said, job.err, re.M)) == 2 and job.restored == [8], job.err)
        return
    job.expect(0)
    check_printed(job, 2, 15, 8)
    for rank in range(2):
        check(printed(job.output.text, rank)[:12] == [*range(1, 13)], f"rank {rank}'s lines were lost: {job.output.text}")
    check(job.restored == [8] and not re.search(r"\b(is|being|were) lost\b", job.err), job.err)


def wait_hidden(rank):
    """Waits until all shepherds of this rank's job have noted that they cannot see where their ranks print."""
    # The job's directory is in the environment of who may be looked at.
    directory = pathlib.Path(proc.environ(proc.stat(rank)[1])["FT_SOCKET"]).parent
    hidden = struct.pack("=QQ", 1 << 61, 0)
    noted = lambda: [hidden in path.read_bytes() for path in directory.glob("below.*")]
    until(lambda: noted() == [True, True], "that they are hidden is not noted")


# Neither reads, nor ends, nor cares about signals that it can care about.
NEVER = """trap '' HUP TERM PIPE; while :; do sleep 1; done"""
# The shepherd has noted into which pipe the rank prints. It looks seldom at a program that does not call MPI_Init.
NOTED = 'until od -An -tx8 "${FT_SOCKET%/*}/below.0" | grep -q " 2000000000000000"; do sleep 0.01; done; '


@scenario("filter-that-never-ends", each=[{"when": "end"}, {"when": "recovery"}, {"when": "cancelled"}])
def filter_that_never_ends(context, when):
    """It has its time and no more, and a sentence names it; the job goes on, or ends with its own status."""
    rank = {
        "end": "exit 3",
        "recovery": f'if [ "$FT_WORLD" = 1 ]; then {NOTED} kill -9 $$; fi; exit 3',
        "cancelled": f'trap "exit 3" TERM; {NOTED} touch "$HERE/up"; while :; do sleep 0.01; done',
    }[when]
    job = context.ftrun(
        None, 1, "bash", "-c", f'exec "$@" > >({NEVER})', "bash", "bash", "-c", rank, env={"HERE": context.work}, hurry=4
    )
    if when == "cancelled":
        until((context.work / "up").exists, "the rank does not run")
        job.interrupt(signal.SIGTERM)
    job.expect(3, patience=20)
    said = re.findall(r"ftd: slot 0: killed ([\d.]+) s after the end of the (\w+), and .* lost: process \d+ \(bash\)", job.err)
    wanted = {"end": [("2.5", "job")], "recovery": [("0.5", "rank"), ("2.5", "job")], "cancelled": [("0.5", "rank")]}
    check(said == wanted[when], f"{said}: {job.err}")


# It takes ten seconds for what the others pass on at once.
SLOW = 'while read -r line; do echo "$line"; sleep 0.1; done'


@scenario("filter-too-slow", each=[{"when": "end"}, {"when": "recovery"}, {"when": "shepherd"}])
def filter_too_slow(context, when):
    """A filter that needs longer than it has is ended and named; a status that would have been 0 is 1, because output is lost."""
    last = {"recovery": "kill -9 $$", "shepherd": 'touch "$HERE/printed"; exec sleep 1000'}.get(when)
    first = f'if [ "$FT_WORLD" != 1 ]; then exit 0; fi; exec > >({SLOW}); {NOTED} seq 100; {last}'
    rank = first if last else f"exec seq 100 > >({SLOW})"
    job = context.ftrun(None, 1, "bash", "-c", rank, env={"HERE": context.work}, hurry=10 if when == "end" else 4)
    if when == "shepherd":
        until((context.work / "printed").exists, "the rank does not print")
        job.kill(job.one("ft-shepherd"))
    job.expect(1, patience=20)
    check(job.err.count("had not printed is lost: process") == 1, job.err)
    check(0 < len(job.output.text.split()) < 100, job.output.text)


# What holds it open: a process that the rank has left in the background, or a script outside of the job.
HELD_OPEN = {
    "end": 'exec 2>&1 $FTRUN -n 1 bash -c "exec > >(exec tee log); sleep 1000 2>/dev/null & exit 3"',
    "recovery": """
mkfifo pipe; exec 9<>pipe
$FTRUN -n 1 --ft=reinit bash -c "$RANK" 9<&-
""",
}


@scenario("filter-held-open", each=[{"when": when} for when in HELD_OPEN])
def filter_held_open(context, when):
    """A filter that has not ended because somebody else has its input open: the sentence names that process, too."""
    rank = f'if [ "$FT_WORLD" = 1 ]; then tee <pipe & exec >pipe; {NOTED} kill -9 $$; fi; exit 3'
    job = context.script(HELD_OPEN[when], env={"RANK": rank}, hurry=10 if when == "end" else 4)
    job.expect(3, patience=20)
    said = re.findall(r"lost: process (\d+) \(tee\); the input of process (\d+) \(tee\) was held open by process (\d+) \((\w+)\)$",
                      job.output.text + job.err, re.M)
    check(len(said) == 1 and said[0][0] == said[0][1], f"{said}: {job.output.text}{job.err}")
    holder = ("sleep",) if when == "end" else (str(job.pid), "bash")
    check(said[0][-len(holder):] == holder, f"{said}: {job.err}")


@scenario("filter-that-prints-for-ever")
def filter_that_prints_for_ever(context):
    """It is waited for as long as it prints and is read; after its time this is said once, and a signal ends it."""
    job = context.script('exec $FTRUN -n 1 bash -c "exec > >(exec yes); sleep 0.2; exit 0" > >(exec cat >/dev/null)', hurry=10)
    job.wait_err("slot 0: the job's end waits until what a filter prints has been read", 1)
    job.interrupt(signal.SIGTERM)
    job.wait(20)
    check(job.err.count("waits until what a filter prints") == 1, job.err)


# In the second world all is printed without a filter.
NOTED_FIRST = f'if [ "$FT_WORLD" = 1 ]; then {NOTED} fi; '
DIES = '[ "$FT_WORLD" != 1 ] || kill -9 $$'
STAYS = '[ "$FT_WORLD" != 1 ] || exec sleep 1000'


@scenario("filter-and-shepherd")
def filter_and_shepherd(context):
    """The shepherd is killed while it waits for a filter: the job goes on as after any such death, and nothing is left."""
    rank = 'seq 10; echo $$ >"$HERE/rank.$FT_WORLD"'
    command = ["bash", "-c", HOWS["loop"], "bash", "bash", "-c", rank]
    job = context.ftrun(None, 1, *command, env={"HERE": context.work})
    pid = int(until(lambda: (path := context.work / "rank.1").exists() and path.read_text(), "the rank does not print"))
    until(lambda: not proc.alive(pid), "the rank does not end")
    job.kill(job.one("ft-shepherd"))
    (context.work / "go").touch()
    job.expect(0)
    check(job.output.text.split()[-10:] == [str(n) for n in range(1, 11)], job.output.text)


# The filter takes all in, and has more to print than ftrun and the pipes hold: it waits for the reader.
SLOW_READER = """
$FTRUN -n 1 --ft=reinit bash -c "$RANK" |
    { until [ -e room ]; do sleep 0.01; done; cat >whole; }
exit ${PIPESTATUS[0]}
"""
PRINTS = 'seq -f "%0999.f" 4000; touch "$HERE/printed"'


@scenario("filter-and-slow-reader", each=[{"when": "end"}, {"when": "recovery"}, {"when": "shepherd"}])
def filter_and_slow_reader(context, when):
    """Nobody reads what ftrun prints for three times as long as filters have. At the job's end nothing is lost; a recovery does not
    wait for a reader, what is lost then is said, and the status is not 0."""
    dies = {
        "end": f'exec > >(tac); {PRINTS}',
        "recovery": f'[ "$FT_WORLD" != 1 ] || exec > >(tac); {NOTED_FIRST}{PRINTS}; {DIES}',
        "shepherd": f'[ "$FT_WORLD" != 1 ] || exec > >(tac); {NOTED_FIRST}{PRINTS}; {STAYS}',
    }[when]
    job = context.script(SLOW_READER, env={"HERE": context.work, "RANK": dies}, hurry=20 if when == "end" else 4)
    until((context.work / "printed").exists, "the rank does not print")
    if when == "end":
        # Filters have half a second here, and what is killed a second and a half.
        time.sleep(2.5)
        check(job.running(), f"the job did not wait for its reader: {job.err}")
    else:
        if when == "shepherd":
            job.kill(job.one("ft-shepherd"))
        job.wait_err("had not printed is lost: process", 1)
    (context.work / "room").touch()
    check(job.wait(20) == (0 if when == "end" else 1), f"status {job.process.returncode}: {job.err}")
    found = [int(line) for line in (context.work / "whole").read_text().split()]
    if when == "end":
        check(found == [*range(4000, 0, -1)] and "had not printed" not in job.err, f"{len(found)} lines of 4000: {job.err}")
    else:
        check(len(job.restored) == 1 and len(found) > 4000, f"{len(found)} lines: {job.err}")


# Rank 1 is the victim; rank 0 has a producer that is far from its end, and somebody who would publish what came of it.
INNOCENT = """
if [ "$FT_WORLD" != 1 ]; then exit 0; fi
if [ "$FT_RANK" = 1 ]; then echo $$ >"$HERE/victim.new"; mv "$HERE/victim.new" "$HERE/victim"; exec sleep 1000; fi
%s
"""
PRODUCERS = {
    "pipe": '{ echo one; touch "$HERE/begun"; exec sleep 1000; } | { cat >"$HERE/part"; mv "$HERE/part" "$HERE/whole"; }',
    "words": "bash -c 'words=$(echo one; touch \"$HERE/begun\"; exec sleep 1000); touch \"$HERE/whole\"; true'; true",
    "monitor": """python3 -c 'import os, time
pipe = os.pipe(); open(os.environ["HERE"] + "/begun", "w"); time.sleep(1000)' >/dev/null 2>&1 & wait""",
}


@scenario(
    "no-false-end",
    each=[{"how": how, "victim": "rank"} for how in PRODUCERS] + [{"how": "pipe", "victim": "shepherd"}],
)
def no_false_end(context, how, victim):
    """Who reads what no rank prints is no filter: nobody takes its producer's death for the end of its input."""
    script = INNOCENT % PRODUCERS[how]
    job = context.ftrun(None, 2, "bash", "-c", script, env={"HERE": context.work})
    until((context.work / "begun").exists, "rank 0 does not run")
    pid = int(until(lambda: (path := context.work / "victim").exists() and path.read_text(), "rank 1 does not run"))
    if victim == "shepherd":
        job.kill(next(other for other in job.below("ft-shepherd") if other != job.shepherd_of(pid)))
    else:
        job.kill(pid)
    job.expect(0)
    check(not (context.work / "whole").exists(), "what was cut off was published")
    check("had not printed" not in job.err, job.err)


@scenario("left-behind", each=[{"what": "prints"}, {"what": "is-silent"}, {"what": "own-pipe"}])
def left_behind(context, what):
    """What a rank leaves in the background: while it can print the job waits for it as under mpirun; else it ends with the rank."""
    background = {"prints": "'sleep 0.3; echo late'", "is-silent": "'sleep 1000' >/dev/null 2>&1",
                  "own-pipe": "'sleep 1000 | cat' >/dev/null 2>&1"}[what]
    job = context.ftrun(None, 2, "bash", "-c", f"nohup bash -c {background} & echo now")
    job.expect(0, patience=8)
    words = ["late", "late", "now", "now"] if what == "prints" else ["now", "now"]
    check(sorted(job.output.text.split()) == words and "had not printed" not in job.err, f"{job.output.text!r} {job.err}")


@scenario("filter-took", each=[{"who": "shepherd"}, {"who": "agent"}])
def filter_took(context, who):
    """What filters take after the death of a shepherd, or of the agent, is part of what the block says that the recovery took."""
    rank = f'if [ "$FT_WORLD" = 1 ]; then seq 10; {NOTED} echo $$ >"$HERE/rank"; exec sleep 1000; fi'
    job = context.ftrun(None, 1, "bash", "-c", HOWS["loop"], "bash", "bash", "-c", rank, env={"HERE": context.work})
    pid = int(until(lambda: (path := context.work / "rank").exists() and path.read_text(), "the rank does not print"))
    begun = time.monotonic()
    job.kill(job.one("ft-agent" if who == "agent" else "ft-shepherd"))
    until(lambda: not proc.alive(pid), "the rank is not killed")
    # Less than filters have, and more than all else takes.
    until(lambda: time.monotonic() > begun + 1, "time stands still")
    least = time.monotonic() - begun
    (context.work / "go").touch()
    job.expect(0)
    took = [float(ms) for ms in re.findall(r"^ftd:   took +([\d.]+) ms", job.err, re.M)]
    check(len(took) == 1 and took[0] >= 1000 * min(least, 1.9) - 100, f"{took} ms, and the filter alone {least} s: {job.err}")
    check(job.output.text.split() == [str(n) for n in range(1, 11)], job.output.text)
