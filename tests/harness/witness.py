"""Who sees every time that a rank runs: the kernel's own trace of what it puts on a processor, taken outside of ftd.

Nothing is sampled. A process that has been sent SIGKILL does not come back to its program: what the kernel does on its behalf after
that does not count as running. Events that the kernel had to drop fail the test, and so does a process whose rank nobody knows, but for
one that was killed before its first instruction: it has played nothing. What a rank forks is the rank's own, and plays with it, whatever
programs are between them."""

import contextlib
import itertools
import math
import os
import pathlib
import re
import struct
import threading
import time

from . import proc
from .job import Failed, Skipped, check, holds

TRACING = pathlib.Path("/sys/kernel/tracing")
# Per processor, in KiB. A busy second of 16 ranks is some 2 MB, of such that yield while they wait ten times as much.
BUFFER = 65536
NO_TRACE = "the kernel does not trace what it runs"
SIGKILL = 9
CLONE_THREAD = 0x10000
# The kernel wakes who is killed, thread by thread, before it tells of the signal, and another processor may have them by then: some
# microseconds, and more where the host of a virtual machine takes the processor away in between.
WOKEN = 0.005
# Who is killed before its first instruction has been on a processor as the program while the kernel laid out its memory: well below a
# millisecond, and some where the host takes the processor away in between.
UNBORN = 0.05
_EVENT = re.compile(
    rb"^.{16}-(\d+) +\[\d+\] \S+ +(\d+\.\d+): (?:"
    rb"sched_switch: prev_comm=(.*?) prev_pid=(\d+) prev_prio=\d+ prev_state=\S+ ==> next_comm=(.*?) next_pid=(\d+) next_prio"
    rb"|task_newtask: pid=(\d+) comm=(.*?) clone_flags=([0-9a-f]+) oom"
    rb"|signal_generate: sig=9 errno=.*? pid=(\d+) grp="
    rb"|task_rename: pid=(\d+) oldcomm=(.*?) newcomm=(.*?) oom)", re.M
)

# The trace's clock.
INSTANT = 1e-6

# Of the stack of a process that begins so many words are looked at, so many by one probe (the kernel takes 128 values, two of each).
WORDS, WORDS_A_PROBE = 253, 63
# Segments of a program's file.
LOADED, INTERPRETER = 1, 3


class Process:
    """One process that has run the program, in seconds of the trace's clock."""

    # What the processors tell comes in turns: an older word may come behind so many newer ones.
    RECENT = 64

    def __init__(self, pid, begun=-math.inf, before=None):
        """Since when it has that pid, and who had it before."""
        self.pid = pid
        self.begun = begun
        self.before = before
        self.role = None
        # The oldest of those that it comes from and that play as it does.
        self.family = self
        self.first = math.inf
        self.killed = None
        # The latest words: when which of its threads was put on a processor, or taken from one. And what was said before: when the last
        # word came, since when a thread is on a processor by its own last one, and for how long all have been.
        self._recent = []
        self._last = 0.0
        self._threads = {}
        self._spent = 0.0

    def ran(self, thread, at, on):
        """A thread was put on a processor, or taken from one. What it does when it has been killed is the kernel's."""
        self.first = min(self.first, at)
        if self.killed is None or at < self.killed:
            self._recent.append((at, thread, on))
            if len(self._recent) > 2 * self.RECENT:
                self._recent.sort()
                self._last, self._threads, self._spent = self._after(self._recent[: self.RECENT])
                del self._recent[: self.RECENT]

    def since(self, at):
        """Who has its pid from then on. Some of that one's words may have come already."""
        after = Process(self.pid, at, self)
        for word in [word for word in self._recent if word[0] >= at]:
            self._recent.remove(word)
            after.ran(word[1], word[0], word[2])
        if self.first >= at:
            self.first = math.inf
        return after

    def _after(self, words):
        last, threads, spent = self._last, dict(self._threads), self._spent
        for at, thread, on in words:
            since = threads.get(thread)
            spent += at - since if since else 0.0
            last, threads[thread] = max(last, at), at if on else None
        return last, threads, spent

    @property
    def spent(self):
        """For how long it was on a processor before it was killed."""
        end = math.inf if self.killed is None else self.killed
        _, threads, spent = self._after(sorted(word for word in self._recent if word[0] < end))
        return spent + sum(end - since for since in threads.values() if since)

    @property
    def until(self):
        """When its program ran last."""
        end = math.inf if self.killed is None else self.killed
        own = sorted(word for word in self._recent if word[0] < end)
        last, threads, _ = self._after(word for word in own if word[0] <= end - WOKEN)
        for at, thread, on in own:
            if at <= end - WOKEN:
                continue
            # Who is woken then to die may have to make room for another thread that is: that it was taken from a processor is no more its
            # program's doing than that it was put on one.
            if on:
                threads.setdefault(thread, None)
            elif threads.get(thread, True):
                last, threads[thread] = at, None
        return end if any(threads.values()) else last

    def __repr__(self):
        world, rank = self.role or ("?", "?")
        killed = "" if self.killed is None else f", killed at {self.killed:.6f}"
        return f"process {self.pid}, rank {rank} of world {world} ({self.first:.6f} to {self.until:.6f}{killed})"


class Births:
    """Who becomes the program, and as which rank. The kernel writes it down where a process enters the dynamic loader, before the first
    instruction of its own: it is asked nothing later, however short it lives."""

    def __init__(self, beginning):
        self.group = f"ftd_test_{os.getpid()}"
        self.place = TRACING / "instances" / f"{self.group}_births"
        self._filter = f'comm ~ "{beginning}*"'
        self._events = []

    def begin(self):
        self.place.mkdir()
        (self.place / "trace_clock").write_text("mono")
        (self.place / "buffer_size_kb").write_text(str(BUFFER // 8))
        loader, entry = _loader()
        # On the stack are the number of arguments, they, nothing, and the variables: of all those words the first 16 bytes of what they name.
        for number, first in enumerate(range(1, WORDS, WORDS_A_PROBE)):
            words = range(first, first + WORDS_A_PROBE)
            fetched = " ".join(f"a{word}=+0(+{8 * word}(%sp)):x64 b{word}=+8(+{8 * word}(%sp)):x64" for word in words)
            _define(f"p:{self.group}/w{number} {loader}:{entry:#x} {fetched}")
            self._events.append(self.place / "events" / self.group / f"w{number}")
            (self._events[-1] / "filter").write_text(self._filter)
            (self._events[-1] / "enable").write_text("1")

    def silence(self):
        for event in self._events:
            with contextlib.suppress(OSError):
                (event / "enable").write_text("0")

    def told(self):
        """What was written down: pid -> when, and what of FT_WORLD and FT_RANK was there."""
        found = {}
        for pid, at, words in re.findall(r"^.{16}-(\d+) .*? (\d+\.\d+): w\d+: \(\S+\) (.*)$", (self.place / "trace").read_text(), re.M):
            known = {}
            for head, tail in re.findall(r"a\d+=0x([0-9a-f]+) b\d+=0x([0-9a-f]+)", words):
                text = b"".join(int(word, 16).to_bytes(8, "little") for word in (head, tail))
                if variable := re.match(rb"(FT_WORLD=|FT_RANK=)(\d+)\0", text):
                    known[variable[1]] = int(variable[2])
            found.setdefault(int(pid), []).append((float(at), known))
        return found

    def remove(self):
        self.silence()
        with contextlib.suppress(OSError):
            self.place.rmdir()
        for event in self._events:
            with contextlib.suppress(OSError):
                _define(f"-:{self.group}/{event.name}")
        self._events = []


def sweep():
    """Removes what the witnesses of tests have left that were killed: their traces, and what the kernel wrote down for them. It has the pids of
    those tests in its names. One that somebody reads is not removed by the kernel, and then nothing of it is."""
    instances = TRACING / "instances"
    found = {}
    for place in instances.iterdir():
        if name := re.fullmatch(r"ftd-test-(\d+)|ftd_test_(\d+)_births", place.name):
            found.setdefault(int(name[1] or name[2]), []).append(place)
    events = (TRACING / "uprobe_events").read_text()
    groups = {int(pid): [] for pid in re.findall(r"^p:ftd_test_(\d+)/", events, re.M)}
    for pid, event in re.findall(r"^p:ftd_test_(\d+)/(\S+)", events, re.M):
        groups[int(pid)].append(event)
    for pid in sorted({*found, *groups}):
        # What has this process's own pid somebody has left that had it before.
        if pid != os.getpid() and proc.alive(pid):
            continue
        with contextlib.suppress(OSError):
            # The trace first: who is not dead, in whatever name space, reads it. Another test's witness may remove the same.
            for place in sorted(found.get(pid, ())):
                with contextlib.suppress(FileNotFoundError):
                    place.rmdir()
            for event in groups.get(pid, ()):
                with contextlib.suppress(FileNotFoundError):
                    _define(f"-:ftd_test_{pid}/{event}")


def _define(event):
    # In one write, and at no place of the file: the kernel takes nothing else.
    fd = os.open(TRACING / "uprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"{event}\n".encode())
    finally:
        os.close(fd)


def _loader():
    """The dynamic loader of this machine's programs, and where in its file it is entered."""
    loader = os.path.realpath(_interpreter(pathlib.Path("/bin/true").read_bytes()))
    image = pathlib.Path(loader).read_bytes()
    entry, = struct.unpack_from("<Q", image, 24)
    for kind, _, offset, address, _, size in _segments(image):
        if kind == LOADED and address <= entry < address + size:
            return loader, entry - address + offset
    raise ValueError(f"{loader} is entered nowhere")


def _segments(image):
    first, = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    return [struct.unpack_from("<IIQQQQ", image, first + number * size) for number in range(count)]


def _interpreter(image):
    offset, size = next((segment[2], segment[5]) for segment in _segments(image) if segment[0] == INTERPRETER)
    return image[offset : offset + size].rstrip(b"\0").decode()


def traced():
    """Whether the kernel traces what it runs. Some are built without."""
    return TRACING.joinpath("events/sched/sched_switch").exists()


class Witness:
    """`with Witness("places") as witness:` watches the processes of programs whose names begin so. Root only."""

    def __init__(self, beginning):
        # A process is called after its program, and the kernel cuts that.
        self.beginning = beginning[:15]
        self._name = self.beginning.encode()
        self.place = TRACING / "instances" / f"ftd-test-{os.getpid()}"
        self.births = Births(self.beginning)
        # By pid the last process that had it.
        self.processes = {}
        self._births = {}
        self._threads = {}
        # When, and by which thread, processes were made, and of whom threads are, whatever they run.
        self._made_by = {}
        self._thread_of = {}
        # When those were killed that had not become the program yet.
        self._killed = {}
        # Names that threads have given to themselves, and those threads.
        self._names = set()
        self._renamed = set()
        self._reader = None
        self._over = threading.Event()

    def __enter__(self):
        if not traced():
            raise Skipped(NO_TRACE)
        sweep()
        try:
            self.place.mkdir()
            self._set("trace_clock", "mono")
            self._set("buffer_size_kb", str(BUFFER))
            self.births.begin()
            self._listen((
                ("sched/sched_switch", self._switches()),
                ("task/task_rename", f'oldcomm ~ "{self.beginning}*" || newcomm ~ "{self.beginning}*"'),
                # All, for who has a pid that another one had is another one.
                ("task/task_newtask", "0"),
                ("signal/signal_generate", f"sig == {SIGKILL}"),
            ))
            self._reader = threading.Thread(target=self._read)
            self._reader.start()
        except BaseException:
            self._over.set()
            self._remove()
            raise
        return self

    def _switches(self):
        """Which switches are to be told."""
        return " || ".join(f'{side}_comm ~ "{name}*"' for name in (self.beginning, *sorted(self._names)) for side in ("prev", "next"))

    def _listen(self, events):
        for event, condition in events:
            self._set(f"events/{event}/filter", condition)
            self._set(f"events/{event}/enable", "1")

    def __exit__(self, _, error, __):
        try:
            self.stop()
        except Failed:
            # What the scenario itself has found is said.
            if error is None:
                raise

    def _set(self, file, text):
        (self.place / file).write_text(text)

    def stop(self):
        """Ends the watch; all that was seen is known."""
        if self._reader is None:
            return
        self._silence()
        self._over.set()
        self._reader.join(60)
        self._births = self.births.told()
        lost = {}
        for path in sorted((*self.place.glob("per_cpu/cpu*/stats"), *self.births.place.glob("per_cpu/cpu*/stats"))):
            stats = dict(line.split(": ") for line in path.read_text().splitlines())
            lost[str(path.parent.relative_to(TRACING / "instances"))] = sum(int(stats[key]) for key in ("overrun", "commit overrun", "dropped events"))
        late, self._reader = self._reader.is_alive(), None
        self._remove()
        check(not late, "the trace does not end")
        holds(not any(lost.values()), f"the kernel lost events of the trace: {lost}")

    def _silence(self):
        self.births.silence()
        for event in ("sched", "task", "signal"):
            with contextlib.suppress(OSError):
                self._set(f"events/{event}/enable", "0")

    def _remove(self):
        self._silence()
        # A reader that is still there holds it.
        deadline = time.monotonic() + 5
        while self.place.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.place.rmdir()
            time.sleep(0.01)
        self.births.remove()

    def _read(self):
        """The trace comes in order of time from each processor, and nearly so from all."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        pipe = os.open(self.place / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        left = b""
        try:
            while True:
                over = self._over.is_set()
                try:
                    some = os.read(pipe, 1 << 20)
                except BlockingIOError:
                    some = b""
                whole, end, left = (left + some).rpartition(b"\n")
                for word in _EVENT.finditer(whole + end):
                    self._take(*word.groups())
                if not some:
                    if over:
                        return
                    time.sleep(0.002)
        finally:
            os.close(pipe)

    def _take(self, by, at, before, old, after, new, made, maker, flags, killed, renamed, was, name):
        at = float(at)
        if old is not None:
            if before.startswith(self._name) or int(old) in self._renamed:
                self._ran(int(old), at, False)
            if after.startswith(self._name) or int(new) in self._renamed:
                self._ran(int(new), at, True)
        elif renamed is not None:
            if name.startswith(self._name):
                # It becomes the program: from here on what it does is that one's.
                self._ran(int(renamed), at, True)
            elif was.startswith(self._name):
                self._follow(int(renamed), name.decode(errors="replace"), at)
        elif made is not None:
            own = maker.startswith(self._name) or int(by) in self._renamed
            self._made(int(made), int(by), own, int(flags, 16) & CLONE_THREAD, at)
        elif (process := self.processes.get(int(killed))) is None:
            self._killed.setdefault(int(killed), at)
        elif process.killed is None:
            process.killed = at

    def _made(self, number, by, own, thread, at):
        """A thread or a process begins; by whom, and whether that one is the program's. Whoever had that number is another one."""
        for of in (self._threads, self._killed):
            of.pop(number, None)
        self._renamed.discard(number)
        (self._thread_of if thread else self._made_by).setdefault(number, []).append((at, by))
        if thread:
            if own:
                self._threads[number] = None
            return
        if (old := self.processes.get(number)) is not None:
            self.processes[number] = old.since(at)
        elif own:
            self.processes[number] = Process(number, at)

    def _follow(self, thread, name, at):
        """A thread has another name from now on. (One that becomes another program is nobody's.)"""
        self._ran(thread, at, False)
        if thread in self._threads and re.fullmatch(r"[\w:.-]+", name):
            self._renamed.add(thread)
            if name not in self._names:
                self._names.add(name)
                self._set("events/sched/sched_switch/filter", self._switches())

    def _ran(self, thread, at, on):
        """It was put on a processor, or taken from one."""
        pid = self._pid(thread)
        if pid is None:
            return
        process = self.processes.get(pid)
        if process is None:
            process = self.processes[pid] = Process(pid)
            process.killed = self._killed.pop(pid, None)
        self._at(process, at).ran(thread, at, on)

    def _pid(self, thread):
        """Whose thread it is."""
        if thread not in self._threads:
            return thread
        # Of a thread the kernel says who it is as long as it lives.
        self._threads[thread] = self._threads[thread] or _process_of(thread)
        return self._threads[thread]

    @staticmethod
    def _at(process, at):
        """Who had that one's pid at a moment."""
        while at < process.begun and process.before is not None:
            process = process.before
        return process

    # --- what is to be proved -------------------------------------------------------------------------------------

    def of(self, world):
        """rank -> its process in that world. A process that is not a rank's fails the test, and so do two that are one rank."""
        of_world = [process for process in self._known() if process.role[0] == world]
        self._one_by_one(of_world)
        return {process.role[1]: process.family for process in of_world}

    def _known(self):
        """All that have run, and as whom."""
        found = []
        for process in self.processes.values():
            until = math.inf
            while process is not None:
                told = [known for at, known in self._births.get(process.pid, ()) if process.begun <= at < until]
                known = {name: number for each in told for name, number in each.items()}
                process.role = (known[b"FT_WORLD="], known[b"FT_RANK="]) if len(known) == 2 else None
                lived = told or process.killed is None or process.spent > UNBORN or self._forked_by(process) is not None
                if math.isfinite(process.first) and lived:
                    found.append(process)
                until, process = process.begun, process.before
        done = set()
        for process in found:
            self._belongs(process, done)
        strangers = [process for process in found if process.role is None]
        holds(not strangers, f"nobody knows which ranks these are: {strangers}")
        return found

    def _belongs(self, process, done):
        """What comes from a rank plays as it does, and with it."""
        if process in done:
            return
        done.add(process)
        process.family = process
        parent = self._forked_by(process)
        if parent is None:
            return
        self._belongs(parent, done)
        process.role = process.role or parent.role
        if process.role == parent.role:
            process.family = parent.family

    def _forked_by(self, process):
        """The nearest that has run the program of those from which a process comes."""
        pid, at = process.pid, process.begun if math.isfinite(process.begun) else process.first
        while (made := _latest(self._made_by, pid, at)) is not None:
            at, pid = made
            # Whoever makes something is older than that.
            while (of := _latest(self._thread_of, pid, at)) is not None and of[0] > (_latest(self._made_by, pid, at) or (-math.inf,))[0]:
                at, pid = of
            maker = self.processes.get(pid)
            maker = maker and self._at(maker, at)
            if maker is not None and maker is not process and maker.first < at:
                return maker
            at -= INSTANT
        return None

    @staticmethod
    def _one_by_one(processes):
        """Of these no two play one rank of one world at a time, whatever node they are of: one of them is not ended, and then another one is there."""
        for old, new in itertools.permutations(processes, 2):
            if old.role == new.role and old.family is not new.family and old.first <= new.first:
                holds(old.until < new.first, f"{old} ran {old.until - new.first:.6f} s after the first moment of {new}, in the same world")

    def no_two_play_one_rank(self, but=(), until=0.0):
        """No process of a world ran after one of a later world had begun to, as the same rank; nor one beside another one of the same world. Those of
        `but`, by pid, may until a moment, but not in the same world."""
        played = {}
        for process in self._known():
            played.setdefault(process.role[1], []).append(process)
        for of_rank in played.values():
            self._one_by_one(of_rank)
            for old, new in itertools.permutations(of_rank, 2):
                if old.role[0] < new.role[0]:
                    allowed = max(new.first, until) if old.pid in but else new.first
                    holds(old.until < allowed, f"{old} ran {old.until - new.first:.6f} s after the first moment of {new}")

    def none_ran(self, pids, until=0.0):
        """Of these processes, of a node that was left out, none ran after the first one of a later world had begun to (or, if that is later,
        after that moment)."""
        known = self._known()
        for pid in pids:
            # Who has had its pid later is another one.
            process = min((each for each in known if each.pid == pid), key=lambda each: each.first, default=None)
            holds(process is not None, f"process {pid} was never seen to run")
            new = min((each for each in known if each.role[0] > process.role[0]), key=lambda each: each.first)
            late = process.until - max(new.first, until)
            holds(late < 0, f"{process}, of a node that was left out, ran {late:.6f} s after {new} had begun")


def _latest(made, number, at):
    """What was said last of that number until then."""
    return max((word for word in made.get(number, ()) if word[0] <= at), default=None)


def _process_of(thread):
    try:
        status = pathlib.Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return None
    return int(re.search(r"^Tgid:\s+(\d+)$", status, re.M)[1])
