"""The daemon as systemd's service: what the administrators' page tells to type on a node, typed on a machine that systemd has started."""

import os
import pathlib
import re
import shutil
import signal
import subprocess

from harness import proc
from harness.cluster import Cluster
from harness.job import check
from harness.registry import scenario

from .admin_page import typed
from .processes import eventually

SYSTEMD = pathlib.Path("/lib/systemd/systemd")

# On a node: a group of control groups for all that systemd starts, in the hierarchy of its own that systemd has besides those of controllers,
# and in those that it mounts and uses, or where the kernel has no such hierarchies any more, or this is wanted, in the one of version 2.
GROUP = """set -e
mkdir -p /run/hierarchies/named
cd /run/hierarchies
if [ $3 = any ] && mount -t cgroup -o none,name=systemd,xattr cgroup named
then kind=named
     mkdir named/$1
     echo $$ > named/$1/cgroup.procs
     for one in memory pids devices
     do mkdir $one
        if mount -t cgroup -o $one cgroup $one
        then group=$one$(sed -n "s/^[0-9]*:$one://p" /proc/self/cgroup)/$1; mkdir $group; echo $$ > $group/cgroup.procs
        fi
     done
else kind=unified
     mount -t cgroup2 cgroup2 named
     group=named$(sed -n 's/^0:://p' /proc/self/cgroup)/$1; mkdir $group; echo $$ > $group/cgroup.procs
fi
exec unshare --pid --fork --kill-child=SIGKILL --mount --cgroup /bin/sh -c "$2" sh $kind"""

# What systemd finds there: its own /etc, /dev and /run, and units that do nothing but what is looked at. Journald is there for `journalctl`.
BOOT = """set -e
mount --make-rprivate /
mount -t proc proc /proc
mkdir /run/etc /run/dev
mount -t tmpfs tmpfs /run/dev
for name in null zero full random urandom tty; do touch /run/dev/$name; mount --bind /dev/$name /run/dev/$name; done
mkdir /run/dev/shm
mount --move /run/dev /dev
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
rm -rf /etc/systemd /etc/ftd
mkdir -p /etc/systemd/system /run/log/journal
cd /etc/systemd/system
for name in basic sysinit shutdown umount final network-online multi-user; do printf '[Unit]\\nDefaultDependencies=no\\n' > $name.target; done
printf '[Unit]\\nRequires=systemd-journald.service\\n' > default.target
cp /lib/systemd/system/systemd-journald.service /lib/systemd/system/systemd-journald.socket .
if [ $1 = named ]
then mount -t tmpfs tmpfs /sys/fs/cgroup; mkdir /sys/fs/cgroup/systemd; mount -t cgroup -o none,name=systemd,xattr cgroup /sys/fs/cgroup/systemd
else mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test SYSTEMD_UNIT_PATH=/etc/systemd/system %s --system --log-target=console --show-status=no systemd.legacy_systemd_cgroup_controller""" % SYSTEMD


# Where the service stands among the groups.
UNIT = "/system.slice/ftd.service"

# Takes that group away.
REMOVE = """for group in $(find /run/hierarchies -type d -name $1)
do find $group -depth -type d -exec rmdir {} + || exit 1
done"""


class Machine:
    """A node with systemd on it."""

    def __init__(self, context, node, groups="any"):
        self.context, self.node, self.name = context, node, f"ftd-service-{os.getpid()}"
        self.log = context.dir / "systemd.log"
        with open(self.log, "wb") as log:
            self.process = node.start("/bin/sh", "-c", GROUP, "sh", self.name, BOOT, groups, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.init = None

    def is_up(self):
        """Waits until systemd has started all that it is to start."""
        self.init = eventually(self._init, "systemd", 20)
        eventually(lambda: self.types("systemctl is-system-running")[1].strip() == "running", "the machine to be up", 30)

    def _init(self):
        return next((pid for pid in proc.descendants(self.process.process.pid) if proc.name(pid) == "systemd"), None)

    def off(self):
        """It is gone, with all that it has started, and so are its control groups, of which the kernel lets go a little later."""
        if self.init is not None:
            os.kill(self.init, signal.SIGKILL)
        self.process.process.wait(20)
        gone = lambda: self.node.run("/bin/sh", "-c", REMOVE, "sh", self.name)[0] == 0
        eventually(gone, "its control groups to be removed", 20)

    def types(self, line):
        """What an administrator types there: status, output and error."""
        env = {"PATH": f"{self.context.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "SYSTEMD_PAGER": "cat"}
        run = subprocess.run(["nsenter", "--target", str(self.init), "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "/bin/sh", "-c", line],
                             env=env, capture_output=True, text=True, timeout=60)
        print(f"# {line}: {run.returncode}\n{run.stdout}{run.stderr}", flush=True)
        return run.returncode, run.stdout, run.stderr

    def does(self, line):
        """The same, which is to work; its output."""
        status, out, err = self.types(line)
        if status != 0:
            self.types("systemctl status ftd; journalctl -u ftd")
            check(False, f"{line}: {status}: {out}{err}{self.log.read_text(errors='replace')}")
        return out

    def shown(self, name):
        """What systemd says of the service."""
        return self.does(f"systemctl show --value -p {name} ftd").strip()


@scenario("ftd-service", cluster=True, timeout=120)
def service(context):
    """The lines of the administrators' page for the service, typed: it is installed, linked, enabled and started, reloaded and restarted; another release takes its place, below
    a PREFIX of its own; a wrong configuration is refused; killed, it comes back, but not with a wrong configuration; a job outlives it; and it ends."""
    lines = typed(context, "ftd-service")
    line = lambda start: next(line for line in lines if line.startswith(start))
    with Cluster(context, 1) as cluster:
        machine = Machine(context, cluster.nodes[0])
        try:
            machine.is_up()
            use(machine, line)
            keep_jobs(context, cluster, machine)
            replace(context.prefix, machine, line)
        finally:
            machine.off()


@scenario("ftd-service-unified", cluster=True, timeout=120)
def unified(context):
    """A job of a daemon's that systemd has started where all control groups are of version 2."""
    lines = typed(context, "ftd-service")
    with Cluster(context, 1) as cluster:
        machine = Machine(context, cluster.nodes[0], "unified")
        try:
            machine.is_up()
            for line in lines[:3]:
                machine.does(line)
            keep_jobs(context, cluster, machine)
        finally:
            machine.off()


def use(machine, line):
    """Types the page's lines."""
    for start in ("install -D", "systemctl link", "systemctl enable --now"):
        machine.does(line(start))
    pid = lambda: int(machine.shown("MainPID"))
    check(machine.shown("ActiveState") == "active" and machine.shown("UnitFileState") == "enabled", "it is not there")
    status = machine.does(line("ftd status"))
    first = pid()
    check(re.search(r"^node +\S+", status, re.M) and first > 0, status)
    check(machine.types(line("ftd check-config"))[0] == 0, "the installed configuration")
    machine.does(line("systemctl reload"))
    check(pid() == first, "it was started again")
    wrong, right = "echo 'nonsense = 1' >> /etc/ftd/ftd.toml", "sed -i '$d' /etc/ftd/ftd.toml"
    machine.does(wrong)
    said = machine.types(line("ftd check-config"))
    check(said[0] != 0 and "nonsense" in said[1] + said[2], f"{said}")
    check(machine.types(line("systemctl reload"))[0] != 0 and pid() == first, "a wrong file is taken")
    machine.does(right)
    machine.does(line("systemctl restart"))
    second = pid()
    check(second not in (0, first) and machine.shown("ActiveState") == "active", f"{second}")
    machine.does(f"kill -9 {second}")
    eventually(lambda: pid() not in (0, second) and machine.shown("ActiveState") == "active", "it to come back", 30)
    machine.does(wrong)
    machine.does(f"kill -9 {pid()}")
    eventually(lambda: machine.shown("ActiveState") == "failed", "the wrong file to be refused", 30)
    check(machine.shown("ExecMainStatus") == "2", "another failure")
    journal = machine.does(line("journalctl"))
    check("nonsense" in journal, journal)
    machine.does(right)
    machine.does("systemctl start ftd")


def keep_jobs(context, cluster, machine):
    """A job runs in a control group of its own, outlives its daemon, however that ends, and recovers then; its group goes with it."""
    node, started, go, out = cluster.nodes[0], context.work / "started", context.work / "go", context.work / "out"
    cluster.give(context.work)
    rank = f"echo $$ >> {started}; until [ -e {go} ]; do sleep 0.05; done"
    job = f"ftrun -n 2 --ft=reinit --hosts $(hostname) sh -c '{rank}' > {out} 2>&1; echo status $? >> {out}"
    (context.work / "job").write_text(f"cd {context.work}\n{job}\n")
    user, group = cluster.user.pw_uid, cluster.user.pw_gid
    machine.does(f"setpriv --reuid={user} --regid={group} --clear-groups sh {context.work}/job < /dev/null > /dev/null 2>&1 &")
    begun = lambda: started.read_text().split() if started.exists() else []
    eventually(lambda: len(begun()) == 2, "the ranks", 20)
    ranks = {node.outside(pid) for pid in begun()}
    names, own = stands(node, user)
    check({"ftrun", "ft-agent", "ft-shepherd", "sh"} <= names, f"{names}")
    daemon = unit_of(node.outside(machine.shown("MainPID")))
    (name,) = {group.split(UNIT, 1)[1] for group in own}
    check(re.fullmatch(r"/ftrun-[^/]+-[0-9a-f]{16}", name), f"the job runs in {own}, and the daemon in {daemon}")
    check({f"{group}{name}" for group in daemon} == own, f"the job runs in {own}, and the daemon in {daemon}")
    for how in ("restart", "stop", "start"):
        machine.does(f"systemctl {how} ftd")
    pid = machine.shown("MainPID")
    machine.does(f"kill -9 {pid}")
    eventually(lambda: machine.shown("MainPID") not in ("0", pid) and machine.shown("ActiveState") == "active", "it to come back", 30)
    check(ranks <= set(node.pids()) and len(begun()) == 2, "the job does not outlive its daemon")
    os.kill(min(ranks), signal.SIGKILL)
    eventually(lambda: len(begun()) == 4, "the recovery", 30)
    check(stands(node, user)[1] == own, f"the job runs in {stands(node, user)}")
    go.touch()
    eventually(lambda: "status" in out.read_text(), "the end", 20)
    check(out.read_text().endswith("status 0\n"), out.read_text())
    left = lambda: machine.does("find /sys/fs/cgroup -type d -name 'ftrun-*'")
    eventually(lambda: left() == "", "the job's control group to be removed", 20)
    for path in (started, go, out):
        path.unlink()


def stands(node, user):
    """Who runs in the service or below it as that user: their names, and in which control groups. Who has launched the job runs elsewhere."""
    found = [(proc.name(pid), unit) for pid in node.pids() if proc.uid(pid) == user and (unit := unit_of(pid))]
    print(found, flush=True)
    return {name for name, _ in found}, {group for _, unit in found for group in unit}


def unit_of(pid):
    """The control groups of a process that are the service's, or below these, in the hierarchies in which jobs have their own."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {line.split(":", 2)[2] for line in lines if re.match(r"\d+:(name=systemd|memory|):", line) and UNIT in line}


def replace(prefix, machine, line):
    """Another release takes the place of the one that runs, now and when the machine starts; and is stopped."""
    other = prefix.with_name(f"{prefix.name}-2")
    shutil.copytree(prefix, other, symlinks=True)
    unit = other / "lib/systemd/system/ftd.service"
    unit.write_text(unit.read_text().replace(str(prefix), str(other)))
    of = lambda: machine.does(f"readlink /proc/{machine.shown('MainPID')}/exe").strip()
    check(of() == str(prefix / "bin/ftd"), of())
    for start in ("systemctl enable --force", "systemctl try-restart"):
        machine.does(line(start))
    check(of() == str(other / "bin/ftd"), of())
    release = machine.does(f"{other}/bin/" + line("ftd --version").split("#")[0]).split(maxsplit=1)[1].strip()
    check(re.fullmatch(r"\S+ \(protocol \d+\)", release), release)
    check(machine.does(line("ftd status")).startswith(f"ftd {release}, pid "), release)
    starts = machine.does("readlink -f /etc/systemd/system/multi-user.target.wants/ftd.service").strip()
    check(starts == str(unit) and machine.shown("UnitFileState") in ("enabled", "linked"), starts)
    machine.does("systemctl stop ftd")
    check((machine.shown("ActiveState"), machine.shown("Result")) == ("inactive", "success"), "it has not ended well")
