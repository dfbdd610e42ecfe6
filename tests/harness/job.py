"""What a scenario works with: programs, jobs under ftrun, gates, and what must hold afterwards."""

import fcntl
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time

from . import mpis, proc


# When ftrun returns everything is gone. The kernel may still be letting go of the dead: of the memory of a rank that
# was killed last, and of the segments that go with their last user.
LETTING_GO = 0.5

# Scenarios that keep the preload from a program's MPI.
UNSEEN = ("jobs-of-one", "wrong-mpi", "plug-in-untold")


class Failed(Exception):
    """A scenario's assertion did not hold; the message says which."""


class Broken(Failed):
    """What ftd promises of a job's safety was broken, or was not seen to be kept: no other run of the scenario can show that it was."""


class Skipped(Exception):
    """The scenario cannot run here; the message says why."""


def check(condition, message):
    """The harness's assert: also under `python -O`, and always with a message."""
    if not condition:
        raise Failed(message)


def holds(condition, message):
    """`check` of what ftd promises of a job's safety."""
    if not condition:
        raise Broken(message)


def place_of(scratch, name):
    """Where a scenario works."""
    return pathlib.Path(scratch) / "run" / re.sub(r"[^\w.-]", "_", name)


class Context:
    """One scenario's surroundings: directories of its own, and the installation under test."""

    def __init__(self, name, scratch, prefix, public, limited=False):
        """`limited`: there is a limit of memory around all this."""
        self.name = name
        self.limited = limited
        self.scratch = pathlib.Path(scratch)
        self.prefix = pathlib.Path(prefix)
        self.public = public
        self.dir = place_of(scratch, name)
        self.work = self.dir / "work"
        self.tmp = self.dir / "tmp"
        for directory in (self.work, self.tmp):
            directory.mkdir(parents=True)
        # Private, but for a public scenario.
        self.memory = pathlib.Path("/dev/shm")
        if public and proc.has_dead_jobs():
            # Tests that were ended themselves left them. The next job of their user removes them, and this is not about that.
            print("there are directories of dead jobs: a job removes them first")
            subprocess.run([self.prefix / "bin" / "ftrun", "-n", "1", "true"], env=self.env(None, {}), timeout=30, check=True)
        # What others run here at the same time ends when it likes, with what is theirs: also between two of these looks.
        others = (lambda: proc.of_other_jobs(set()) | proc.in_use(set())) if public else set
        makers = (lambda: proc.made_by_others(set())) if public else set
        self.of_others, self.segments_of_others = others(), makers()
        self.shared_before = proc.shared_files()
        self.segments_before = proc.segments()
        if self.shared_before:
            self.of_others |= others()
        self.segments_of_others |= makers()
        self.jobs = []

    # --- programs -------------------------------------------------------------------------------------------------

    def mpi(self, name):
        """An MPI by name; skips the scenario when it is not installed."""
        mpi = mpis.ALL[name]
        if not mpi.available():
            raise Skipped(f"{name} is not installed")
        return mpi

    def program(self, mpi, source):
        """The compiled program; compiled once per MPI and run of the tests."""
        path = pathlib.Path(source)
        target = self.scratch / "build" / f"{path.stem}.{mpi.name}{'.f' if path.suffix == '.f90' else ''}"
        with open(f"{target}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                include, lib = self.prefix / "include", self.prefix / "lib"
                library = ["-L", str(lib), f"-Wl,-rpath,{lib}", "-lftd_client"]
                found = next(f for f in (self.scratch / "src").rglob(path.name))
                temporary = f"{target}.new"
                if path.suffix == ".f90":
                    modules = self.scratch / "build" / f"modules.{mpi.name}"
                    modules.mkdir(exist_ok=True)
                    command = [mpi.fc, "-O2", "-J", str(modules), str(include / "ft.f90"), str(found)]
                else:
                    command = [mpi.cc, "-O2", "-g", "-Wall", "-I", str(include), "-I", str(found.parent), str(found)]
                    if "ft.h" not in found.read_text().replace("gate.h", ""):
                        library = []
                    if "pmix.h" in found.read_text():
                        command += [f"-I{headers}" for headers in pathlib.Path("/usr/lib").glob("*/pmix2/include")] + ["-ldl"]
                run = subprocess.run(
                    [*command, "-o", temporary, *library, "-lm"], capture_output=True, text=True, env=self.env(mpi, {})
                )
                check(run.returncode == 0, f"{source} does not compile for {mpi}: {run.stderr}")
                os.rename(temporary, target)
        return str(target)

    # --- running --------------------------------------------------------------------------------------------------

    def env(self, mpi, extra):
        """A small, known environment."""
        env = {
            "PATH": f"{self.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.dir),
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            # Scenarios see by what is printed which world is there and how far it is; `once` is for those that are about it.
            "FT_OUTPUT": "all",
            **({"FT_LOG": os.environ["FT_LOG"]} if "FT_LOG" in os.environ else {}),
        }
        env.update(mpi.env if mpi else {})
        env.update({key: str(value) for key, value in extra.items() if value is not None})
        return env

    def ftrun(self, mpi, size, *command, options=(), ft="reinit", env=None, gates=(), stdin=None, cwd=None, hurry=1, on=None):
        """Starts `ftrun -n size --ft=… options command`. `hurry` divides all of ftd's waits. `on`: on this node, as the ordinary
        user."""
        argv = [str(self.prefix / "bin" / "ftrun")]
        if size is not None:
            argv += ["-n", str(size)]
        if ft is not None:
            argv += [f"--ft={ft}"]
        return self.start([*argv, *options, *command], mpi=mpi, env=env, gates=gates, stdin=stdin, cwd=cwd, hurry=hurry, on=on)

    def script(self, text, *arguments, **options):
        """Starts a bash script as a job: what a user has around `ftrun`, a batch script with background children for
        example. `$FTRUN` is the installed one."""
        path = self.work / f"script{len(self.jobs)}.sh"
        path.write_text(f"FTRUN={self.prefix}/bin/ftrun\n{text}")
        return self.start(["/bin/bash", str(path), *map(str, arguments)], **options)

    def start(self, argv, mpi=None, env=None, gates=(), stdin=None, cwd=None, hurry=1, on=None):
        """Starts any command line as a job."""
        env = {**(env or {}), **({"FT_TEST_TIME_SCALE": hurry} if hurry != 1 else {})}
        job = Job(self, len(self.jobs), argv, mpi, env, gates, stdin, cwd, on)
        self.jobs.append(job)
        return job

    def reference(self, mpi, size, *command, env=None, on=None):
        """The undisturbed result of a program, from the MPI's own launcher; computed once per run of the tests. `on`: on this node."""
        key = re.sub(r"[^\w.-]", "_", "_".join([mpi.name, str(size), *command, *sorted(map(str, (env or {}).items()))]))
        path = self.scratch / "build" / f"reference.{'' if on is None else 'nodes.'}{key[-150:]}"
        command, env = mpi.mpiexec(size, *command), self.env(mpi, env or {})
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                if on is None:
                    run = subprocess.run(
                        command, env=env, cwd=self.work, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
                    )
                    status, out, err = run.returncode, run.stdout, run.stderr
                else:
                    status, out, err = on.run(*command, user=on.cluster.user, env=env, cwd=self.work, patience=60)
                check(status == 0, f"the undisturbed run of {command} fails: {err}")
                path.write_text(out)
        return Output(path.read_text())

    # --- afterwards -----------------------------------------------------------------------------------------------

    def assert_clean(self, patience=LETTING_GO):
        """No process, socket, shared memory or file is left of any job of this scenario. `patience` is for a killed
        ftrun only, behind which others clean up."""
        deadline = time.monotonic() + patience
        gone = self.untouched()
        check(not gone, "was there before, and is gone:\n" + "\n".join(gone))
        while True:
            left = self.left_behind()
            if not left:
                return
            if time.monotonic() > deadline:
                raise Failed("left behind:\n" + "\n".join(left))
            time.sleep(0.05)

    def left_behind(self):
        """What is left of this scenario's jobs, one line each."""
        left = []
        me = os.getpid()
        for pid in proc.descendants(me):
            # Orphans become this process's children (it is a subreaper): their bodies are no leak of ftd.
            if proc.alive(pid):
                left.append(f"process {pid}: {proc.command(pid) or proc.name(pid)}")
            else:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
        for where, directories, files in os.walk(self.tmp):
            left += [f"file {where}/{name}" for name in sorted(directories + files)]
        new = sorted(proc.shared_files() - self.shared_before)
        mine = {me, *proc.descendants(me)}
        others = proc.of_other_jobs(mine) | proc.in_use(mine) if self.public and new else set()
        left += [f"file {path}" for path, _ in new if not proc.is_below(path, others) and not self.is_probe(path)]
        known = self.segments_before.keys() | (proc.made_by_others(mine) if self.public else set())
        segments = [line for id, line in proc.segments().items() if id not in known]
        left += [f"segment {line}" for line in segments if not self.is_of_nobody(line)]
        return left

    def is_of_nobody(self, line):
        """An MPI makes System V memory while it is loaded and in MPI_Init: some pages, and UCX pools of four megabytes. Where the
        scenario takes the preload away nobody notes it, and a process that is ended at that moment leaves it (guide: what the
        preload does not see)."""
        key, _, _, size, creator, _, attached, *_ = line.split()
        of_nobody = (key, attached) == ("0", "0") and not proc.alive(int(creator))
        return self.name.startswith(UNSEEN) and of_nobody and int(size) <= 8 << 20

    def is_probe(self, path):
        """Likewise: Open MPI 4 tries out shared memory with a file that it removes at once."""
        return self.name.startswith(UNSEEN) and path == "/dev/shm/open_mpi.0000"

    def untouched(self):
        """What a job must leave alone: all that was in shared memory before it is there still, but for what others had in use."""
        gone = [path for path, _ in sorted(self.shared_before - proc.shared_files()) if not proc.is_below(path, self.of_others)]
        segments = {id: line for id, line in self.segments_before.items() if id not in self.segments_of_others}
        return gone + [f"segment {line}" for id, line in segments.items() if id not in proc.segments()]

    def close(self):
        """Ends and removes what this scenario has left."""
        proc.kill_tree(os.getpid(), also_root=False)


class Output:
    """The output of a program: `step K hash H` lines, `result H`, `restored V`."""

    def __init__(self, text):
        self.text = text

    @property
    def steps(self):
        """(step, hash) in the order in which they were printed."""
        return [(int(step), value) for step, value in re.findall(r"^(?:\S+ )?step (\d+) hash (\w+)$", self.text, re.M)]

    @property
    def results(self):
        """Every `result` line."""
        return re.findall(r"^result (.+)$", self.text, re.M)

    @property
    def starts(self):
        """Per world: the version that its rank 0 restored, None for a fresh start."""
        found = re.findall(r"^(?:restored (\d+)|restarted from version (\d+)|(fresh)\b.*)$", self.text, re.M)
        return [None if fresh else int(a or b) for a, b, fresh in found]


class Job:
    """A running command line, normally ftrun."""

    def __init__(self, context, number, argv, mpi, env, gates, stdin, cwd, on):
        self.context = context
        self.mpi = mpi
        self.argv = argv
        self.out_path = context.dir / f"job{number}.out"
        self.err_path = context.dir / f"job{number}.err"
        self.gate_dir = context.dir / f"job{number}.gates"
        self.gate_dir.mkdir()
        environment = {"FT_GATE": ",".join(gates)} if gates else {}
        if gates or "FT_TEST_TIME_SCALE" in env:
            environment["FT_GATE_DIR"] = str(self.gate_dir)
        environment = context.env(mpi, {**environment, **env})
        print(f"+ {' '.join(map(str, argv))}" + (f"   FT_GATE={','.join(gates)}" if gates else ""), flush=True)
        self.started = time.monotonic()
        self.on = on
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            streams = {"stdout": out, "stderr": err, "stdin": subprocess.DEVNULL if stdin is None else stdin}
            argv, cwd = [str(word) for word in argv], cwd or context.work
            if on is None:
                first = proc.first_for_memory if context.limited else None
                self.process = subprocess.Popen(argv, env=environment, cwd=cwd, start_new_session=True, preexec_fn=first, **streams)
                self.pid = self.process.pid
            else:
                on.cluster.give(self.gate_dir)
                started = on.start(*argv, user=on.cluster.user, env=environment, cwd=cwd, **streams)
                self.process, self.pid = started.process, started.pid

    # --- what it says ---------------------------------------------------------------------------------------------

    @property
    def output(self):
        """Its standard output so far."""
        return Output(self.out_path.read_text(errors="replace"))

    @property
    def err(self):
        """Its standard error so far."""
        return self.err_path.read_text(errors="replace")

    @property
    def restored(self):
        """What ftd's recovery blocks say was restored: versions, None for "without a checkpoint"."""
        found = re.findall(r"^\S*\s*(?:restored\s+version (\d+)|restarted\s+(?:from the beginning|without a checkpoint):)", self.err, re.M)
        return [int(version) if version else None for version in found]

    @property
    def recoveries(self):
        """Per recovery block: the world that it is about and the version that was restored, None for none."""
        found = re.findall(
            r"^ftd: recovery, epoch \d+, world (\d+)\n(?:ftd:   (?!restored|restarted).*\n)*"
            r"ftd:   (?:restored\s+version (\d+)|restarted)", self.err, re.M
        )
        return [(int(world), int(version) if version else None) for world, version in found]

    def wait_err(self, pattern, count, patience=20.0):
        """What matches in stderr, once it does `count` times: ranks do not speak at the same moment."""
        deadline = time.monotonic() + patience
        while len(found := re.findall(pattern, self.err)) < count:
            check(time.monotonic() < deadline, f"{pattern} is there {len(found)} times, not {count}: {self.err}")
            time.sleep(0.005)
        return found

    # --- processes ------------------------------------------------------------------------------------------------

    def below(self, name):
        """Processes of this job with that program name."""
        return [pid for pid in proc.descendants(self.pid) if proc.alive(pid) and proc.name(pid) == name]

    @property
    def launcher(self):
        """The process that does ftrun's work: the child of the one that was started, which waits for it. (Older installations
        have one process only, the agent's parent.)"""
        alone = any(stat[1] == self.pid for pid in self.below("ft-agent") if (stat := proc.stat(pid)))
        return self.pid if alone else self.one("ftrun")

    def one(self, name, patience=10.0):
        """The only process with that name, waited for."""
        deadline = time.monotonic() + patience
        while True:
            found = self.below(name)
            if len(found) == 1:
                return found[0]
            check(time.monotonic() < deadline and self.running(), f"{len(found)} processes are called {name}, not one")
            time.sleep(0.005)

    def ranks(self, world=None):
        """rank -> pid of the processes of the newest (or the given) world; of wrapper and wrapped the innermost one."""
        found = {}
        for pid in proc.descendants(self.pid):
            if not proc.alive(pid) or proc.name(pid) in ("ft-agent", "ft-shepherd", "ft-pmix", "ft-ship"):
                continue
            env = proc.environ(pid)
            if "FT_RANK" in env and "FT_WORLD" in env:
                found.setdefault(int(env["FT_WORLD"]), {})[int(env["FT_RANK"])] = pid
        if not found:
            return {}
        return found.get(max(found) if world is None else world, {})

    def wait_noted(self, pids, patience=20.0):
        """Waits until the shepherds have noted these processes: then they are known even if all of ftd dies at once.
        Returns the job's directory."""
        deadline = time.monotonic() + patience
        # Of a wrapper's children the innermost one may be gone by now.
        while not (found := [place for pid in self.ranks().values() if (place := proc.environ(pid).get("FT_SOCKET"))]):
            check(time.monotonic() < deadline, f"no rank is there within {patience} s")
            time.sleep(0.005)
        directory = pathlib.Path(found[0]).parent
        while missing := set(pids) - proc.noted(directory):
            check(time.monotonic() < deadline, f"{missing} are not noted within {patience} s")
            time.sleep(0.005)
        return directory

    def wait_ranks(self, size, world=None, patience=20.0):
        """`ranks`, waited for until all are there."""
        deadline = time.monotonic() + patience
        while True:
            found = self.ranks(world)
            if len(found) == size:
                return found
            check(self.running(), f"the job ended before world {world} had {size} ranks")
            late = f"world {world} has ranks {sorted(found)} after {patience} s, not {size}"
            check(time.monotonic() < deadline, late)
            time.sleep(0.002)

    def shepherd_of(self, pid):
        """The shepherd above a rank's process."""
        while pid > 1:
            found = proc.stat(pid)
            check(found is not None, "the process is gone, and so is the way to its shepherd")
            pid = found[1]
            if proc.name(pid) == "ft-shepherd":
                return pid
        raise Failed("no ft-shepherd above the rank")

    def running(self):
        """Whether the job has not ended yet."""
        return self.process.poll() is None

    @staticmethod
    def whole(path):
        """Inodes of the files in $FT_CHECKPOINT_DIR (which is, or holds, `path`) that the agent has noted as whole."""
        journal = next(parent for parent in (path, *path.parents) if parent.name == "ckpt").with_name("ckpt.whole")
        data, found = journal.read_bytes(), set()
        for says, _, inode in struct.iter_unpack("=IiQ", data[16 : len(data) // 16 * 16]):
            {1: found.add, 2: found.discard}.get(says, lambda _: found.clear())(inode)
        return found if data[:1] == b"\0" else set()

    def wait_whole(self, path, patience=10.0):
        """Waits until the agent has noted that this file in $FT_CHECKPOINT_DIR, which may still have to be made, is whole."""
        deadline = time.monotonic() + patience
        while not path.exists() or path.stat().st_ino not in self.whole(path):
            check(time.monotonic() < deadline, f"{path.name} is not noted as whole within {patience} s")
            time.sleep(0.002)

    # --- gates ----------------------------------------------------------------------------------------------------

    def gate_path(self, name, rank="-"):
        """File of a gate."""
        return self.gate_dir / f"{name}.{rank}"

    def at_gate(self, name, rank="-", patience=30.0):
        """Waits until a process stands at the gate; its pid. A place that is missed fails the test."""
        path = self.gate_path(name, rank)
        deadline = time.monotonic() + patience
        while True:
            # In this order: who only leaves a mark there may be the last one of the job.
            running = self.running()
            try:
                text = path.read_text()
                if text.endswith("\n"):
                    pid = int(text) if self.on is None else self.on.outside(int(text))
                    if self.mpi and rank != "-":
                        self.mpi.loaded(pid)
                    return pid
            except FileNotFoundError:
                pass
            if not running:
                raise Failed(f"the job ended (status {self.process.returncode}) and nobody had been at {path.name}")
            check(time.monotonic() < deadline, f"nobody came to {path.name} within {patience} s")
            time.sleep(0.001)

    def go(self, name, rank="-"):
        """Lets whoever waits at the gate go on."""
        self.gate_dir.joinpath(f"{name}.{rank}.go").touch()

    def close_gate(self, name, rank="-"):
        """Whoever comes to the gate next stands there, as if nobody had been."""
        for path in (self.gate_path(name, rank), self.gate_dir / f"{name}.{rank}.go"):
            path.unlink(missing_ok=True)

    def kill(self, pid, what=""):
        """SIGKILL, and proof that the process runs no more."""
        print(f"  {time.monotonic() - self.started:7.3f} s: SIGKILL to {pid} {what or proc.name(pid)}", flush=True)
        proc.kill(pid)

    def kill_all(self, pids):
        """SIGKILL to several at once: a dict from what they are to their pids."""
        print(f"  {time.monotonic() - self.started:7.3f} s: SIGKILL to {pids}", flush=True)
        proc.kill_all(pids.values())

    # --- the end --------------------------------------------------------------------------------------------------

    def wait(self, patience=60.0):
        """Its exit status; a job that does not end is a failure."""
        try:
            status = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"the job hangs: no end after {patience} s\n{proc.describe(os.getpid())}") from None
        for late in self.gate_dir.glob("*.timeout"):
            raise Failed(f"the gate {late.stem} waited in vain for the test")
        return status

    def interrupt(self, number=signal.SIGINT):
        """What a terminal's Ctrl-C does to ftrun."""
        os.kill(self.pid, number)

    def expect(self, status=0, reference=None, patience=60.0):
        """Waits for the end and compares: exit status, every step's hash, the result."""
        ended = self.wait(patience)
        check(ended == status, f"exit status {ended}, expected {status}")
        if reference is not None:
            truth = dict(reference.steps)
            for step, value in self.output.steps:
                holds(truth.get(step) == value, f"step {step} has hash {value}, undisturbed it is {truth.get(step)}")
            # A job whose ranks die in MPI_Finalize prints its result once per world.
            check(self.output.results, "no result")
            holds(
                set(self.output.results) == set(reference.results),
                f"results {self.output.results}, undisturbed {reference.results}",
            )
        return ended

    def dump(self):
        """Everything there is to know about a failed job."""
        output = self.out_path.read_text(errors="replace")[-4000:]
        return f"--- {' '.join(map(str, self.argv))}\n--- stdout\n{output}\n" \
            f"--- stderr\n{self.err[-6000:]}\n--- gates: {sorted(p.name for p in self.gate_dir.iterdir())}"
