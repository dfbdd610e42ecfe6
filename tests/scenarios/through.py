"""The store of a job over several nodes: its agents ask the nodes' daemons, which alone have etcd's credentials, and one another where their
own daemon is gone or does not reach it."""

import os
import pathlib
import re
import signal

from harness import etcd, names
from harness.job import check
from harness.registry import scenario

from .certificates import authority, openssl
from .hosts import Nodes, ended
from .node_daemon import preamble
from .nodes import SOCKET
from .processes import eventually

# Of what is said of the store; the source has it.
STORE_VERSION = re.search(
    r"^pub const VERSION: u32 = (\d+);", (pathlib.Path(__file__).parents[2] / "ftd/store/src/through/wire.rs").read_text(), re.M
)[1]
PASSWORD = "for-root-alone"
AGENT = 0


def rank_on(node):
    """The only rank on a node, a shell, which may be about to start something."""
    return min(node.named("sh"))


def kill_rank(job, node, ready):
    """A rank there is killed, and the ranks of the next world are all there."""
    os.kill(rank_on(node), signal.SIGKILL)
    eventually(lambda: job.output.text.count("ready\n") == ready, f"the ranks of the next world, {ready} in all", 20)


def secured(context, pki):
    """An etcd that asks its clients for a certificate and a password."""
    def made(cluster):
        (machine,) = cluster.extra
        authority(pki, "site")
        for name, more in (("etcd", f"subjectAltName=IP:{machine.address('store')},IP:127.0.0.1"), ("ftd", "extendedKeyUsage=clientAuth")):
            (pki / "extensions").write_text(more + "\n")
            openssl(pki, f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
            openssl(pki, f"x509 -req -in {name}.csr -CA site.pem -CAkey site.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem")
            (pki / f"{name}.key").chmod(0o600)
        (pki / "password").write_text(f"{PASSWORD}\n")
        (pki / "password").chmod(0o600)
        options = ["--cert-file", pki / "etcd.pem", "--key-file", pki / "etcd.key", "--trusted-ca-file", pki / "site.pem", "--client-cert-auth", "--bcrypt-cost", "4"]
        access = ["--cacert", pki / "site.pem", "--cert", pki / "ftd.pem", "--key", pki / "ftd.key"]
        store = etcd.Etcd(cluster, options=options, scheme="https", access=access)
        store.protect("ftd", PASSWORD, "/ftd/")
        return store

    return made


# In the name of a job, from a process of its user's: what the daemon answers when a key is read, first the word on the job.
ASKS = pathlib.Path(names.__file__).read_text() + """
import socket, sys
job, key = sys.argv[2:4]
frame = lambda word: struct.pack("<II", len(pack(word)), 0) + pack(word)
question = {"Question": {"number": 1, "within": {"secs": 5, "nanos": 0}, "question": {"Read": {"Key": key}}}}
dialled = socket.socket(socket.AF_UNIX)
dialled.connect(sys.argv[1])
dialled.sendall(bytes.fromhex(sys.argv[4]) + frame({"version": int(sys.argv[5]), "job": job}) + frame(question))
def said():
    try:
        header = dialled.recv(8, socket.MSG_WAITALL)
    except ConnectionResetError:
        return None
    return unpack(dialled.recv(struct.unpack("<I", header[:4])[0], socket.MSG_WAITALL)) if len(header) == 8 else None
dialled.recv(16, socket.MSG_WAITALL)
print(said(), said())
"""


@scenario("hosts-secret-etcd", cluster=True)
def secret_etcd(context):
    """A job over two nodes runs and survives a rank's death with an etcd that asks its clients for a certificate and a password. The job's user
    can read neither, has no other job's keys, nor the keys of a job that is another user's."""
    pki = context.dir / "pki"
    keys = (f'ca-file = "{pki}/site.pem"\ncert-file = "{pki}/ftd.pem"\nkey-file = "{pki}/ftd.key"\nuser = "ftd"\npassword-file = "{pki}/password"\n')
    with Nodes(context, 2, store=secured(context, pki), etcd_keys=keys) as nodes:
        go, far, user = context.work / "go", nodes.nodes[1], nodes.cluster.user
        job = nodes.sh("node0:1,node1:1", 2, f"echo ready; until [ -e {go} ]; do sleep 0.05; done; echo $FT_JOB", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        kill_rank(job, far, 4)
        for what in ("password", "ftd.key"):
            status, out, err = far.run("/bin/cat", pki / what, user=user)
            check(status != 0 and "Permission denied" in err, f"the user reads {what}: {out}")
        (name,) = [line.split()[1] for line in nodes.daemons[1].status()[1].splitlines() if line.startswith("jobs ")]
        counted = lambda reason: nodes.daemons[1].number(f'ftd_store_refused_total{{reason="{reason}"}}')

        def asks(job, key, user=user):
            words = [f"{SOCKET}.store", job, key, preamble(role=AGENT).hex(), STORE_VERSION]
            status, out, err = far.run("/usr/bin/python3", "-c", ASKS, *words, user=user)
            check(status == 0, err)
            return out

        check("'Found'" in asks(name, f"/ftd/jobs/{name}/epoch") and counted("key") == 0, "a job's own key")
        check("is nothing that it may read" in asks(name, "/ftd/jobs/other/epoch") and counted("key") == 1, "another job's key is read")
        for who, which in ((user, "other"), (user, "../ftd"), (None, name)):
            check("has no job" in asks(which, f"/ftd/jobs/{which}/epoch", who), f"{which} is {who}'s job")
        check(counted("job") == 3, f"{counted('job')} were counted")
        go.touch()
        ended(job, 0, "ftd: recovery, epoch 2")


@scenario("hosts-store-through-peers", cluster=True)
def through_peers(context):
    """A rank dies on a node whose ftd is gone, another on a node whose network to etcd is cut, and a node while two have no way to etcd, of which one
    is to write that: the job survives all three, through other nodes' ftds."""
    with Nodes(context, 4) as nodes:
        go, (one, two, three, four) = context.work / "go", nodes.nodes
        (store,) = nodes.cluster.extra
        job = nodes.sh("node0:1,node1:1,node3:1,node2:2", 4, f"echo ready; until [ -e {go} ]; do sleep 0.05; done", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks", 20)
        nodes.daemons[1].kill()
        kill_rank(job, two, 8)
        nodes.daemons[1].start()
        for node in (one, two):
            nodes.cluster.cut_link(node, store, "store")
        kill_rank(job, two, 12)
        four.crash()
        eventually(lambda: job.output.text.count("ready\n") == 16, "the ranks without a node", 30)
        go.touch()
        ended(job, 0)
        check(job.err.count("ftd: recovery, epoch") == 3, job.err)
        for node in (one, two, three):
            nodes.empty(node)
