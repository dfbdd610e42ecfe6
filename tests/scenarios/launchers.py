"""The command line of other launchers: what their users type is understood."""

import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time

from harness.job import check
from harness.registry import scenario

from .hosts import Nodes
from .processes import eventually

MPIS = [{"mpi": name} for name in ("mpich4", "mpich5", "impi", "openmpi4", "openmpi5")]
SAYS = re.compile(r"^world (\d) rank (\d) of (\d): program (-?\d), (\S+), OWN=(\S+) ALL=(\S+) (\S+)$", re.M)


def programs(context, mpi):
    """The words of three programs, two of which are the same file in the same directory, and what each rank has to say."""
    first, there = context.program(mpi, "apps.c"), context.work / "there"
    there.mkdir()
    second = shutil.copy(first, context.work / "other")
    words = ["-n", "1", "-x", "OWN=1", first, "a", ":", "-n", "2", "-wdir", there, "-env", "OWN", "2", second, "b", ":", "-n", "1", first, "c"]
    here = str(context.work)
    return words, {0: ("0", "a", "1", here), 1: ("1", "b", "2", str(there)), 2: ("1", "b", "2", str(there)), 3: ("2", "c", "-", here)}


def said(job):
    """world -> rank -> program's number, word, variable of its own, directory."""
    found = {}
    for world, rank, size, number, word, own, of_all, here in SAYS.findall(job.output.text):
        check((size, of_all) == ("4", "all"), f"{size} {of_all}")
        found.setdefault(int(world), {})[int(rank)] = (number, word, own, here)
    return found


@scenario("programs", each=[{**mpi, "victim": victim} for mpi in MPIS for victim in ("rank", "shepherd")])
def several_programs(context, mpi, victim):
    """Several programs are one job, each with its ranks, variables and directory, and with its number for MPI; a rank has its program
    again when it is started again, on its own slot as on another one."""
    mpi = context.mpi(mpi)
    words, expected = programs(context, mpi)
    job = context.ftrun(mpi, None, *words, options=["-genv", "ALL", "all", "--mca", "x_y", "z"], env={"WAITS": "1"})
    eventually(lambda: len(said(job).get(1, {})) == 4, "all ranks of world 1", 30)
    ranks = job.wait_ranks(4, 1)
    shown = [os.readlink(f"/proc/{ranks[rank]}/exe") for rank in (0, 1)]
    check([name.rsplit("/", 1)[1] for name in shown] == [f"apps.{mpi.name}", "other"], f"{shown}")
    # The last one's: the slot in its place has a number that no rank of the first world had.
    job.kill({"rank": ranks[1], "shepherd": job.shepherd_of(ranks[1])}[victim])
    job.expect(0)
    check(job.restored == [None], f"recoveries {job.restored}: {job.err}")
    for world in (1, 2):
        check(said(job)[world] == expected, f"world {world}: {said(job)[world]}, not {expected}")


@scenario("programs-over-nodes", cluster=True, timeout=90)
def programs_over_nodes(context):
    """… and on another node, when its node is lost."""
    script = 'echo "$0 $FT_WORLD $FT_RANK $OWN $(hostname)"; [ $FT_WORLD = 2 ] || sleep 600'
    with Nodes(context, 3) as nodes:
        words = lambda name: ["/bin/sh", "-c", script, name]
        job = nodes.run("node0,node1,node2", 3, "-x", "OWN=1", *words("a"), ":", "-n", "1", "-x", "OWN=2", *words("b"), ft="reinit",
                        options=["--ft-spares", "1"])
        eventually(lambda: job.output.text.count("\n") == 4, "the ranks of world 1", 30)
        nodes.nodes[1].crash()
        job.expect(0)
        of_world = lambda world, second: [f"a {world} 0 1 node0", f"a {world} 1 1 node0", f"a {world} 2 1 {second}", f"b {world} 3 2 {second}"]
        check(sorted(job.output.text.splitlines()) == sorted(of_world(1, "node1") + of_world(2, "node2")), job.output.text)
        for node in (nodes.nodes[0], nodes.nodes[2]):
            nodes.empty(node)


@scenario("programs-missing")
def programs_missing(context):
    """One of several programs that is not there, or may not be read, is named, and nothing runs."""
    for words, status, name in (
        (["-n", "1", "touch", "ran", ":", "-n", "1", "./none"], 127, "/none"),
        (["-n", "1", "touch", "ran", ":", "-n", "1", "--chdir", "/no/such", "true"], 1, "/no/such"),
        (["-n", "1", "touch", "ran", ":", "true"], 2, "-n N"),
        (["-n", "1", "touch", "ran", ":", "-n", "1", "--timeout", "3", "true"], 2, "--timeout is for the whole job"),
    ):
        job = context.start([context.prefix / "bin/ftrun", *words])
        check(job.wait(20) == status and name in job.err and job.err.count("\n") == 1, f"{words}: {job.process.returncode}: {job.err}")
        check(not (context.work / "ran").exists(), f"{words}: something ran")


@scenario("labels")
def labels(context):
    """-l writes the rank before every line, --tag-output also the stream."""
    script = "echo out $FT_RANK; echo err $FT_RANK >&2"
    for options, out, err in (
        (["-l"], [f"[{rank}] out {rank}" for rank in range(3)], [f"[{rank}] err {rank}" for rank in range(3)]),
        (["-prepend-rank"], [f"[{rank}] out {rank}" for rank in range(3)], [f"[{rank}] err {rank}" for rank in range(3)]),
        (["--tag-output"], [f"[{rank}]<stdout>: out {rank}" for rank in range(3)], [f"[{rank}]<stderr>: err {rank}" for rank in range(3)]),
    ):
        job = context.ftrun(None, 3, "sh", "-c", script, options=options)
        job.expect(0)
        check(sorted(job.output.text.splitlines()) == out and sorted(job.err.splitlines()) == err, f"{options}: {job.output.text}{job.err}")


@scenario("output-files")
def output_files(context):
    """What each rank prints is in files of its own, of all worlds, whole and in order, and not in ftrun's output, where only ftd speaks; what
    an older job left there is gone."""
    (context.work / "out").mkdir()
    (context.work / "out/run.1.out").write_text("of an older job\n")
    script = """for i in $(seq 2000); do echo "world $FT_WORLD line $i of $FT_RANK"; done; echo wrong $FT_RANK >&2; printf 'no end'
    [ $FT_WORLD = 2 ] || if [ $FT_RANK = 1 ]; then until [ -e go ]; do sleep 0.05; done; kill -9 $$; else sleep 600; fi"""
    job = context.ftrun(None, 3, "sh", "-c", script, options=["--output-filename", "out/run"])
    file = lambda rank, end: context.work / f"out/run.{rank}.{end}"
    read = lambda rank, end="out": file(rank, end).read_text() if file(rank, end).exists() else ""
    eventually(lambda: all(read(rank).endswith("no end") for rank in range(3)), "the files of world 1", 30)
    (context.work / "go").touch()
    job.expect(0)
    for rank in range(3):
        worlds = ["".join(f"world {world} line {i} of {rank}\n" for i in range(1, 2001)) for world in (1, 2)]
        check(read(rank) == f"{worlds[0]}no end\n{worlds[1]}no end", f"the file of rank {rank} is {read(rank)[:200]} …")
        check(read(rank, "err") == f"wrong {rank}\n" * 2, read(rank, "err"))
    check(job.output.text == "" and all(line.startswith("ftd:") for line in job.err.splitlines()), f"{job.output.text}{job.err}")


@scenario("output-files-fail", timeout=120)
def output_files_fail(context):
    """A directory for these files that cannot be made is refused; a file that cannot be opened is named, and its rank's output is ftrun's;
    bytes that a full disk does not take are counted, and the job has not ended well."""
    (context.work / "file").write_text("")
    job = context.ftrun(None, 1, "echo", "ran", options=["--output-filename", "file/x/out"])
    check(job.wait(20) == 1 and "--output-filename" in job.err and job.output.text == "", f"{job.output.text}{job.err}")
    (context.work / "run.0.out").mkdir()
    job = context.ftrun(None, 2, "sh", "-c", "echo $FT_RANK", options=["--output-filename", "run"])
    job.expect(0)
    check(job.output.text == "0\n" and "run.0.out" in job.err, f"{job.output.text}{job.err}")
    check((context.work / "run.1.out").read_text() == "1\n", "rank 1 has no file")
    job = context.ftrun(None, 1, "echo", "ran", options=["--output-filename", "new/"])
    job.expect(0)
    check((context.work / "new/.0.out").read_text() == "ran\n" and job.output.text == "", f"{job.output.text}{job.err}")
    (context.work / "full.0.out").symlink_to("/dev/full")
    job = context.ftrun(None, 1, "echo", "12345", options=["--output-filename", "full"], hurry=10)
    check(job.wait(90) == 1 and "6 bytes of full.0.out were lost" in job.err, f"{job.process.returncode}: {job.err}")


@scenario("time-limit")
def time_limit(context):
    """--timeout ends a job as SIGTERM does, with status 124, however its ranks end; one that ends before has its own status."""
    for script, words in (("sleep 600", ""), ("trap 'echo saved; exit 0' TERM; touch ready; while :; do sleep 0.05; done", "saved\n")):
        job = context.ftrun(None, 1, "bash", "-c", script, options=["--timeout", "2"])
        check(job.wait(30) == 124 and "the job has run for 2 s (--timeout), and is ended" in job.err, f"{job.process.returncode}: {job.err}")
        check(job.output.text == words and time_of(job) >= 2, f"{job.output.text} after {time_of(job)} s")
    job = context.ftrun(None, 1, "bash", "-c", "exit 3", options=["-timeout", "20m"])
    job.expect(3)
    check("--timeout" not in job.err, job.err)


def time_of(job):
    return time.monotonic() - job.started


@scenario("time-limit-over-nodes", cluster=True, timeout=90)
def time_limit_over_nodes(context):
    """… also over several nodes, where it is said once; and the ranks are as many as the nodes have slots."""
    with Nodes(context, 2) as nodes:
        job = nodes.sh("node0:2,node1", None, "echo $FT_SIZE; sleep 600", options=["--timeout", "3", "-ppn", "1"])
        check(job.wait(40) == 124 and job.err.count("(--timeout), and is ended") == 1, f"{job.process.returncode}: {job.err}")
        check(job.output.text == "3\n" * 3, job.output.text)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("one-machine")
def one_machine(context):
    """Nodes that are all this machine need no ftd there, and say how many ranks there are; other nodes do need one."""
    host = socket.gethostname()
    (context.work / "nodes").write_text(f"localhost slots=2\n{host}  # the same\n")
    (context.work / "others").write_text("# Open MPI's and MPICH's\n\nlocalhost slots=2 max_slots=4\n127.0.0.1:2\n")
    without = {"FT_DAEMON": ""}
    for options, size, count in (
        (["-H", "localhost:3"], None, 3), (["-host", f"{host}:2"], None, 2), (["-hostfile", "nodes"], None, 3), (["-H", "localhost:4"], 2, 2),
        (["-H", "localhost,127.0.0.1", "-ppn", "2"], None, 4), (["-npernode", "2"], None, 2), (["-ppn", "1"], 3, 3),
        (["-machinefile", "others"], None, 4), (["-H", "localhost:2", "--oversubscribe"], 3, 3),
        (["-hostfile", "nodes", "--map-by", ":OVERSUBSCRIBE"], 4, 4), (["-H", "localhost:1", "--map-by", "slot:PE=1:OVERSUBSCRIBE"], 2, 2),
    ):
        job = context.ftrun(None, size, "sh", "-c", "echo $FT_SIZE", options=options, env=without)
        job.expect(0)
        check(job.output.text == f"{count}\n" * count, f"{options}: {job.output.text}")
    job = context.ftrun(None, None, "sh", "-c", "echo $FT_SIZE", options=["-H", f"localhost:2,{host}:1"], env={"FT_DAEMON": "/no/such/ftd"})
    job.expect(0)
    check(job.output.text == "3\n" * 3, "an ftd was asked for localhost")
    job = context.ftrun(None, 3, "true", options=["-H", "localhost:2"], env=without)
    check(job.wait(20) == 2 and "the nodes have 2" in job.err, job.err)
    job = context.ftrun(None, 1, "true", options=["-H", "elsewhere"], env=without)
    check(job.wait(20) == 1 and "no ftd answers" in job.err, job.err)


@scenario("accepted")
def accepted(context):
    """Options of mpirun's that ask for what is so anyway are accepted; variables in two words reach the ranks, those of all programs too; and
    of PMI there is nothing that another MPI would believe."""
    script = "echo $A $B $OMPI_MCA_btl $OMPI_COMM_WORLD_RANK $FT_RANK $PMI_RANK$PMI_SIZE$PMI_ID$PMIX_RANK"
    job = context.ftrun(None, None, "sh", "-c", script, options=["--allow-run-as-root", "--oversubscribe", "-genv", "A", "1", "-env", "B", "2",
                                                                 "-np", "1", "--mca", "btl", "self,sm"])
    job.expect(0)
    check(job.output.text == "1 2 self,sm 0 0\n", job.output.text)
    # In what the kernel says, whatever a wrapper takes away, and in what is given back to a cleared environment.
    shown = 'tr "\\0" "\\n" < /proc/$$/environ'
    for wrapper in ("", "env -u LD_PRELOAD", "env -u FT_SOCKET", 'env -i LD_PRELOAD="$LD_PRELOAD"', "env -i", "env -u MPIR_CVAR_ASYNC_PROGRESS"):
        job = context.ftrun(None, 1, "bash", "-c", f"{wrapper} bash -c '{shown}; env'")
        job.expect(0)
        names = [line.partition("=")[0] for line in job.output.text.splitlines()]
        check(names.count("PWD") >= 1 and (wrapper.startswith("env -i") or names.count("FT_RANK") == 2), f"{wrapper}: {names}")
        check(not [name for name in names if name.startswith("PMI_")], f"{wrapper}: {job.output.text}")


@scenario("own-settings", each=[{"mpi": mpi, "own": own} for mpi in ("mpich4", "mpich5", "impi") for own in ("unset", "0", "1")])
def own_settings(context, mpi, own):
    """What keeps an MPI of this family from starting alone is one of its own settings: the user's value of it is what the MPI and the program
    find when they have joined, in each world, and what the tools' interface says before; and it is not in the rank's environment before."""
    mpi, given = context.mpi(mpi), [] if own == "unset" else ["MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS"]
    program, env = context.program(mpi, "settings.c"), {name: own for name in given}
    wanted = f"joined {'none' if own == 'unset' else own}"
    for name in ("MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS"):
        job = context.ftrun(mpi, 2, program, "plain", name, env=env)
        job.expect(0)
        check(job.output.text.splitlines() == [wanted] * 2, f"{job.output.text}{job.err}")
    job = context.ftrun(mpi, 1, program, "tools", "MPIR_CVAR_ASYNC_PROGRESS", env=env)
    job.expect(0)
    kept = "not-joined" if own == "unset" else f"not-joined:{own}"
    lines = job.output.text.splitlines()
    check(lines[-1] == wanted and f"MPIR_CVAR_ASYNC_PROGRESS={kept}" in lines, f"{job.output.text}{job.err}")
    # Intel's shows none of MPICH's settings to tools.
    if mpi.name != "impi":
        check(lines[0] == f"tools {1 if own == '1' else 0}", job.output.text)


@scenario("completion")
def completion(context):
    """The installed completions of bash and zsh offer the options, and the values that there are; and no option where none is begun."""
    script = '. {0}/{1}; COMP_WORDS=({1} "$@"); COMP_CWORD=$#; _{1} {1} "${{!#}}" "${{@:$#-1:1}}"; echo "${{COMPREPLY[@]}}"'
    for words, offered in ((["--ft-sp"], ["--ft-spares"]), (["--ti"], ["--timeout"]), (["--output"], ["--output-filename"]),
                           (["--bind-to", ""], ["core", "numa", "socket", "none"]), (["--ft-output", "o"], ["once"]), (["--ft", "r"], ["reinit"]),
                           (["--ft", "=", "r"], ["reinit"]), (["-n", "2", "--bind-to", "=", "co"], ["core"]), ([""], []), (["-n", "2", "./heat", ""], []),
                           (["-x", "A", "=", "re"], []), (["ftctl", "inj"], ["inject"]), (["ftctl", "show", ""], []), (["ftctl", "show", "--j"], ["--json"])):
        program, typed = ("ftctl", words[1:]) if words[0] == "ftctl" else ("ftrun", words)
        said = script.format(context.prefix / "share/bash-completion/completions", program)
        done = subprocess.run(["bash", "-c", said, "bash", *typed], capture_output=True, text=True, timeout=20)
        check(done.returncode == 0 and done.stdout.split() == offered, f"{words}: {done.stdout}{done.stderr}")
    with Bash(context) as bash:
        for typed, completed in (("ftrun --ft=re", "ftrun --ft=reinit "), ("ftrun --bind-to=co", "ftrun --bind-to=core "), ("ftrun -n 2 cat beg", "cat begun.txt ")):
            bash.completes(typed, completed)
    with Zsh(context) as zsh:
        for words, offered in (("ftrun --bind-to=", ["core", "numa", "socket", "none"]), ("ftrun --ft ", ["none", "reinit"]),
                               ("ftrun --map-by=", ["slot", "core", "numa", "socket"]), ("ftrun --hosts ", []), ("ftrun --ft-inject ", []),
                               ("ftctl inj", ["inject"])):
            said = zsh.completes(words, offered)
            check(all(word in said.split() for word in offered), f"{words}: {said}")
            check(not re.search(r"command not found|bad pattern|_arguments:", said), f"{words}: {said}")


class Terminal:
    """A shell at a terminal, with the installed completions and nothing of the user's."""

    def __init__(self, context, argv, setup):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", PS1="ready> ", HOME=str(context.work), COLUMNS="200", INPUTRC="/dev/null")
            os.execvp(argv[0], argv)
        self.type(f"PS1='ready> '; {setup}; echo be''gun\n")
        self.until("begun")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def until(self, word, patience=30.0):
        """What it has written up to a word."""
        text, deadline = "", time.monotonic() + patience
        while word not in text:
            check(select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0], f"the shell says nothing of {word!r}: {text}")
            text += os.read(self.terminal, 4096).decode(errors="replace")
        return text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


class Zsh(Terminal):
    """A zsh."""

    def __init__(self, context):
        functions = context.prefix / "share/zsh/site-functions"
        super().__init__(context, ["zsh", "-f", "-i"],
                         f"unsetopt zle_bracketed_paste; fpath=({functions} $fpath); autoload -U compinit; compinit -u -D; "
                         "setopt auto_list; zstyle ':completion:*' list-packed no; LISTMAX=0")

    def completes(self, words, offered):
        """What it shows when these are completed. (It shows nothing when more is typed before it has.)"""
        self.type(words + "\t")
        shown, deadline = "", time.monotonic() + 20
        while not offered or not all(word in shown.split() for word in offered):
            patience = 2.0 if not offered else deadline - time.monotonic()
            if not select.select([self.terminal], [], [], max(0, patience))[0]:
                break
            shown += os.read(self.terminal, 4096).decode(errors="replace")
        self.type("\x15echo o''ver\n")
        return shown + self.until("over\r\n")


class Bash(Terminal):
    """A bash, in a directory with a file of the name `begun.txt`."""

    def __init__(self, context):
        directory = context.work / "bash"
        directory.mkdir()
        (directory / "begun.txt").touch()
        super().__init__(context, ["bash", "--norc", "--noprofile", "-i"], f"cd {directory}; . {context.prefix}/share/bash-completion/completions/ftrun")

    def completes(self, typed, completed):
        """What is there once that is completed to this."""
        self.type(f"{typed}\t")
        shown = self.until(completed)
        self.type("\x15echo o''ver\n")
        return shown + self.until("over\r\n")
