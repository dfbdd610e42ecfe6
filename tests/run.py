#!/usr/bin/python3
"""Runs ftd's scenarios: real MPI jobs under ftrun, killed at named places.

    tests/run.py [options] [PATTERN …]      a pattern is part of a scenario's name, or a shell pattern

As root it drops to the ordinary user `ftdtest`, and gives every scenario that is not public a /dev/shm of its own. It installs what
`cargo build --release` made into a scratch directory and tests that installation. Standard library only.
"""

import argparse
# What is only imported when it is needed cannot be, by the ordinary user, where root has a Python of its own that nobody else may read.
import encodings.idna  # noqa: F401
import faulthandler
import fcntl
import fnmatch
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import job, proc, registry, root, standstill, summary  # noqa: E402

SKIPPED = 77
# A scenario's second run.
AGAIN = ".again"
# Held by whoever runs a public scenario: it compares what is in the machine's shared memory before and after.
PUBLIC = "/tmp/ftd-tests-public.lock"


# The words with which a scenario skips that only root can run, as docs/SPECIFICATION.md has them.
NOT_ROOT = "not run as root"
NO_MEMORY_CGROUP = "there is no memory cgroup to be had"


def allowed_skips():
    """(scenario, reason) of the skips that docs/SPECIFICATION.md allows."""
    text = (HERE.parent / "docs" / "SPECIFICATION.md").read_text()
    return set(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", text.partition("## Skips that are allowed")[2], re.M))


def may_skip(name, reason):
    """Whether a scenario, or all of its family, may be skipped for that."""
    return any(reason == allowed and fnmatch.fnmatchcase(name, pattern) for pattern, allowed in allowed_skips())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="run only scenarios whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the selected scenarios and end")
    parser.add_argument("--soak", action="store_true", help="the full product of matrix.toml instead of its pairs, and chaos")
    parser.add_argument("--jobs", type=int, default=3, help="scenarios at a time (default %(default)s)")
    parser.add_argument("--prefix", help="test this installation instead of the build in the target directory")
    parser.add_argument("--keep", action="store_true", help="keep the scratch directory")
    parser.add_argument("--repeat", type=int, default=1, help="run each scenario so many times")
    return parser.parse_args()


def prepare(options):
    """The scratch directory: installation under test, sources of the programs, room for the scenarios."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="ftd-tests-", dir="/tmp"))
    scratch.chmod(0o755)
    for directory in ("build", "run", "src"):
        (scratch / directory).mkdir()
    shutil.copytree(HERE / "programs", scratch / "src" / "programs")
    shutil.copytree(HERE.parent / "examples", scratch / "src" / "examples")
    shutil.copytree(HERE.parent / "docs", scratch / "src" / "docs")
    for name in ("README.md", "Makefile", "Cargo.toml"):
        shutil.copy(HERE.parent / name, scratch / "src")
    (scratch / "src" / "scripts").mkdir()
    shutil.copy(HERE.parent / "scripts" / "demo.py", scratch / "src" / "scripts")
    prefix = options.prefix
    if prefix is None:
        prefix = scratch / "prefix"
        install = subprocess.run(
            ["make", "--no-print-directory", "-C", str(HERE.parent), "install", f"PREFIX={prefix}"],
            capture_output=True, text=True,
        )
        if install.returncode != 0:
            sys.exit(f"tests/run.py: cannot install what was built (was `make` run?):\n{install.stdout}{install.stderr}")
    return scratch, pathlib.Path(prefix).resolve()


def ordinary_user():
    """(uid, gid, home) to run as, or None when this is an ordinary user already."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("ftdtest")
    except KeyError:
        sys.exit("tests/run.py: there is no user 'ftdtest'; run scripts/install-deps.sh test")
    return entry


def drop(entry):
    """Becomes the ordinary user, for good."""
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def run_scenario(scenario, label, scratch, prefix, user, log):
    """Body of a scenario's process; never returns."""
    status = 1
    try:
        os.setsid()
        proc.die_with_parent()
        proc.become_subreaper()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        if not scenario.public:
            proc.private_shm()
        limited = scenario.memory_mb is None or (user is not None and proc.limit_memory(scenario.memory_mb) is not None)
        # Only `False` is a no.
        prepared = scenario.as_root is None or (user is not None and scenario.as_root.prepare(scratch, user) is not False)
        if scenario.cluster and user is not None:
            root.surround_cluster()
        elif user is not None:
            drop(user)
            # A change of user clears the death signal.
            proc.die_with_parent()
        os.umask(0o022)
        # The source tree may lie where the ordinary user cannot go.
        os.chdir(scratch)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Under nohup it is ignored, and what inherits that is to ignore it as well.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        context = job.Context(label, scratch, prefix, scenario.public, scenario.memory_mb is not None)
        # Where it stands when its time is over, for whoever reads of a hang. It is a thread, and there are none in `unshare`.
        faulthandler.dump_traceback_later(scenario.timeout - 0.5, file=log)
        try:
            if scenario.cluster and user is None:
                raise job.Skipped(NOT_ROOT)
            if not limited:
                raise job.Skipped(NOT_ROOT if user is None else NO_MEMORY_CGROUP)
            if not prepared:
                raise job.Skipped(NOT_ROOT if user is None else NO_MEMORY_CGROUP)
            scenario.function(context, **scenario.parameters)
            context.assert_clean()
            status = 0
        except job.Skipped as reason:
            print(f"skipped: {reason}")
            status = SKIPPED
        except BaseException as error:  # noqa: B036: whatever it is, the log must say it
            print(summary.explain(error, context.jobs))
        context.close()
    except BaseException:  # noqa: B036
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def take_machine():
    """The lock without which nothing runs in the machine's own shared memory; None while somebody else has it."""
    lock = open(PUBLIC, "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


# So many scenarios more than `--jobs` run at a time while they leave two fifths of the processors idle.
MORE = 5
# So many scenarios may have met Open MPI's own crash.
MOST_AGAIN = 2
# Of a whole run, so many scenarios that have failed are run again, so many times each, with nothing beside them. Who passes them all
# is told as shaky in the closing lines, and does not make the run a failed one.
MOST_SHAKY, ALONE = 2, 5
# Those that failed while the machine itself stood still (tests/harness/standstill.py) are run again in the same way, and are not counted
# among the shaky: they have shown nothing. So many of a whole run.
MOST_STILL = 12


def crashed_by_itself(log):
    """Whether Open MPI 4.1.4 crashed in a scenario without anybody's doing, as it does in some of thousands of MPI_Init here
    (docs/decisions/test-harness.md): one failure more than the scenario reckons with."""
    crashed = ".openmpi4" in log and "*** Process received signal ***" in log and "Signal: Segmentation fault" in log
    # Not where the instruction was one of ftd's.
    in_ftd = r"\[ [0-2]\] \S*(libft_preload|libftd_client|ft-pmix|ft-ship|ft-agent|ft-shepherd)"
    return crashed and not re.search(in_ftd, log)


def is_broken(log):
    """Whether what ftd promises of a job's safety was broken (`job.Broken`): that it holds another time is no answer."""
    return re.search(r"^BROKEN: ", log, re.M) is not None


class Running:
    """A scenario that runs; `machine` is the lock of a public one."""

    def __init__(self, scenario, label, scratch, prefix, user, machine):
        self.scenario = scenario
        self.machine = machine
        self.label = label
        self.log_path = scratch / "run" / f"{label.replace('/', '_')}.log"
        self.started, self.computed = time.monotonic(), 0.0
        sys.stdout.flush()
        with open(self.log_path, "wb") as log:
            self.pid = os.fork()
            if self.pid == 0:
                run_scenario(scenario, label, scratch, prefix, user, log)

    def last_words(self):
        """The last line of its log."""
        return self.log_path.read_text(errors="replace").strip().splitlines()[-1]

    def poll(self):
        """None while it runs, else (verdict, seconds). Ends it when its time is over."""
        seconds = time.monotonic() - self.started
        pid, status, used = os.wait4(self.pid, os.WNOHANG)
        if pid != 0:
            # Its own and that of all below it, for it is the subreaper.
            self.computed = used.ru_utime + used.ru_stime
            if self.scenario.memory_mb is not None:
                proc.drop_memory_limits(self.pid)
            if self.scenario.as_root is not None and os.geteuid() == 0:
                self.scenario.as_root.undo(self.pid)
            verdict = {0: "ok", SKIPPED: "skip"}.get(os.waitstatus_to_exitcode(status), "FAIL")
            if verdict == "skip" and not may_skip(self.scenario.name, self.last_words().partition("skipped: ")[2]):
                verdict = "FAIL"
            return verdict, seconds
        if seconds < self.scenario.timeout:
            return None
        with open(self.log_path, "a") as log:
            log.write(f"HANG: not over after {self.scenario.timeout} s; processes:\n{proc.describe(self.pid)}\n")
            for path in sorted((self.log_path.parent / self.label.replace("/", "_")).glob("job*.*")):
                if path.is_file():
                    log.write(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}\n")
        # The scenario's process is the subreaper of all it started: below it they are all found.
        os.kill(self.pid, signal.SIGSTOP)
        proc.kill_tree(self.pid, also_root=True)
        os.waitpid(self.pid, 0)
        return "HANG", seconds


class Processors:
    """How much of the machine was idle of late."""

    SPAN = 0.5

    def __init__(self):
        self.at, self.times, self.idle = time.monotonic(), self.read(), 0.0

    @staticmethod
    def read():
        with open("/proc/stat") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
        return sum(times), times[3] + times[4]

    def are_idle(self):
        """Whether two fifths of it were."""
        if time.monotonic() - self.at >= self.SPAN:
            now = self.read()
            self.idle = (now[1] - self.times[1]) / max(1, now[0] - self.times[0])
            self.at, self.times = time.monotonic(), now
        return self.idle > 0.4


class Crowd:
    """Runs scenarios, several at a time, and keeps what became of them."""

    def __init__(self, options, scratch, prefix, user, jobs, watch):
        self.options, self.scratch, self.prefix, self.user, self.jobs, self.watch = options, scratch, prefix, user, jobs, watch
        self.todo, self.running, self.failures = [], [], []
        # Of the labels of those that failed meanwhile: what of the machine stood still.
        self.still = {}
        self.processors, self.started = Processors(), 0.0
        self.counts, self.again = {"ok": 0, "FAIL": 0, "HANG": 0, "skip": 0}, 0

    def run(self, todo):
        """All of these (scenario, label)."""
        # Long ones first: they do not then stand alone at the end.
        self.todo = sorted(todo, key=lambda entry: -entry[0].timeout)
        try:
            while self.todo or self.running:
                self.start()
                for entry in list(self.running):
                    ended = entry.poll()
                    if ended is not None:
                        self.ended(entry, *ended)
                time.sleep(0.01)
        finally:
            for entry in self.running:
                proc.kill_tree(entry.pid, also_root=True)

    def start(self):
        # Most of a scenario's time is waiting: three keep two cores busy, and where they do not there is room for more, one after
        # the other. Those that ask for the whole machine have it.
        takes = lambda scenario: 1 if scenario.weight == 1 else self.jobs + MORE
        busy = sum(takes(r.scenario) for r in self.running)
        more = self.jobs > 1 and self.processors.are_idle() and time.monotonic() - self.started > Processors.SPAN
        room = min(self.jobs + MORE, max(self.jobs, len(self.running) + 1)) if more else self.jobs
        # Short ones fill what the long ones leave idle.
        for entry in list(self.todo) if busy < self.jobs else self.todo[::-1]:
            scenario, label = entry
            if self.running and busy + takes(scenario) > room:
                break
            machine = take_machine() if scenario.public else None
            if scenario.public and machine is None:
                continue
            self.todo.remove(entry)
            self.running.append(Running(scenario, label, self.scratch, self.prefix, self.user, machine))
            busy, self.started = busy + takes(scenario), time.monotonic()

    def ended(self, entry, verdict, seconds):
        self.running.remove(entry)
        if entry.machine is not None:
            entry.machine.close()
        log = entry.log_path.read_text(errors="replace") if verdict in ("FAIL", "HANG") else ""
        if verdict == "FAIL" and not entry.label.endswith(AGAIN) and self.again < MOST_AGAIN and crashed_by_itself(log) and not is_broken(log):
            self.again += 1
            print(f"     {entry.label}: Open MPI 4.1.4 crashed by itself ({seconds:.1f} s)", flush=True)
            print("    " + log.replace("\n", "\n    "), flush=True)
            self.todo.insert(0, (entry.scenario, entry.label + AGAIN))
            return
        self.counts[verdict] += 1
        print(f"{verdict:4} {entry.label} ({seconds:.1f} s, {entry.computed:.1f} of processor)", flush=True)
        if log:
            self.failures.append((verdict, entry.label, log, entry.scenario))
            print("    " + log.replace("\n", "\n    "), flush=True)
            still = self.watch.between(entry.started, time.monotonic())
            if still:
                self.still[entry.label] = still
                print(f"    the machine stood still meanwhile: {still}", flush=True)
        elif verdict == "skip":
            print("    " + entry.last_words(), flush=True)
        elif not self.options.keep:
            # Three members of etcd alone make room for 200 MB.
            shutil.rmtree(job.place_of(self.scratch, entry.label), ignore_errors=True)


def may_be_chance(crowd):
    """Whether so few have failed that they are run again alone."""
    still = len(crowd.still)
    return bool(crowd.failures) and len(crowd.failures) - still <= MOST_SHAKY and still <= MOST_STILL


def fail_alone(crowd):
    """Which of the failed scenarios fail again with nothing beside them, and which do not (`ALONE`). Who was broken has failed."""
    alone = Crowd(crowd.options, crowd.scratch, crowd.prefix, crowd.user, 1, crowd.watch)
    print("=== what failed, once more and alone ===", flush=True)
    alone.run([(scenario, f"{label}.alone{n}") for _, label, log, scenario in crowd.failures if not is_broken(log) for n in range(1, ALONE + 1)])
    broken = {scenario for *_, scenario in alone.failures} | {scenario for *_, log, scenario in crowd.failures if is_broken(log)}
    return [f for f in crowd.failures if f[3] in broken], [f for f in crowd.failures if f[3] not in broken]


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scenarios = registry.load(HERE, options.soak)
    if options.patterns:
        scenarios = [
            s for s in scenarios if any(p in s.name or fnmatch.fnmatch(s.name, p) for p in options.patterns)
        ]
    if options.list:
        for scenario in scenarios:
            print(scenario.name)
        return 0
    if not scenarios:
        sys.exit("tests/run.py: no scenario has such a name")
    user = ordinary_user()
    scratch, prefix = prepare(options)
    if user is not None:
        for path in [scratch, *(scratch / d for d in ("build", "run"))]:
            os.chown(path, user.pw_uid, user.pw_gid)
    print("=== scenarios ===", flush=True)
    watch = standstill.Watch(scratch)
    crowd, shaky = Crowd(options, scratch, prefix, user, options.jobs, watch), []
    failed = []
    try:
        crowd.run([(s, s.name if options.repeat == 1 else f"{s.name}#{n}") for s in scenarios for n in range(options.repeat)])
        failed = crowd.failures
        if not options.patterns and options.repeat == 1 and may_be_chance(crowd):
            failed, shaky = fail_alone(crowd)
    finally:
        watch.close()
        if crowd.failures or options.keep:
            print(f"scratch directory kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    closing_lines(crowd, failed, shaky)
    return 1 if failed else 0


def closing_lines(crowd, failed, shaky):
    """Nothing stands below this: of a long log only the end may be seen."""
    if crowd.failures:
        print("\n".join(summary.what_failed([failure[:3] for failure in failed + shaky])))
    for _, label, *_ in shaky:
        if label in crowd.still:
            print(f"STILL {label}: failed while the machine stood still ({crowd.still[label]}), and {ALONE} times not alone")
        else:
            print(f"SHAKY {label}: failed beside others, and {ALONE} times not alone; that is a defect, of ftd or of the test: find it")
    counts, failures = crowd.counts, len(failed)
    skipped = f", {counts['skip']} skipped" if counts["skip"] else ""
    twice = f", {crowd.again} run again after Open MPI's own crash" if crowd.again else ""
    once = f", {len(shaky)} shaky" if shaky else ""
    print(f"{counts['ok']} passed, {failures} failed{once}{skipped}{twice}")


if __name__ == "__main__":
    sys.exit(main())
