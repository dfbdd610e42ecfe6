"""Which processes are ftd's, and which are not: what was there before ftrun, what it inherits, and who says that he is whom."""

import os
import re
import shutil
import signal
import subprocess
import time

from harness import peer, proc, root
from harness.job import check
from harness.registry import scenario


def eventually(condition, what, patience=10.0):
    """Waits until `condition()` gives something true, and gives that."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        check(time.monotonic() < deadline, f"waited {patience} s in vain for {what}")
        time.sleep(0.005)
    return found


# --- the front: what ftrun inherits is not its own -----------------------------------------------------------------

INHERITED = """
exec > >(trap '' TERM; while read -r line; do echo "logged $line"; done; touch %(work)s/logged)
(while :; do sleep 0.05; date +%%s > %(work)s/monitor; done) > /dev/null 2>&1 &
echo $! > %(work)s/pid
exec $FTRUN -n 3 --ft=reinit %(program)s
"""


@scenario("inherited", each=[{"end": "recovery"}, {"end": "abort"}, {"end": "kill-9"}])
def inherited(context, end):
    """What a script had started before it became ftrun (`tee` of `> >(tee log)`, a monitor) is not ftrun's: it lives on when
    ranks die, when the job ends, and when ftrun is killed, and so does what it starts later."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "ending.c" if end == "abort" else "places.c")
    text = INHERITED % {"work": context.work, "program": f"{program} abort 1 42" if end == "abort" else program}
    job = context.script(text, mpi=mpi, gates=["app.compute:1"] if end != "abort" else [])
    if end != "abort":
        rank = job.at_gate("app.compute", 1)
        job.kill(rank if end == "recovery" else job.pid)
    status = job.wait(30)
    check(status == {"recovery": 0, "abort": 42, "kill-9": -9}[end], f"status {status}: {job.err}")
    monitor = int((context.work / "pid").read_text())
    check(proc.alive(monitor), "the monitor was killed")
    (context.work / "monitor").unlink()
    eventually((context.work / "monitor").exists, "what the monitor starts")
    eventually((context.work / "logged").exists, "the end of the reader of `> >(…)`, after all that was written")
    if end == "recovery":
        check("logged result" in job.output.text, job.output.text)
    # It is not ftrun's to end, but this scenario's.
    os.kill(monitor, signal.SIGKILL)
    context.assert_clean()


@scenario("front", each=[{"victim": "launcher"}, {"victim": "front"}])
def front(context, victim):
    """Whichever of ftrun's two processes is killed with SIGKILL: nothing is left, and the one that is left says why."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "places.c"), gates=["app.compute:1"])
    job.at_gate("app.compute", 1)
    job.kill(job.launcher if victim == "launcher" else job.pid)
    status = job.wait(20)
    check(status == (137 if victim == "launcher" else -9), f"status {status}")
    if victim == "launcher":
        check("the launcher of this job was killed by SIGKILL" in job.err, job.err)
    context.assert_clean(5)


SIGNALLED = """
import os, signal, sys, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.time()))
here = os.path.join(sys.argv[1], os.environ["FT_RANK"])
open(here + ".ready", "w").close()
while not os.path.exists(os.path.join(sys.argv[1], "stop")):
    time.sleep(0.01)
    with open(here + ".new", "w") as file:
        print(len(seen), file=file)
    os.rename(here + ".new", here)
"""


@scenario("front-signals")
def front_signals(context):
    """A signal to ftrun alone reaches the ranks, one to its whole process group reaches them once; a stop stops both of its
    processes and `SIGCONT`, to the one that was started or to the group, brings both back."""
    job = context.ftrun(None, 2, "/usr/bin/python3", "-c", SIGNALLED, str(context.work))
    eventually(lambda: all((context.work / f"{rank}.ready").exists() for rank in (0, 1)), "the ranks")

    def seen(count):
        texts = [context.work / str(rank) for rank in (0, 1)]
        return lambda: all(path.exists() and path.read_text() == f"{count}\n" for path in texts)

    launcher = job.launcher
    os.kill(job.pid, signal.SIGUSR1)
    eventually(seen(1), "SIGUSR1 to ftrun")
    os.killpg(job.pid, signal.SIGUSR1)
    eventually(seen(2), "SIGUSR1 to the group")
    time.sleep(0.2)
    check(seen(2)(), "a signal to the group came to the ranks twice")
    for stop, go in ((os.kill, os.kill), (os.killpg, os.killpg), (os.kill, os.killpg)):
        for _ in range(10):
            stop(job.pid, signal.SIGTSTP)
            deadline = time.monotonic() + 1
            while not (both := proc.stat(launcher)[0] == proc.stat(job.pid)[0] == "T") and time.monotonic() < deadline:
                time.sleep(0.005)
            # The last SIGCONT may still be passed on, and takes a stop with it.
            if both:
                break
        check(both, "they were not stopped")
        go(job.pid, signal.SIGCONT)
        eventually(lambda: "T" not in (proc.stat(launcher)[0], proc.stat(job.pid)[0]), "both to go on")
    # Somebody who knows only the launcher's number.
    # The front may still be passing the last SIGCONT on: again, then.
    eventually(lambda: os.kill(launcher, signal.SIGSTOP) or proc.stat(job.pid)[0] == "T", "the front's stop")
    os.kill(launcher, signal.SIGCONT)
    eventually(lambda: proc.stat(job.pid)[0] != "T", "the front to go on")
    os.kill(job.pid, signal.SIGUSR1)
    eventually(seen(3), "SIGUSR1 afterwards")
    (context.work / "stop").touch()
    job.expect(0)


@scenario("front-stopped-again")
def front_stopped_again(context):
    """A launcher that is stopped again before the process that the user started has heard that it went on: both stand still, and
    `SIGCONT` to the one that was started brings both back."""
    job = context.ftrun(None, 2, "/usr/bin/python3", "-c", SIGNALLED, str(context.work), gates=["front.carries"])
    eventually(lambda: all((context.work / f"{rank}.ready").exists() for rank in (0, 1)), "the ranks")
    launcher = job.launcher
    os.kill(job.pid, signal.SIGUSR1)
    check(job.at_gate("front.carries") == job.pid, "somebody else carries signals")
    os.kill(launcher, signal.SIGTSTP)
    eventually(lambda: proc.stat(launcher)[0] == "T", "the launcher's stop")
    os.kill(launcher, signal.SIGCONT)
    eventually(lambda: proc.pending(job.pid, signal.SIGCONT), "the launcher's word that it runs")
    os.kill(launcher, signal.SIGTSTP)
    eventually(lambda: proc.stat(launcher)[0] == "T", "the launcher's second stop")
    job.go("front.carries")
    eventually(lambda: proc.stat(job.pid)[0] == "T", "the front's stop")
    os.kill(job.pid, signal.SIGCONT)
    eventually(lambda: "T" not in (proc.stat(launcher)[0], proc.stat(job.pid)[0]), "both to go on")
    (context.work / "stop").touch()
    job.expect(0)


@scenario("front-stopped", each=[{"who": "front"}, {"who": "both"}])
def front_stopped(context, who):
    """SIGSTOP of the process that the user started, of which nobody is told: the ranks stop within a second or so, and go on with
    it. When its child is stopped as well, the ranks run on, and SIGCONT to the one that was started brings both back."""
    job = context.ftrun(None, 2, "/usr/bin/python3", "-c", SIGNALLED, str(context.work))
    eventually(lambda: all((context.work / f"{rank}.ready").exists() for rank in (0, 1)), "the ranks")
    ranks = list(job.ranks().values())
    check(len(ranks) == 2, f"ranks {ranks}")
    for _ in range(20 if who == "both" else 0):
        proc.freeze(job.launcher, job.pid)
        os.kill(job.pid, signal.SIGCONT)
        eventually(lambda: proc.alive(job.pid) and proc.stat(job.launcher)[0] != "T", "the launcher to go on")
        eventually(lambda: proc.stat(job.pid)[0] != "T", "the front to go on")
    for _ in range(2 if who == "front" else 0):
        os.kill(job.pid, signal.SIGSTOP)
        eventually(lambda: all(proc.stat(pid)[0] == "T" for pid in ranks), "the ranks to stop")
        os.kill(job.pid, signal.SIGCONT)
        eventually(lambda: not any(proc.stat(pid)[0] == "T" for pid in ranks), "the ranks to go on")
    (context.work / "stop").touch()
    job.expect(0)


# --- strays: what proves that a process is the job's -----------------------------------------------------------------

def kill_all_of_ftd(job):
    """SIGKILL to all of ftd's processes of a job in the same instant: nobody is left to clean up."""
    # The launcher late: the kernel continues stopped process groups whose parent goes.
    pids = [*job.below("ft-shepherd"), *job.below("ft-agent"), job.launcher, job.pid]
    proc.kill_frozen(*pids)
    job.wait(20)
    # Not before that the launcher's lock is free.
    eventually(lambda: not any(proc.alive(pid) for pid in pids), "the end of those that were killed")


def sleepers():
    """Processes of this scenario, in its tree, that sleep in a session of their own."""
    return [pid for pid in proc.descendants(os.getpid()) if proc.name(pid) == "sleep" and proc.alive(pid)]


@scenario("not-a-stray")
def not_a_stray(context):
    """After a crash of all of ftd the next ftrun ends the daemons that the old job's ranks had started, though they have
    neither its session nor its environment; the batch script that calls that ftrun, and what else merely has the old job's
    environment, live on."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    wrapper = f"setsid env -i /usr/bin/sleep 600 & exec {program}"
    job = context.ftrun(mpi, 2, "bash", "-c", wrapper, gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    environment = {name: value for name, value in proc.environ(rank).items() if name.startswith("FT_")}
    daemons = sleepers()
    check(len(daemons) == 2, f"daemons {daemons}")
    directory = job.wait_noted(daemons)
    kill_all_of_ftd(job)
    check(all(proc.alive(pid) for pid in daemons), "somebody else ended them")
    # `exec` keeps the environment of the terminal that a rank had opened.
    agent = subprocess.Popen(["sleep", "601"], env={**os.environ, **environment}, start_new_session=True)
    script = context.script(f"$FTRUN -n 2 --ft=reinit {program}; echo status $?; exit 7", mpi=mpi, env=environment)
    check(script.wait(30) == 7, f"the batch script was killed: {script.err}")
    check("status 0" in script.output.text, script.output.text)
    check(agent.poll() is None, "what has nothing but the old job's environment was killed")
    agent.kill()
    agent.wait()
    check(not directory.exists() and not any(proc.alive(pid) for pid in daemons), f"left: {daemons}")
    context.assert_clean()


@scenario("daemon", each=[{"how": "shepherd"}, {"how": "cgroup"}, {"how": "cgroup-crash"}], as_root=root.Delegated())
def daemon(context, how):
    """A daemon of a rank (own session, cleared environment) ends with the job when ftrun and its shepherd are killed in the same
    instant. In a cgroup of the job's own nothing escapes, not even one that no shepherd has come to see."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    start = f"while [ ! -e {context.work}/go ]; do sleep 0.01; done; exec setsid env -i /usr/bin/sleep 600"
    job = context.ftrun(mpi, 2, "bash", "-c", f"({start}) & exec {program}", gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    group = proc.group(rank)
    check(re.search(r"/slot-1\.0$", group) and "/ftd-test-" in group, f"the rank is in the cgroup {group}")
    check(proc.group(job.launcher) != group, "ftrun is in the ranks' cgroup")
    shepherds = job.below("ft-shepherd")
    if how != "shepherd":
        # They look no more.
        proc.freeze(*shepherds)
    (context.work / "go").touch()
    found = eventually(lambda: len(pids := [p for p in sleepers() if "600" in proc.command(p)]) == 2 and pids, "the daemons")
    if how == "shepherd":
        job.wait_noted(found)
    if how == "cgroup-crash":
        kill_all_of_ftd(job)
        check(all(proc.alive(pid) for pid in found), "somebody else ended them")
        context.ftrun(mpi, 2, program).expect(0)
    else:
        victims = [job.shepherd_of(rank), job.launcher, job.pid]
        proc.kill_frozen(*victims)
        for pid in shepherds:
            if pid not in victims:
                os.kill(pid, signal.SIGCONT)
    context.assert_clean(5)
    own = f"/mnt{group.rpartition('/')[0]}"
    eventually(lambda: not os.path.exists(own), "the end of the job's cgroup")


@scenario("daemon-noted")
def daemon_noted(context):
    """The same without a cgroup: what its shepherd has noted ends with the job, by those that are left."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    wrapper = f"setsid env -i /usr/bin/sleep 600 & exec {program}"
    job = context.ftrun(mpi, 2, "bash", "-c", wrapper, gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    check("slot-" not in proc.group(rank), f"it is in the cgroup {proc.group(rank)}")
    daemons = sleepers()
    check(len(daemons) == 2, f"daemons {daemons}")
    job.wait_noted(daemons)
    victims = [job.shepherd_of(rank), job.launcher, job.pid]
    proc.kill_frozen(*victims)
    eventually(lambda: not any(proc.alive(pid) for pid in daemons), "the daemons' end")
    context.assert_clean(5)


# Each daemon after the one before has been noted.
DAEMONS = """(for number in {1..7}; do
    until [ -e "$HERE/go.$number" ]; do sleep 0.01; done
    setsid env -i /usr/bin/sleep 60$number &
done; wait) & exec "$@" """


@scenario("daemon-late")
def daemon_late(context):
    """What is started on a slot on which nothing has happened for long is noted within five seconds, and ends with the job when all that
    have seen it are killed."""
    mpi = context.mpi("mpich4")
    # That is a quarter of a second then. Were each pause longer than the one before, the seventh would take half a minute.
    job = context.ftrun(mpi, 1, "bash", "-c", DAEMONS, "daemons", context.program(mpi, "places.c"), gates=["app.compute:0"],
                        env={"HERE": context.work}, hurry=20)
    rank = job.at_gate("app.compute", 0)
    for number in range(1, 8):
        (context.work / f"go.{number}").touch()
        found = eventually(lambda: [pid for pid in sleepers() if f"60{number}" in proc.command(pid)], "the daemon")
        job.wait_noted(found, patience=15)
    daemons = sleepers()
    check(len(daemons) >= 7, f"daemons {daemons}")
    proc.kill_frozen(job.shepherd_of(rank), job.launcher, job.pid)
    eventually(lambda: not any(proc.alive(pid) for pid in daemons), "the daemons' end")
    context.assert_clean(5)


@scenario("own-group", each=[{"end": "well"}, {"end": "abort"}], as_root=root.Delegated())
def own_group(context, end):
    """In a delegated cgroup a job recovers, in every world below one of its own, and leaves none, also when it has aborted."""
    mpi = context.mpi("openmpi4")
    own = proc.group(os.getpid())

    def of_the_job(rank):
        group = proc.group(rank)
        return re.fullmatch(rf"{re.escape(own)}/([^/]+)/slot-[^/]+", group) or check(False, f"the rank is in {group}, below {own}")

    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:1", "client.restoring:1"])
    rank = job.at_gate("app.compute", 1)
    first = of_the_job(rank)
    job.kill(rank)
    second = of_the_job(job.at_gate("client.restoring", 1))
    check(first[1] == second[1], f"{first[0]} and {second[0]}")
    job.go("client.restoring", 1)
    job.expect(0)
    check(job.restored == [5], f"restored {job.restored}")
    if end == "abort":
        job = context.ftrun(mpi, 2, context.program(mpi, "ending.c"), "abort", "1", "42")
        job.expect(42)
    left = [name for name in os.listdir(f"/mnt{own}") if os.path.isdir(f"/mnt{own}/{name}")]
    check(not left, f"cgroups are left: {left}")


@scenario("own-group-unread", as_root=root.Delegated())
def own_group_unread(context):
    """When nobody reads what a job printed, its cgroup is gone all the same: SIGKILL of ftrun then leaves none."""
    own = f"/mnt{proc.group(os.getpid())}"
    os.mkfifo(context.work / "pipe")
    read = os.open(context.work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    command = ["bash", "-c", 'exec "$@" >pipe', "bash", context.prefix / "bin/ftrun", "-n", "1", "bash", "-c"]
    job = context.start([*command, "cat /proc/self/cgroup >group; seq 30000; touch printed"])
    groups = lambda: [name for name in os.listdir(own) if os.path.isdir(f"{own}/{name}")]  # noqa: E731
    eventually((context.work / "printed").exists, "the end of the rank")
    check("/slot-0" in (context.work / "group").read_text(), "the job had no cgroup")
    eventually(lambda: len(proc.descendants(job.pid)) == 1 and not groups(), "the end of the job's cgroup")
    job.kill(job.pid)
    job.wait(20)
    os.close(read)
    check(not groups(), f"cgroups are left: {groups()}")


@scenario("own-group-nested", each=[{"end": e} for e in ("well", "kill", "crash")], as_root=root.Delegated())
def own_group_nested(context, end):
    """Groups that a rank makes below its own, and what it puts there, go with the job: at its end, when ftrun is killed, and
    with the next ftrun when all of ftd was."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    inside = (
        "own=/mnt$(sed -n s/^0:://p /proc/self/cgroup); mkdir -p $own/one/two/three $own/one/four; "
        "(echo $BASHPID > $own/one/two/three/cgroup.procs; exec setsid env -i /usr/bin/sleep 600) & exec "
    )
    job = context.ftrun(mpi, 2, "bash", "-c", inside + program, gates=["app.compute:1"], hurry=10)
    rank = job.at_gate("app.compute", 1)
    found = eventually(lambda: len(pids := [p for p in sleepers() if "600" in proc.command(p)]) == 2 and pids, "the daemons")
    check(all(proc.group(pid).endswith("/one/two/three") for pid in found), f"{[proc.group(pid) for pid in found]}")
    if end == "well":
        job.go("app.compute", 1)
        job.expect(0)
    elif end == "kill":
        job.kill_all({"the launcher": job.launcher, "ftrun": job.pid})
    else:
        job.wait_noted([rank])
        kill_all_of_ftd(job)
        context.ftrun(mpi, 2, program).expect(0)
    context.assert_clean(0.5 if end == "well" else 5)
    own = f"/mnt{proc.group(os.getpid())}"

    def left():
        return [name for name in os.listdir(own) if os.path.isdir(f"{own}/{name}")]

    check(end != "well" or not left(), f"cgroups are left: {left()}")
    eventually(lambda: not left(), "the end of the job's cgroup")


# --- directories ---------------------------------------------------------------------------------------------------

@scenario("not-ours")
def not_ours(context):
    """A shepherd removes no directory but its job's, whatever socket it is given; ftrun sweeps none that is not a dead job's,
    whatever it is called and whatever lies in it: another's, or a copy of a job's."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    precious = context.work / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    shepherd = context.prefix / "libexec/ftd/ft-shepherd"
    command = f"exec {shepherd} --slot 0 --socket {precious}/agent.sock --lifeline 3 3< /dev/null"
    subprocess.run(["bash", "-c", command], check=True, timeout=20)
    check((precious / "thesis.tex").exists(), "the shepherd removed a directory that is not its job's")
    job = context.ftrun(mpi, 2, program, gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    directory = job.wait_noted(job.ranks().values())
    uid = os.getuid()
    mine = [context.memory / f"ftd-{uid}-4194305-{word}" for word in ("aaaaaaaa", "bbbbbbbb", "cccccccc")]
    locks = [path.with_name(f"{path.name}.lock") for path in mine]
    mine[0].mkdir()
    (mine[0] / "thesis.tex").touch()
    shutil.copytree(directory, mine[1], ignore=lambda *_: ["agent.sock"])
    check(rank in proc.noted(mine[1]), "the copy has no notes")
    # An empty one of such a name, which a shepherd is given that somebody starts by hand.
    mine[2].mkdir()
    locks[0].touch()
    for lock in locks[1:]:
        shutil.copyfile(directory.with_name(f"{directory.name}.lock"), lock)
    for path in mine:
        command = f"exec {shepherd} --slot 0 --socket {path}/agent.sock --lifeline 3 3< /dev/null"
        subprocess.run(["bash", "-c", command], check=True, timeout=20)
    for number in (2, 2):
        context.ftrun(mpi, number, program).expect(0)
        check(proc.alive(rank) and directory.exists(), "a running job was taken for a dead one")
    kill_all_of_ftd(job)
    context.ftrun(mpi, 2, program).expect(0)
    check(not directory.exists(), "the dead job's directory is left")
    for each, lock in zip(mine, locks):
        check(each.exists() and lock.exists(), f"{each} was removed")
        shutil.rmtree(each)
        lock.unlink()
    context.assert_clean()


STEPS = ("launcher.announced", "launcher.made-directory", "launcher.stated-directory", "job-dir.emptied", "job-dir.removed")


@scenario("half-made", each=[{"at": step, "victim": victim} for step in STEPS for victim in ("launcher", "everything")])
def half_made(context, at, victim):
    """A launcher that is killed between two steps of making its job's directory, or of removing it, leaves nothing: its shepherd
    removes what there is, or the next ftrun."""
    job = context.ftrun(None, 1, "true", gates=[at])
    job.at_gate(at, "-")
    if victim == "everything":
        kill_all_of_ftd(job)
    else:
        job.kill(job.launcher)
        job.wait(10)
    if victim == "everything" or at.startswith("job-dir."):
        left = [line for line in context.left_behind() if line.startswith("file /dev/shm/ftd-")]
        check(left, "nothing was there to be left: nothing is tried")
        again = context.start([context.prefix / "bin/ftrun", "-n", "1", "true"])
        again.expect(0)
        check(again.err == "", again.err)
        context.assert_clean()
    else:
        context.assert_clean(5)


@scenario("half-made-group", each=[{"at": step, "victim": victim} for step in ("announced", "made")
                                   for victim in ("launcher", "everything")], as_root=root.Delegated())
def half_made_group(context, at, victim):
    """The same of its cgroup."""
    job = context.ftrun(None, 1, "true", gates=[f"launcher.{at}-group"])
    job.at_gate(f"launcher.{at}-group", "-")
    own = f"/mnt{proc.group(os.getpid())}"
    groups = lambda: [name for name in os.listdir(own) if os.path.isdir(f"{own}/{name}")]  # noqa: E731
    check(bool(groups()) == (at == "made"), f"groups: {groups()}")
    if victim == "everything":
        kill_all_of_ftd(job)
        check(bool(groups()) == (at == "made"), f"groups: {groups()}")
        context.start([context.prefix / "bin/ftrun", "-n", "1", "true"]).expect(0)
        context.assert_clean()
    else:
        job.kill(job.launcher)
        job.wait(10)
        context.assert_clean(5)
    check(not groups(), f"groups are left: {groups()}")


@scenario("lock-removed", each=[{"victim": v} for v in ("nobody", "ftrun", "everything")])
def lock_removed(context, victim):
    """Somebody cleans up in /dev/shm with `rm -f *` while a job runs: the file beside its directory is gone. The directory is
    removed all the same, by whoever is left to do it."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    directory = job.wait_noted(job.ranks().values())
    directory.with_name(f"{directory.name}.lock").unlink()
    if victim == "nobody":
        job.kill(rank)
        job.expect(0)
        context.assert_clean()
    elif victim == "ftrun":
        job.kill(job.pid)
        job.wait(20)
        context.assert_clean(5)
    else:
        kill_all_of_ftd(job)
        check(directory.exists(), "nothing was there to be left: nothing is tried")
        context.start([context.prefix / "bin/ftrun", "-n", "1", "true"]).expect(0)
        context.assert_clean()


# --- who says that he is whom --------------------------------------------------------------------------------------

@scenario("pid-name-space")
def pid_name_space(context):
    """A rank in a name space of processes of its own, where its number is 1: ftd watches it, and no stranger."""
    mpi = context.mpi("mpich5")
    program = context.program(mpi, "places.c")
    inside = f"exec unshare --user --map-current-user --pid --fork --kill-child {program}"
    job = context.ftrun(mpi, 3, "bash", "-c", f"[ $FT_RANK = 1 ] || exec {program}; {inside}", gates=["app.compute:1"])
    path = job.gate_path("app.compute", 1)
    # It is there a moment before it has something in it.
    eventually(lambda: path.exists() and path.read_text().endswith("\n") or not job.running(), "the rank at its place", 30)
    check(job.running() and path.read_text() == "1\n", f"the rank does not think that it is process 1: {job.err}")
    victim = next(pid for pid in proc.descendants(job.pid)
                  if proc.name(pid).startswith("places") and proc.environ(pid).get("FT_RANK") == "1")
    check(not job.restored, f"it was taken for dead while it lived: {job.err}")
    job.kill(victim, "rank 1")
    job.expect(0, context.reference(mpi, 3, program))
    check(job.restored == [5], f"restored {job.restored}: {job.err}")


@scenario("impostor", each=[{"role": "shepherd"}, {"role": "rank"}])
def impostor(context, role):
    """A process of the same user that is no shepherd of the job receives no arena by saying that it is one; one that has a
    rank's environment, and does not stand below its shepherd, does not join."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    # The true rank has not joined yet: nobody else is it.
    place = "app.compute" if role == "shepherd" else "mpi.before-init"
    job = context.ftrun(mpi, 2, program, gates=["app.compute:1", *({place + ":1"} - {"app.compute:1"})])
    rank = job.at_gate(place, 1)
    environment = proc.environ(rank)
    directory = os.path.dirname(environment["FT_SOCKET"])
    if role == "shepherd":
        read, write = os.pipe()
        shepherd = context.prefix / "libexec/ftd/ft-shepherd"
        other = subprocess.Popen(
            [shepherd, "--slot", "1", "--socket", environment["FT_SOCKET"], "--lifeline", str(read)], pass_fds=[read],
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        for _ in range(40):
            held = proc.descriptors(other.pid)
            check(not any("memfd" in name for name in held), f"it was given {held}")
            time.sleep(0.01)
        os.close(write)
        other.wait(20)
    else:
        environment = {name: value for name, value in environment.items() if not name.startswith("FT_GATE")}
        run = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=20)
        check(run.returncode != 0 and "only what the rank's command has started may join" in run.stderr, run.stderr)
        job.go(place, 1)
        check(job.at_gate("app.compute", 1) == rank, "the true rank is another")
    check(os.path.exists(directory) and proc.alive(rank), "the running job was cleaned up")
    job.kill(rank)
    job.expect(0, context.reference(mpi, 2, program))
    check(job.restored == [5], f"restored {job.restored}")


# Dials, and dials again when it is cut off: as a shepherd of slots that do not exist, or as ranks that do not say which.
FLOOD = peer.HEAD + r"""
def hello(slot, arenas, descriptors):
    return frame({"Hello": {"slot": slot, "pid": os.getpid(), "arenas": [0] * arenas}}, descriptors)

held, null = [], os.open("/dev/null", os.O_RDONLY)
if sys.argv[1] == "slots":
    until = time.monotonic() + 3
    while time.monotonic() < until:
        s = dial(SHEPHERD)
        try:
            for slot in range(1000, 1200):
                socket.send_fds(s, [hello(slot, 1, 1)], [null])
            while time.monotonic() < until:
                s.sendall(hello(2000, 15000, 0))
        except OSError:
            pass
else:
    for number in range(900):
        s = dial(RANK)
        s.settimeout(0.2)
        try:
            if number % 2:
                s.sendall(struct.pack("<I4x", 60 << 10) + bytes(50 << 10))
        except OSError:
            pass
        held.append(s)
print("done", flush=True)
sys.stdin.read()
"""


@scenario("impostor-flood", each=[{"what": "slots"}, {"what": "connections"}])
def impostor_flood(context, what):
    """A process of the same user that dials the agent again and again, or says that it is the shepherd of many slots, fills
    neither the agent's memory nor its descriptors; this is said, and not again and again; and the job recovers meanwhile."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 2, program, gates=["app.compute:1"])
    rank, agent = job.at_gate("app.compute", 1), job.one("ft-agent")
    before = proc.resources(agent)
    other = subprocess.Popen(
        ["/usr/bin/python3", "-c", FLOOD, what], env={"FT_SOCKET": proc.environ(rank)["FT_SOCKET"]}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    most, deadline = dict(before), time.monotonic() + 30
    os.set_blocking(other.stdout.fileno(), False)
    while not other.stdout.read():
        check(other.poll() is None and time.monotonic() < deadline, "it does not come to its end")
        now = proc.resources(agent)
        most = {name: max(most[name], now[name]) for name in most}
        time.sleep(0.02)
    print(f"{before}, at most {most}")
    job.kill(rank)
    job.expect(0, context.reference(mpi, 2, program))
    other.stdin.close()
    other.wait(20)
    check(most["private_kb"] < before["private_kb"] + 40_000, f"the agent had {most['private_kb']} kB")
    check(most["descriptors"] < before["descriptors"] + 150, f"the agent had {most['descriptors']} descriptors")
    said = job.err.count("a process of this user is cut off: ")
    check(1 <= said <= 8, f"it was said {said} times: {job.err}")
    check(job.restored == [5], f"restored {job.restored}")


# --- what cannot be killed -----------------------------------------------------------------------------------------

def unkillable(context, end):
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    stop, pid_file = context.work / "stop", context.work / "pid"
    start = f"{context.scratch}/build/{root.program_name()} {stop} > /dev/null 2>&1 < /dev/null & echo $! > {pid_file}"
    command = f"if [ $FT_RANK = 1 ]; then {start}; fi; exec {program}"
    job = context.ftrun(mpi, 2, "bash", "-c", command, gates=["app.compute:1"], hurry=10)
    try:
        rank = job.at_gate("app.compute", 1)
        pid = int(pid_file.read_text())
        eventually(lambda: is_anothers(pid), "the program that becomes root's")
        if end == "well":
            job.go("app.compute", 1)
        else:
            job.kill(rank if end == "recovery" else job.shepherd_of(rank))
        begun = time.monotonic()
        status = job.wait(25)
        # A tenth of 30 s, of which the time that ftrun then takes to end is no part.
        said = {"recovery": "are still there 3.0 s after SIGKILL", "shepherd": "is still there 3 s after SIGKILL", "well": ""}
        check(said[end] in job.err, job.err)
        check(end == "well" or time.monotonic() - begun >= 3, f"given up after {time.monotonic() - begun:.1f} s")
        check(is_anothers(pid), "it ended by itself")
        check(status == (0 if end == "well" else 1), f"status {status}: {job.err}")
        name = "" if os.path.exists(f"/proc/{pid}") else " and cannot be looked at (hidepid)"
        shown = "" if name else f" ({root.program_name()})"
        sentence = f"still there after SIGKILL, and left: process {pid}{shown}, which belongs to another user (EPERM){name}"
        check(job.err.count(sentence) == 1, job.err)
    finally:
        stop.touch()
    # An orphan becomes this process's child; ftrun's own end is waited for elsewhere.
    eventually(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "its end")
    return name


def is_anothers(pid):
    """Lives, or has not been waited for, and this user may not signal it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.path.exists(f"/proc/{pid}") or proc.alive(pid)
    except ProcessLookupError:
        pass
    return False


ENDS = [{"end": "recovery"}, {"end": "shepherd"}, {"end": "well"}]


@scenario("unkillable/plain", each=ENDS, as_root=root.Unkillable())
def unkillable_plain(context, end):
    """A child that became another user's (set-user-id) cannot be killed: the job does not hang but ends, in bounded time,
    with a sentence that names it; a job that was over keeps its status."""
    check(not unkillable(context, end), "/proc hides it")


@scenario("unkillable/hidden", each=ENDS, as_root=root.Unkillable(hidden=True))
def unkillable_hidden(context, end):
    """The same where `/proc` does not show it (`hidepid=2`): what cannot be seen is not taken for gone."""
    check(unkillable(context, end), "/proc shows it")


@scenario("leaves-early", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def leaves_early(context, mpi):
    """What ftrun has started leaves well before its program joins, as setsid does: the program is the rank all the same, as under
    mpirun, is recovered, and its end is the rank's."""
    mpi = context.mpi(mpi)
    ending, places = context.program(mpi, "ending.c"), context.program(mpi, "places.c")
    for wrapper in (["setsid"], ["bash", "-c", '"$@" & exit 0', "-"], ["bash", "-c", 'setsid bash -c \'"$@"; exit $?\' - "$@"', "-"]):
        job = context.ftrun(mpi, 2, *wrapper, ending, "ok")
        job.expect(0)
        check(job.output.results == ["of ending"] and job.err == "", f"{wrapper}: {job.output.text}{job.err}")
    # So late that its wrapper's end has counted.
    job = context.ftrun(mpi, 2, "bash", "-c", '(sleep 1.5; "$0" ok) & exit 0', ending, hurry=4)
    check(job.wait(30) == 1 and job.output.results == [], f"{job.output.text}{job.err}")
    check(re.search(r"^ftrun: .*process \d+ of rank \d calls MPI_Init after what ftrun started for it has ended", job.err, re.M), job.err)
    # Nobody waits then for others who were left behind, though they could print.
    job = context.ftrun(mpi, 2, "bash", "-c", 'sleep 1000 & (sleep 1.5; "$0" ok) & exit 0', ending, hurry=4)
    check(job.wait(30) == 1 and "calls MPI_Init after" in job.err and "killed" not in job.err, f"{job.output.text}{job.err}")
    # So late, while the other one waits for it: no other world would be better. Nobody waits for it.
    later = '([ $FT_RANK = 0 ] || sleep 1000; "$0" ok) & exit 0'
    job = context.ftrun(mpi, 2, "bash", "-c", later, ending, hurry=4)
    check(job.wait(30) == 1 and job.output.results == [], f"{job.output.text}{job.err}")
    check(re.search(r"^ftrun: rank 1 .*cannot be started: what ftrun started for it has ended, .* others wait in MPI_Init", job.err, re.M)
          and "epoch" not in job.err and "killed" not in job.err and len(job.err.splitlines()) == 1, job.err)
    job = context.ftrun(mpi, 2, "setsid", ending, "exit", "1", "7")
    check(job.wait(30) == 7, f"{job.err}")
    job = context.ftrun(mpi, 3, "setsid", places, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0, context.reference(mpi, 3, places))
    check(job.restored == [5], f"restored {job.restored}")


@scenario("leaves-others")
def leaves_others(context):
    """What is left behind and has no MPI does not hold up the job's end, and its own end says nothing."""
    job = context.ftrun(None, 2, "bash", "-c", "sleep 1000 >/dev/null 2>&1 & (sleep 0.05; exit 5) & echo done; exit 0", hurry=10)
    job.expect(0)
    check(job.output.text == "done\n" * 2 and job.err == "", f"{job.output.text}{job.err}")
    job = context.ftrun(None, 2, "bash", "-c", "sleep 1000 >/dev/null 2>&1 & exit 3")
    check(job.wait(10) == 3, job.err)


@scenario("proc-subset")
def proc_subset(context):
    """`/proc` may show nothing but processes, as in a hardened container (`subset=pid`): a job runs and checkpoints there all the
    same. (MPICH with UCX does not start there, nor does it without ftd.)"""
    mpi = context.mpi("openmpi4")
    program = context.program(mpi, "places.c")
    reference = context.reference(mpi, 2, program)
    inside = f'mount -t proc -o subset=pid none /proc && [ ! -e /proc/meminfo ] && "$@"; exit $?'
    ftrun = [str(context.prefix / "bin" / "ftrun"), "-n", "2", "--ft=reinit", program]
    job = context.start(["unshare", "-Urmpf", "bash", "-c", inside, "inside", *ftrun], mpi=mpi)
    job.expect(0, reference)
    check(job.err == "", job.err)
