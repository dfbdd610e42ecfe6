"""What only root can prepare for a scenario, in its process, before that becomes the ordinary user for good."""

import contextlib
import ctypes
import os
import subprocess
import time

from . import proc

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
# Everybody has this directory; what is mounted on it is seen by the scenario alone.
PLACE = b"/mnt"


def _mount(kind, place, options=None):
    if _libc.mount(b"none", place, kind, 0, options) != 0:
        raise OSError(ctypes.get_errno(), f"mount -t {kind.decode()} {place.decode()}")


def surround_cluster():
    """A network name space for the switches of a scenario's cluster, and control groups to hold its nodes."""
    if _libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: no network name space of its own")
    _mount(b"cgroup2", PLACE)
    if not os.path.exists("/sys/kernel/tracing/events"):
        with contextlib.suppress(OSError):
            _mount(b"tracefs", b"/sys/kernel/tracing")


class Delegated:
    """A cgroup (version 2) that belongs to the user, with the scenario in it: as `systemd-run --user --scope -p Delegate=yes`
    gives one."""

    def prepare(self, scratch, user):
        _mount(b"cgroup2", PLACE)
        group = f"{PLACE.decode()}/ftd-test-{os.getpid()}"
        os.mkdir(group)
        for name in (".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
            os.chown(f"{group}/{name}", user.pw_uid, user.pw_gid)
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def undo(self, pid):
        """Removes the group; the scenario's process is gone."""
        child = os.fork()
        if child == 0:
            try:
                _libc.unshare(CLONE_NEWNS)
                _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
                _mount(b"cgroup2", PLACE)
                for where, _, _ in os.walk(f"{PLACE.decode()}/ftd-test-{pid}", topdown=False):
                    os.rmdir(where)
            finally:
                os._exit(0)
        # Others of this process are scenarios that run at the same time.
        os.waitpid(child, 0)


SETUID = r"""
#include <unistd.h>
int main(int count, char **words) {
    if (count < 2 || setgid(0) != 0 || setuid(0) != 0)
        return 1;
    for (int i = 0; i < 6000 && access(words[1], F_OK) != 0; i++)
        usleep(10000);
    return 0;
}
"""


class Unkillable:
    """A program that becomes root's, so that its user cannot kill it; it ends when the file that it is given is there, and
    after a minute. `hidden`: other users' processes are not to be seen in /proc."""

    def __init__(self, hidden=False):
        self.hidden = hidden

    def prepare(self, scratch, user):
        program = f"{scratch}/build/{program_name()}"
        subprocess.run(["cc", "-o", f"{program}.{os.getpid()}", "-x", "c", "-"], input=SETUID, text=True, check=True)
        os.chown(f"{program}.{os.getpid()}", 0, 0)
        os.chmod(f"{program}.{os.getpid()}", 0o4755)
        os.rename(f"{program}.{os.getpid()}", program)
        if self.hidden:
            _mount(b"proc", b"/proc", b"hidepid=2")

    def undo(self, pid):
        pass


def program_name():
    """The set-user-id program below the scratch directory's `build`; as long as `/proc/<pid>/stat` shows."""
    return "becomes-root"


FIXED = r"""
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **words) {
    struct stat found;
    int flags, directory = count == 3 ? open(words[2], O_RDONLY | O_DIRECTORY | O_NOFOLLOW) : -1;
    if (directory < 0 || fstat(directory, &found) != 0 || found.st_uid != getuid() || setuid(0) != 0)
        return 1;
    if (ioctl(directory, FS_IOC_GETFLAGS, &flags) != 0)
        return 2;
    flags = strcmp(words[1], "on") == 0 ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    return ioctl(directory, FS_IOC_SETFLAGS, &flags) == 0 ? 0 : 3;
}
"""


class Immutable:
    """A program with which a user makes a directory of theirs immutable (`chattr +i`), and undoes that: `on` or `off`, and the
    directory. Its path is that of `immutable_program`."""

    def prepare(self, scratch, user):
        program = immutable_program(scratch, os.getpid())
        subprocess.run(["cc", "-o", program, "-x", "c", "-"], input=FIXED, text=True, check=True)
        os.chown(program, 0, user.pw_gid)
        os.chmod(program, 0o4750)
        self.scratch = scratch

    def undo(self, pid):
        pass


def immutable_program(scratch, pid):
    return f"{scratch}/build/immutable.{pid}"


STANDS = r"""
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **words) {
    struct stat found, above;
    int directory = count == 2 ? open(PLACE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW) : -1;
    if (directory < 0 || fstat(directory, &found) != 0 || found.st_uid != getuid() || setuid(0) != 0)
        return 1;
    /* Nothing but a file system that was put there for this. */
    if (stat(PLACE "/..", &above) != 0 || above.st_dev == found.st_dev)
        return 1;
    if (ioctl(directory, FIFREEZE, 0) != 0 || write(1, "stands\n", 7) != 7)
        return 2;
    for (int i = 0; i < 6000 && access(words[1], F_OK) != 0; i++)
        usleep(10000);
    return ioctl(directory, FITHAW, 0) == 0 ? 0 : 3;
}
"""


class StandingDisk:
    """A small file system on `PLACE` that stands still when its user says so (`stand`): whoever wants to write there waits in the kernel."""

    def prepare(self, scratch, user):
        self.program, image = f"{scratch}/build/stands.{os.getpid()}", f"{scratch}/build/disk.{os.getpid()}"
        subprocess.run(["cc", f'-DPLACE="{PLACE.decode()}"', "-o", self.program, "-x", "c", "-"], input=STANDS, text=True, check=True)
        os.chown(self.program, 0, user.pw_gid)
        os.chmod(self.program, 0o4750)
        with open(image, "wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, PLACE.decode()], check=True)
        # Goes with the last mount of it.
        os.unlink(image)
        os.chown(PLACE.decode(), user.pw_uid, user.pw_gid)

    @contextlib.contextmanager
    def stand(self, until):
        """It stands still, for a minute at most; `until` is a path elsewhere."""
        with subprocess.Popen([self.program, until], stdout=subprocess.PIPE) as child:
            try:
                if child.stdout.readline() != b"stands\n":
                    raise RuntimeError(f"{self.program}: the disk does not stand still")
                yield
            finally:
                with open(until, "w"):
                    pass

    def undo(self, pid):
        pass


class Starving:
    """Processes of somebody else in a memory cgroup of their own: between `begin` and `end` one after the other is ended by the
    kernel for lack of memory."""

    def prepare(self, scratch, user):
        owner = os.getpid()
        self.hungry = f"{scratch}/build/hungry.{owner}"
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                made = proc.limit_memory(50, f"{owner}-stranger")
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)
                proc.die_with_parent()
                os.write(tell, b"%d" % bool(made))
                self.starve(owner)
            finally:
                os._exit(0)
        os.close(tell)
        with os.fdopen(ready) as file:
            return file.read(1) == "1"

    def starve(self, owner):
        begun = False
        while os.getppid() == owner:
            hungry = os.path.exists(self.hungry)
            if begun and not hungry:
                return
            begun = begun or hungry
            if hungry:
                subprocess.run(["tail", "/dev/zero"], check=False)
            time.sleep(0.005)

    def begin(self):
        with open(self.hungry, "w"):
            pass

    def end(self):
        os.unlink(self.hungry)
        os.waitpid(self.pid, 0)

    def undo(self, pid):
        proc.drop_memory_limits(f"{pid}-stranger")
