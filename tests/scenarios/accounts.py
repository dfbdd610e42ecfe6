"""Whose jobs a node takes: accounts that have expired, root, and users whom nodes know by other numbers or names."""

import signal
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .hosts import Nodes
from .processes import eventually

DAY = 86400
BY_ROOT = "root may not start jobs here (jobs.root in ftd.toml)\n"


class Accounts:
    """Nodes, and what each of them knows of users."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.ran = nodes.context.work / "ran"
        self.before = {node: self.alive(node) for node in nodes.nodes}

    @staticmethod
    def alive(node):
        return {pid for pid in node.pids() if proc.alive(pid)}

    def has(self, node, path, text):
        """The file of accounts has that text on this node alone; with `None` it is the machine's again."""
        own = f"/run/own{path.replace('/', '.')}"
        node.run("/bin/umount", path)
        if text is not None:
            # (Nothing of it may be seen by whoever may not see the machine's.)
            written = node.run("/bin/sh", "-c", f'cp -p {path} {own} && printf %s "$1" > {own} && mount --bind {own} {path}', "-", text)
            check(written[0] == 0, f"{written}")

    def refused(self, *sentence, run, status=1):
        """One sentence with these words, and on no node anything of it."""
        for options in ([], ["--ft=reinit"]):
            got, out, err = run(options)
            check((got, out, err.count("\n")) == (status, "", 1) and err.startswith("ftrun: "), f"not one sentence: {got} {out}{err}")
            for word in sentence:
                check(word in err, f"'{word}' is not in '{err}'")
            self.nothing_left()
        check(not self.ran.exists(), "the program has run")

    def nothing_left(self):
        """Nothing is on any node that was not before, whoever's it is."""
        for node in self.nodes.nodes:
            new = lambda: [proc.name(pid) for pid in self.alive(node) - self.before[node]]
            eventually(lambda: not new(), f"{node.name} without the job", 10)
            self.nodes.empty(node)

    def users(self, options, hosts="node0:1,node1:1"):
        """A job of the ordinary user."""
        return self.nodes.short(hosts, 2, "/bin/sh", "-c", f"echo x >> {self.ran}; hostname", options=options)

    def runs(self, run, hosts=("node0", "node1")):
        """Such a job is let in; what its ranks have left as their word."""
        got = run(["--ft=reinit"])
        check((got[0], sorted(got[1].split()), got[2]) == (0, sorted(hosts), ""), f"{got}")
        self.nothing_left()
        said = self.ran.read_text()
        self.ran.unlink()
        return said


def line_of(path, name):
    """That user's line of a file of accounts, by fields, and the lines before it and after it."""
    with open(path) as file:
        lines = file.read().splitlines(keepends=True)
    (at,) = [at for at, line in enumerate(lines) if line.startswith(f"{name}:")]
    return lines[at].rstrip("\n").split(":"), lambda fields: "".join([*lines[:at], ":".join(fields) + "\n", *lines[at + 1 :]])


@scenario("hosts-account-expired", cluster=True, timeout=90)
def account_expired(context):
    """A user whose account has expired on another node, or on the one where ftrun is, has no job there: one sentence says so and names the node, and nothing
    is started anywhere. One that expires later, and one that has expired on a node that has no part of the job, keeps nothing back."""
    with Nodes(context, 3) as nodes:
        accounts, name = Accounts(nodes), nodes.cluster.user.pw_name
        fields, text = line_of("/etc/shadow", name)
        # The field of `chage -E`. What it names is the first day without the account, and days begin while this runs.
        until = lambda day: text([*fields[:7], str(int(time.time()) // DAY + day), *fields[8:]])
        for node in (nodes.nodes[1], nodes.nodes[0]):
            for day in (0, -700):
                accounts.has(node, "/etc/shadow", until(day))
                accounts.refused(f"ftrun: node {node.name}: the account of {name} has expired there\n", run=accounts.users)
            accounts.has(node, "/etc/shadow", until(2))
            accounts.runs(accounts.users)
        accounts.has(nodes.nodes[2], "/etc/shadow", until(0))
        accounts.runs(accounts.users)
        accounts.has(nodes.nodes[2], "/etc/shadow", None)
        accounts.runs(lambda options: accounts.users(options, "node1:1,node2:1"), ("node1", "node2"))


@scenario("hosts-root", cluster=True, timeout=90)
def root(context):
    """Root starts no jobs where nobody has said that it may (`jobs.root`): not where ftrun is, and not on a node that has not said so, which the sentence
    names; nothing is started. Where all nodes of a job have said so it runs, as root; others' jobs are nobody's concern in this."""
    with Nodes(context, 2) as nodes:
        accounts = Accounts(nodes)
        command = ["/bin/sh", "-c", f"echo x >> {accounts.ran}; id -u >> {accounts.ran}; hostname"]

        def roots(options, hosts="node0:1,node1:1"):
            argv = [context.prefix / "bin/ftrun", "-n", "2", "--hosts", hosts, *options, *command]
            return nodes.nodes[0].run(*argv, env=context.env(None, {}), cwd=context.work)

        def may(number, yes):
            daemon = nodes.daemons[number]
            again = daemon.said().count("changed: jobs.root") + 1
            daemon.file.write_text(f"{daemon.file.read_text().partition('[jobs]')[0]}[jobs]\nroot = {str(yes).lower()}\n")
            daemon.process.kill(signal.SIGHUP)
            daemon.says("changed: jobs.root", times=again)

        accounts.refused(f"ftrun: {BY_ROOT}", run=roots)
        may(0, True)
        accounts.refused(f"ftrun: node node1: {BY_ROOT}", run=roots)
        accounts.runs(lambda options: roots(options, "node0:2"), ("node0", "node0"))
        may(1, True)
        who = accounts.runs(roots)
        check(sorted(who.split()) == ["0", "0", "x", "x"], f"it did not run as root: {who}")
        may(0, False)
        accounts.refused(f"ftrun: {BY_ROOT}", run=roots)
        accounts.runs(accounts.users)


@scenario("hosts-other-numbers", cluster=True, timeout=90)
def other_numbers(context):
    """A user whom another node knows by another number, or whose number is somebody else's there, or here, has no job there: one sentence names the
    node, the number and the names, and nothing is started as anybody. Without that node, and when all nodes know the same, it runs."""
    with Nodes(context, 2) as nodes:
        accounts, user, (here, there) = Accounts(nodes), nodes.cluster.user, nodes.nodes
        name, number = user.pw_name, user.pw_uid
        fields, text = line_of("/etc/passwd", name)
        other = text([*fields[:2], "4711", *fields[3:]])
        somebody = text(["somebody", *fields[1:]])
        # Both of them.
        both = other + ":".join(["somebody", *fields[1:]]) + "\n"
        for theirs, words in (
            (other, f"there is no user {number} ({name})"),
            (somebody, f"user {number} is {name} where the job was started, and somebody there"),
            (both, f"user {number} is {name} where the job was started, and somebody there"),
        ):
            accounts.has(there, "/etc/passwd", theirs)
            accounts.refused(f"ftrun: node node1: {words}\n", run=accounts.users)
            accounts.runs(lambda options: accounts.users(options, "node0:2"), ("node0", "node0"))
        accounts.has(there, "/etc/passwd", None)
        accounts.runs(accounts.users)
        accounts.has(here, "/etc/passwd", somebody)
        accounts.refused(f"ftrun: node node1: user {number} is somebody where the job was started, and {name} there\n", run=accounts.users)
        accounts.has(here, "/etc/passwd", other)
        accounts.refused(f"ftrun: this node knows no user {number}\n", run=accounts.users)
