"""Looking at processes through /proc, and ending them."""

import contextlib
import ctypes
import glob
import os
import pathlib
import re
import signal
import socket
import struct
import time

_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PIDFD_GETFD = 438
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18


def become_subreaper():
    """Orphans below this process become its children, so that nothing gets away."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent():
    """SIGKILL for this process when its parent ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def trace(pid):
    """Stops a process as a debugger does."""
    for request, data in ((PTRACE_SEIZE, 0), (PTRACE_INTERRUPT, 0)):
        if _libc.ptrace(request, pid, None, data) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace({request:#x}, {pid})")
    os.waitpid(pid, WALL)


def hold_end(pid):
    """Its parent does not hear of a process's end until `release` says so: nobody but a tracer does before that."""
    if _libc.ptrace(PTRACE_SEIZE, pid, None, 0) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace(PTRACE_SEIZE, {pid})")


def release(pid):
    """Waits for that end. Now its parent hears of it."""
    os.waitpid(pid, WALL)


def trace_no_more(pid):
    """Lets it go on."""
    if _libc.ptrace(PTRACE_DETACH, pid, None, 0) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace(PTRACE_DETACH, {pid})")


def name_spaces():
    """Where this process has its mounts and its System V objects."""
    return [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "ipc")]


# Those of the runner: this module is loaded before any scenario's process is forked.
RUNNERS = name_spaces()


def private_shm():
    """Gives this process a /dev/shm and System V shared memory of its own, as root or through a user name space. Where that
    cannot be had the scenario fails: without it what is left behind would go unseen."""
    uid, gid, user = os.getuid(), os.getgid(), 0 if os.geteuid() == 0 else CLONE_NEWUSER
    for what, result in [
        ("unshare", lambda: _libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | user)),
        ("the user's name space", lambda: _map_user(uid, gid) if user else 0),
        ("mount --make-rprivate /", lambda: _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)),
        ("mount /dev/shm", lambda: _libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777")),
    ]:
        if result() != 0:
            raise OSError(ctypes.get_errno(), f"no /dev/shm of its own (run the tests as root): {what}")


def _map_user(uid, gid):
    for file, text in [("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")]:
        with open(f"/proc/self/{file}", "w") as map:
            map.write(text)
    return 0


def segments():
    """System V shared-memory segments of this user: id and line. Others' come and go on a machine that is shared, and
    nobody here could remove them."""
    with open("/proc/sysvipc/shm") as file:
        fields, *lines = [line.split() for line in file]
    return {line[1]: " ".join(line) for line in lines if int(line[fields.index("uid")]) == os.getuid()}


def shared_files():
    """Everything of this user below /dev/shm with its inode: a file that was replaced is another one."""
    found = set()
    for where, directories, files in os.walk("/dev/shm"):
        for name in directories + files:
            try:
                entry = os.lstat(os.path.join(where, name))
                if entry.st_uid == os.getuid():
                    found.add((os.path.join(where, name), entry.st_ino))
            except FileNotFoundError:
                pass
    return found


def _lock_holders():
    """Who holds which file's lock: inode and pid. Who waits for one stands below its holder, behind an arrow."""
    with open("/proc/locks") as file:
        held = [line.split() for line in file if " FLOCK " in line and "->" not in line]
    return {int(words[5].rpartition(":")[2]): int(words[4]) for words in held}


def has_dead_jobs():
    """Whether there is a job directory of this user's below /dev/shm whose lock nobody holds."""
    holders = _lock_holders()
    locks = [path for path, _ in shared_files() if path.endswith(".lock") and f"/ftd-{os.getuid()}-" in path]
    return any(os.path.exists(path) and os.lstat(path).st_ino not in holders for path in locks)


def job_locks():
    """The locks of the job directories below /dev/shm that somebody holds, with the pid of who does."""
    holders, found = _lock_holders(), {}
    for path in glob.glob("/dev/shm/**/ftd-*.lock", recursive=True):
        with contextlib.suppress(FileNotFoundError):
            if (holder := holders.get(os.lstat(path).st_ino)) is not None:
                found[path] = holder
    return found


def of_other_jobs(mine):
    """The job directories below /dev/shm whose lock is held by a process that is not one of `mine`, with the files beside them:
    what is in them comes and goes with that job."""
    return {name for path, holder in job_locks().items() if holder not in mine for name in (path, path.removesuffix(".lock"))}


def made_by_others(mine):
    """The System V segments whose creator lives and is not one of `mine`, by id."""
    with open("/proc/sysvipc/shm") as file:
        fields, *lines = [line.split() for line in file]
    creators = {line[1]: int(line[fields.index("cpid")]) for line in lines}
    return {id for id, creator in creators.items() if creator not in mine and alive(creator)}


def is_below(path, directories):
    """Whether it is one of these, or in one."""
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def in_use(mine):
    """The files below /dev/shm that a process of this user, but none of `mine`, has open or mapped: its to remove, when it likes."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) in mine:
            continue
        try:
            with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
                found |= {line.rstrip("\n").partition("/")[2] for line in file if " /dev/shm/" in line}
            found |= {os.readlink(f"/proc/{pid}/fd/{number}")[1:] for number in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            pass
    return {f"/{path}" for path in found if path.startswith("dev/shm/")}


def limit_memory(megabytes, name=None):
    """Puts this process into a new memory cgroup (version 1 or 2) with that limit; its path, or None where that cannot be
    done. `name`: instead of its pid. Needs root."""
    if os.geteuid() != 0:
        return None
    name = name or os.getpid()
    with open("/proc/self/cgroup") as file:
        groups = [line.strip().split(":", 2) for line in file]
    for _, controllers, path in groups:
        if controllers == "memory":
            base, limit = f"/sys/fs/cgroup/memory{path}", "memory.limit_in_bytes"
        elif controllers == "" and os.path.exists(f"/sys/fs/cgroup{path}/memory.max"):
            base, limit = f"/sys/fs/cgroup{path}", "memory.max"
        else:
            continue
        group = f"{base.rstrip('/')}/ftd-test-{name}"
        try:
            os.mkdir(group)
            for file, value in ((limit, megabytes << 20), ("cgroup.procs", os.getpid())):
                with open(f"{group}/{file}", "w") as file:
                    file.write(str(value))
            return group
        except OSError:
            if os.path.isdir(group):
                os.rmdir(group)
    return None


def first_for_memory():
    """The kernel's out-of-memory killer takes this process, and what it starts, before others. While its victim is going it looks
    for the next one, and that is not to be who watches."""
    # Who has changed its user may write there only then.
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def drop_memory_limits(name):
    """Removes the cgroup that `limit_memory` made with this name, or in the process with this pid, which is gone."""
    if os.geteuid() != 0:
        return
    with open("/proc/self/cgroup") as file:
        groups = [line.strip().split(":", 2) for line in file]
    for _, controllers, path in groups:
        if controllers in ("memory", ""):
            base = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            try:
                os.rmdir(f"{base}{path.rstrip('/')}/ftd-test-{name}")
            except OSError:
                pass


def stat(pid):
    """(state, parent, flags) of a process, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), int(fields[6])


def name(pid):
    """Name of the program, as its process calls itself."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def uid(pid):
    """Its user; None when it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def pending(pid, signal_number):
    """Whether this signal was sent to the process and has not been taken yet."""
    with open(f"/proc/{pid}/status") as file:
        sets = [line.split()[1] for line in file if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(one, 16) >> (signal_number - 1) & 1 for one in sets)


def command(pid):
    """Command line, for people."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def argv(pid):
    """Command line, by words."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []


def began(pid):
    """When it did, in ticks of the machine; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def group(pid):
    """The cgroup (version 2) that a process is in."""
    with open(f"/proc/{pid}/cgroup") as file:
        return next(line.strip().split(":", 2)[2] for line in file if line.startswith("0::"))


def descriptors(pid):
    """What a process has open; nothing while it is being replaced by `exec`."""
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    except (PermissionError, FileNotFoundError):
        pass
    return found


def noted(directory):
    """What the shepherds of the job with this directory have noted that they saw below themselves: pids."""
    return set().union(*noted_by_each(directory))


def noted_by_each(directory):
    """The same, one set for each shepherd."""
    found = []
    for path in pathlib.Path(directory).glob("below.*"):
        records = path.read_bytes()
        found.append({pid for pid, _ in struct.iter_unpack("<QQ", records[: len(records) // 16 * 16]) if pid < 1 << 63})
    return found


def connections(pid):
    """The TCP connections over IPv4's loopback of a process: per pair of ports (its own, the other's) a copy of the socket."""
    rows = [row.split() for row in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    local = re.compile("0100007F:([0-9A-F]{4})$")
    ports = {row[9]: (local.match(row[1]), local.match(row[2])) for row in rows if row[3] == "01"}
    found = {}
    process = os.pidfd_open(pid)
    for number in map(int, os.listdir(f"/proc/{pid}/fd")):
        try:
            inode = re.match(r"socket:\[(\d+)\]$", os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:
            continue
        if inode and all(ends := ports.get(inode[1], (None, None))):
            copy = _libc.syscall(PIDFD_GETFD, process, number, 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), f"pidfd_getfd({pid}, {number})")
            found[tuple(int(end[1], 16) for end in ends)] = socket.socket(fileno=copy)
    os.close(process)
    return found


def environ(pid):
    """The environment that a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = file.read().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(item).partition("=")[::2] for item in items if b"=" in item)


def descendants(root):
    """All processes below `root`, zombies included, parents before children."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            found = stat(entry)
            if found:
                children.setdefault(found[1], []).append(int(entry))
    below, todo = [], [root]
    while todo:
        for child in sorted(children.get(todo.pop(0), [])):
            below.append(child)
            todo.append(child)
    return below


def alive(pid):
    """Whether the process can still run: it is neither gone nor a zombie."""
    found = stat(pid)
    return found is not None and found[0] not in "ZX"


def freeze(*pids):
    """SIGSTOP to all of these, and proof: a process stops when it gets a processor, and of several threads one takes it, and
    until it has run the others go on."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while running := [pid for pid in pids if not stands_still(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{running} do not stop")
        time.sleep(0.001)


def kill_frozen(*pids):
    """SIGKILL to several that stand still: nobody of them acts on the death of another one."""
    freeze(*pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def stands_still(pid):
    """Whether no thread of a process runs any more."""
    try:
        states = [line[7] for task in os.listdir(f"/proc/{pid}/task") for line in open(f"/proc/{pid}/task/{task}/status")
                  if line.startswith("State:\t")]
    except (FileNotFoundError, ProcessLookupError):
        # A thread has just ended, or all of them have.
        return not alive(pid)
    return all(state in "TtZX" for state in states)


def kill(pid):
    """SIGKILL, and waits until the process runs no more. A process that is gone is an error of the test."""
    kill_all([pid])


def kill_all(pids):
    """SIGKILLs several processes at once, then waits until none of them runs. All were there; one may die of another's death."""
    pids = list(pids)
    held = [os.pidfd_open(pid) for pid in pids]
    for descriptor in held:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} still run 10 s after their SIGKILL")
        time.sleep(0.0002)


def kill_tree(root, also_root):
    """SIGKILLs everything below `root` until nothing is left; only for processes that this harness started."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        below = [pid for pid in descendants(root) if alive(pid)]
        if also_root and alive(root):
            below.append(root)
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def waits_in(pid):
    """The kernel function in which a process sleeps; empty when it runs."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return file.read()
    except OSError:
        return ""


def describe(root):
    """The processes below `root`, one line each."""
    lines = []
    for pid in descendants(root):
        found = stat(pid)
        if not found:
            continue
        env = environ(pid)
        where = f" rank {env['FT_RANK']} world {env.get('FT_WORLD')}" if "FT_RANK" in env else ""
        try:
            with open(f"/proc/{pid}/wchan") as file:
                where += f" in {file.read()}"
        except OSError:
            pass
        lines.append(f"  {pid} parent {found[1]} {found[0]}{where}: {command(pid) or name(pid)}"[:300])
    return "\n".join(lines)


def switches(pid):
    """How often a process has waited for something, so far."""
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def processor_time(pid):
    """Seconds of a processor that a process and its threads have used."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resources(pid):
    """What a leak would add to: descriptors, children, resident kB, mapped files in shared memory."""
    kb = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            # Private pages: shared ones are the arenas' and the libraries'.
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                kb += int(line.split()[1])
    children = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            children += len(file.read().split())
    shared = set()
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            if "/dev/shm/" in line or "/memfd:" in line:
                shared.add(line.split(None, 5)[5])
    with open(f"/proc/{pid}/status") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "children": children,
        "shared": len(shared),
        "private_kb": kb,
        "resident_kb": resident,
    }
