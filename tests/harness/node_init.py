"""Process 1 of a node of the tests' cluster: makes the node out of the name spaces that it was started in, and reaps.

    node_init.py NAME DIRECTORY READY

NAME is the node's host name; DIRECTORY, on a disk that outlives the node, becomes its /var/lib/ftd; a byte goes to the descriptor
READY when the node is one. It ends by SIGKILL, and with it all that runs on the node."""

import ctypes
import os
import signal
import socket
import sys

_libc = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
# Empty after each start of the node, as they are on a machine.
VOLATILE = (("/dev/shm", "mode=1777"), ("/run", "mode=755"), ("/tmp", "mode=1777"))


def mount(source, place, kind, flags, options=""):
    if _libc.mount(source.encode(), place.encode(), kind, flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {place}")


def main():
    name, directory, ready = sys.argv[1], sys.argv[2], int(sys.argv[3])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    socket.sethostname(name)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    # The scratch directory of the tests lies in /tmp: the programs under test and what they leave are to be seen on every node.
    scratch = os.open(os.environ["FT_TEST_SCRATCH"], os.O_PATH)
    os.makedirs("/var/lib/ftd", exist_ok=True)
    mount(directory, "/var/lib/ftd", None, MS_BIND)
    for place, options in VOLATILE:
        mount("tmpfs", place, b"tmpfs", 0, options)
    os.makedirs(os.environ["FT_TEST_SCRATCH"])
    mount(f"/proc/self/fd/{scratch}", os.environ["FT_TEST_SCRATCH"], None, MS_BIND | MS_REC)
    mount("proc", "/proc", b"proc", 0)
    # Libraries look there for the node's network cards, and see those of who mounted it.
    groups = os.open("/sys/fs/cgroup", os.O_PATH)
    mount("sysfs", "/sys", b"sysfs", 0)
    mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", None, MS_BIND | MS_REC)
    os.write(ready, b"r")
    os.close(ready)
    while True:
        signal.sigwait([signal.SIGCHLD])
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass


main()
