"""Whether the machine itself stood still: what a scenario that fails then shows is not known.

Each probe is a process that does one small thing again and again, which takes far less than a second on any machine that works. What took
longer than `LONG` is written down, with what it was: a processor that ran nobody, a disk that took no file, a kernel that went through no
grace period (mounts, name spaces and control groups wait for those)."""

import ctypes
import mmap
import os
import signal
import struct
import time

from . import proc

# Between two turns of a probe.
PERIOD = 0.5
# A turn that takes longer than its period and this is a standstill. Helpers that are waited for have 35 s (ft_sys::pulse), gates 30 s.
LONG = 5.0
# Of one probe so many standstills have room.
MOST = 32
_libc = ctypes.CDLL(None, use_errno=True)
# Its number is the machine's; where it is not known here nobody asks for grace periods.
SYS_MEMBARRIER, MEMBARRIER_CMD_GLOBAL = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine), 1


def _file(directory):
    path = os.path.join(directory, f".probe.{os.getpid()}")
    with open(path, "wb") as file:
        file.write(b"probe")
    os.unlink(path)


def _process():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def probes(directory):
    """(what stood still, what is done once in its process, what is done in each turn)."""
    nothing = lambda: None
    for cpu in sorted(os.sched_getaffinity(0)):
        yield f"processor {cpu}", lambda cpu=cpu: os.sched_setaffinity(0, {cpu}), nothing
    yield f"files below {directory}", nothing, lambda: _file(directory)
    yield "new processes", nothing, _process
    if SYS_MEMBARRIER is not None:
        yield "the kernel's grace periods", nothing, lambda: _libc.syscall(SYS_MEMBARRIER, MEMBARRIER_CMD_GLOBAL, 0, 0)


class Probe:
    """One such process, and what it has written: the time of its last turn, and (begin, end) of its standstills."""

    SIZE = 8 * (2 + 2 * MOST)

    def __init__(self, name, once, turn):
        self.name, self.page = name, mmap.mmap(-1, self.SIZE)
        self._write(0, time.monotonic())
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                proc.die_with_parent()
                once()
                self._run(turn)
            finally:
                os._exit(1)

    def _write(self, place, value):
        struct.pack_into("d", self.page, 8 * place, value)

    def _read(self, place):
        return struct.unpack_from("d", self.page, 8 * place)[0]

    def _run(self, turn):
        found = 0
        while True:
            time.sleep(PERIOD)
            turn()
            last, now = self._read(0), time.monotonic()
            if now - last > PERIOD + LONG and found < MOST:
                self._write(2 + 2 * found, last)
                self._write(3 + 2 * found, now)
                found += 1
                self._write(1, found)
            self._write(0, now)

    def standstills(self):
        """[(begin, end)], also of one that lasts."""
        found = [(self._read(2 + 2 * n), self._read(3 + 2 * n)) for n in range(int(self._read(1)))]
        last, now = self._read(0), time.monotonic()
        return found + [(last, now)] * (now - last > PERIOD + LONG)

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Watch:
    """All probes, for as long as scenarios run."""

    def __init__(self, directory):
        self.probes = [Probe(*probe) for probe in probes(directory)]

    def between(self, begin, end):
        """What stood still in that time, and for how long, in words; empty when nothing did."""
        found = []
        for probe in self.probes:
            longest = max((b - a for a, b in probe.standstills() if a < end and b > begin), default=0.0)
            if longest > 0.0:
                found.append(f"{probe.name} for {longest:.0f} s")
        return ", ".join(found)

    def close(self):
        for probe in self.probes:
            probe.close()
