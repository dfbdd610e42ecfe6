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
# or where the kernel has no such hierarchies any more, in the one that there is.
GROUP = """set -e
mkdir /run/hierarchy
if mount -t cgroup -o none,name=systemd,xattr cgroup /run/hierarchy
then kind=named; group=/run/hierarchy/$1
else mount -t cgroup2 cgroup2 /run/hierarchy; kind=unified; group=/run/hierarchy$(sed -n 's/^0:://p' /proc/self/cgroup)/$1
fi
mkdir $group
echo $$ > $group/cgroup.procs
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


# Takes that group away.
REMOVE = """for group in $(find /run/hierarchy -type d -name $1)
do find $group -depth -type d -exec rmdir {} + || exit 1
done"""


class Machine:
    """A node with systemd on it."""

    def __init__(self, context, node):
        self.context, self.node, self.name = context, node, f"ftd-service-{os.getpid()}"
        self.log = context.dir / "systemd.log"
        with open(self.log, "wb") as log:
            self.process = node.start("/bin/sh", "-c", GROUP, "sh", self.name, BOOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
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
    a PREFIX of its own; a wrong configuration is refused; killed, it comes back, but not with a wrong configuration; and it ends."""
    lines = typed(context, "ftd-service")
    line = lambda start: next(line for line in lines if line.startswith(start))
    with Cluster(context, 1) as cluster:
        machine = Machine(context, cluster.nodes[0])
        try:
            machine.is_up()
            use(machine, line)
            replace(context.prefix, machine, line)
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
