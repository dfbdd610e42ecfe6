"""Who sees every time that a rank runs: the kernel's own trace of what it puts on a processor, taken outside of ftd.

Nothing is sampled. A process that has been sent SIGKILL does not come back to its program: what the kernel does on its behalf after
that does not count as running. Events that the kernel had to drop fail the test, and so does a process whose rank nobody knows."""

import contextlib
import math
import os
import pathlib
import re
import threading
import time

from . import proc
from .job import Skipped, check

TRACING = pathlib.Path("/sys/kernel/tracing")
# Per processor, in KiB. A busy second of 16 ranks is some 2 MB.
BUFFER = 16384
NO_TRACE = "the kernel does not trace what it runs"
SIGKILL = 9
CLONE_THREAD = 0x10000
_LINE = re.compile(r"^.{16}-\d+\s+\[\d+\]\s+\S+\s+(\d+\.\d+): (\w+): (.*)$")
_SWITCH = re.compile(r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+ prev_state=\S+ ==> next_comm=(.*) next_pid=(\d+) next_prio")
_THREAD = re.compile(r"pid=(\d+) comm=.* clone_flags=([0-9a-f]+) oom")
_KILLED = re.compile(r"sig=9 errno=.* pid=(\d+) grp=")


class Process:
    """One process that has run the program, in seconds of the trace's clock."""

    def __init__(self, pid):
        self.pid = pid
        self.role = None
        self.first = None
        self.last = None
        self.killed = None
        # Its threads that are on a processor.
        self.on = set()

    @property
    def until(self):
        """When its program ran last."""
        if self.killed is not None:
            return min(self.last, self.killed) if not self.on else self.killed
        return math.inf if self.on else self.last

    def __repr__(self):
        world, rank = self.role or ("?", "?")
        return f"process {self.pid}, rank {rank} of world {world}"


class Witness:
    """`with Witness("places") as witness:` watches the processes of programs whose names begin so. Root only."""

    def __init__(self, beginning):
        # A process is called after its program, and the kernel cuts that.
        self.beginning = beginning[:15]
        self.place = TRACING / "instances" / f"ftd-test-{os.getpid()}"
        self.processes = {}
        self._threads = {}
        self._reader = None
        self._over = threading.Event()

    def __enter__(self):
        if not TRACING.joinpath("events/sched/sched_switch").exists():
            raise Skipped(NO_TRACE)
        self.place.mkdir()
        try:
            self._set("trace_clock", "mono")
            self._set("buffer_size_kb", str(BUFFER))
            for event, condition in (
                ("sched/sched_switch", f'next_comm ~ "{self.beginning}*" || prev_comm ~ "{self.beginning}*"'),
                ("task/task_newtask", f'comm ~ "{self.beginning}*"'),
                ("signal/signal_generate", f"sig == {SIGKILL}"),
            ):
                self._set(f"events/{event}/filter", condition)
                self._set(f"events/{event}/enable", "1")
            self._reader = threading.Thread(target=self._read)
            self._reader.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _set(self, file, text):
        (self.place / file).write_text(text)

    def stop(self):
        """Ends the watch; all that was seen is known."""
        if self._reader is None:
            return
        for event in ("sched/sched_switch", "task/task_newtask", "signal/signal_generate"):
            self._set(f"events/{event}/enable", "0")
        self._over.set()
        self._reader.join(30)
        lost = {}
        for path in sorted(self.place.glob("per_cpu/cpu*/stats")):
            stats = dict(line.split(": ") for line in path.read_text().splitlines())
            lost[path.parent.name] = sum(int(stats[key]) for key in ("overrun", "commit overrun", "dropped events"))
        reader, self._reader = self._reader, None
        self._remove()
        check(not reader.is_alive(), "the trace does not end")
        check(not any(lost.values()), f"the kernel lost events of the trace: {lost}")

    def _remove(self):
        for event in ("sched", "task", "signal"):
            with contextlib.suppress(OSError):
                self._set(f"events/{event}/enable", "0")
        # A reader that is still there holds it.
        deadline = time.monotonic() + 5
        while self.place.exists():
            with contextlib.suppress(OSError):
                self.place.rmdir()
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)

    def _read(self):
        """The trace comes in order of time from each processor, and nearly so from all."""
        pipe = os.open(self.place / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        left = b""
        try:
            while True:
                over = self._over.is_set()
                try:
                    some = os.read(pipe, 1 << 20)
                except BlockingIOError:
                    some = b""
                *lines, left = (left + some).split(b"\n")
                for line in lines:
                    self._take(line.decode(errors="replace"))
                if not some:
                    if over:
                        return
                    time.sleep(0.002)
        finally:
            os.close(pipe)

    def _take(self, line):
        found = _LINE.match(line)
        if not found:
            return
        at, event, rest = float(found[1]), found[2], found[3]
        if event == "task_newtask" and (made := _THREAD.search(rest)) and int(made[2], 16) & CLONE_THREAD:
            self._threads[int(made[1])] = None
        elif event == "signal_generate" and (killed := _KILLED.search(rest)):
            process = self.processes.get(int(killed[1]))
            if process is not None and process.killed is None:
                process.killed = at
        elif event == "sched_switch" and (switch := _SWITCH.search(rest)):
            for name, thread, on in ((switch[1], switch[2], False), (switch[3], switch[4], True)):
                if name.startswith(self.beginning):
                    self._ran(int(thread), at, on)

    def _ran(self, thread, at, on):
        """It was put on a processor, or taken from one."""
        pid = thread
        if thread in self._threads:
            # Of a thread the kernel says who it is as long as it lives.
            pid = self._threads[thread] or _process_of(thread)
            if pid is None:
                return
            self._threads[thread] = pid
        process = self.processes.setdefault(pid, Process(pid))
        if process.role is None:
            environment = proc.environ(pid)
            if "FT_WORLD" in environment and "FT_RANK" in environment:
                process.role = (int(environment["FT_WORLD"]), int(environment["FT_RANK"]))
        (process.on.add if on else process.on.discard)(thread)
        process.first = at if process.first is None else min(process.first, at)
        process.last = at if process.last is None else max(process.last, at)

    # --- what is to be proved -------------------------------------------------------------------------------------

    def of(self, world):
        """rank -> its process in that world. A process that is not a rank's fails the test."""
        strangers = [process for process in self.processes.values() if process.role is None]
        check(not strangers, f"nobody knows which ranks these are: {strangers}")
        return {process.role[1]: process for process in self.processes.values() if process.role[0] == world}

    def no_two_play_one_rank(self):
        """No process of a world ran after one of a later world had begun to, as the same rank."""
        worlds = sorted({process.role[0] for process in self.processes.values() if process.role})
        for earlier, later in zip(worlds, worlds[1:]):
            for rank, new in self.of(later).items():
                old = self.of(earlier).get(rank)
                check(old is None or old.until < new.first, f"{old} ran {old and old.until - new.first:.6f} s after the first moment of {new}")


def _process_of(thread):
    try:
        status = pathlib.Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return None
    return int(re.search(r"^Tgid:\s+(\d+)$", status, re.M)[1])
