"""What lies below: wait statuses, names that are no text, limits, and what a hostile or broken peer can do."""

import os
import signal
import subprocess
import time

from harness import peer, proc
from harness.job import check
from harness.registry import scenario

RT3 = signal.SIGRTMIN + 3


@scenario("real-time-signal", each=[{"who": w} for w in ("rank", "agent", "shepherd", "pmix", "wrapped")])
def real_time_signal(context, who):
    """A death by a real-time signal is a death like any other, and the block names the signal."""
    mpi = context.mpi("openmpi4" if who == "pmix" else "mpich4")
    program = context.program(mpi, "places.c")
    command = ["bash", "-c", f"{program}; exit $?"] if who == "wrapped" else [program]
    job = context.ftrun(mpi, 3, *command, gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    victim = {"rank": lambda: rank, "wrapped": lambda: rank, "agent": lambda: job.one("ft-agent"),
              "shepherd": lambda: job.shepherd_of(rank), "pmix": lambda: min(job.below("ft-pmix"))}[who]()
    os.kill(victim, RT3)
    job.expect(0, context.reference(mpi, 3, program), patience=20)
    check(job.restored == [5], f"restored {job.restored}")
    named = {"rank": "rank 1 on node 0 was killed by SIGRTMIN+3", "wrapped": "rank 1 on node 0 was killed by SIGRTMIN+3",
             "agent": "the agent died (SIGRTMIN+3)", "shepherd": "rank 1 on node 0 was lost (its shepherd died)",
             "pmix": "lost its PMIx server (ft-pmix)"}[who]
    check(named in job.err, f"the signal is not named: {job.err}")


@scenario("sent-fault", each=[{"who": w} for w in ("front", "launcher", "agent", "shepherd", "pmix")])
def sent_fault(context, who):
    """SIGSEGV and SIGBUS that somebody sends end a process of ftd's at the first time: the job when it is ftrun, and else it is
    replaced."""
    mpi = context.mpi("openmpi4" if who == "pmix" else "mpich4")
    program = context.program(mpi, "places.c")
    for number in (signal.SIGSEGV, signal.SIGBUS):
        job = context.ftrun(mpi, 2, program, gates=["app.compute:1"])
        rank = job.at_gate("app.compute", 1)
        victim = {"front": lambda: job.pid, "launcher": lambda: job.launcher, "agent": lambda: job.one("ft-agent"),
                  "shepherd": lambda: job.shepherd_of(rank), "pmix": lambda: min(job.below("ft-pmix"))}[who]()
        os.kill(victim, number)
        if who in ("front", "launcher"):
            status = job.wait(20)
            check(status in (-number, 128 + number), f"exit status {status}: {job.err}")
        else:
            job.expect(0, context.reference(mpi, 2, program), patience=20)
            check(len(job.recoveries) == 1, f"not replaced: {job.err}")


@scenario("low-stack")
def low_stack(context):
    """A stack limit with which ftd's helpers would crash is named before anything runs; the lowest that is accepted works."""
    mpi = context.mpi("openmpi4")
    job = context.script("ulimit -s 511; exec $FTRUN -n 2 true")
    check(job.wait(20) != 0 and "(ulimit -s) is 511 KiB, and ftd needs 512 KiB" in job.err, job.err)
    program = context.program(mpi, "places.c")
    job = context.script(f"ulimit -s 512; exec $FTRUN -n 2 --ft=reinit {program}", mpi=mpi, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0, context.reference(mpi, 2, program))


@scenario("low-addresses")
def low_addresses(context):
    """An address space that is too small for ftd's own processes is named before anything runs; the lowest that is accepted works."""
    mpi = context.mpi("openmpi4")
    job = context.script("ulimit -v 131071; exec $FTRUN -n 2 true")
    check(job.wait(20) != 0 and "(ulimit -v) is 131071 KiB, and ftd's own processes need 131072 KiB" in job.err, job.err)
    job = context.script(f"ulimit -v 131072; exec $FTRUN -n 2 true", mpi=mpi)
    job.expect(0)


@scenario("umask", public=True, each=[{"mask": mask} for mask in ("177", "777", "077")])
def umask(context, mask):
    """A umask with which ftrun could not use its own files is named before there are any; all others work."""
    job = context.script(f"umask {mask}; exec $FTRUN -n 2 --ft=reinit bash -c umask")
    job.expect(0 if mask == "077" else 1)
    said = f"the umask 0{mask} keeps ftrun from its own files" in job.err
    check(said != (mask == "077") and job.output.text == ("0077\n" * 2 if mask == "077" else ""), f"{job.output.text}{job.err}")


@scenario("forgotten-below", each=[{"number": n} for n in ("SIGSEGV", "SIGKILL", "SIGRTMIN+3")])
def forgotten_below(context, number):
    """A wrapper has waited for its rank, and stays, before the agent comes to ask what the rank died of: the block names it, and
    not what ftd killed the wrapper with."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    wrapper = f"{program}; code=$?; sleep 600; exit $code"
    job = context.ftrun(mpi, 3, "bash", "-c", wrapper, gates=["app.compute:1", "agent.dying:1"], hurry=4)
    rank = job.at_gate("app.compute", 1)
    os.kill(rank, RT3 if number == "SIGRTMIN+3" else getattr(signal, number))
    job.at_gate("agent.dying", 1)
    deadline = time.monotonic() + 10
    while proc.stat(rank) is not None:
        check(time.monotonic() < deadline, "the wrapper does not wait for its rank")
        time.sleep(0.002)
    job.go("agent.dying", 1)
    job.wait_err("restored +version", 1)
    # The wrappers of the second world sleep as well.
    for pid in job.below("sleep"):
        os.kill(pid, signal.SIGTERM)
    job.wait_ranks(3, 2)
    deadline = time.monotonic() + 30
    while job.running():
        check(time.monotonic() < deadline, "the job does not end")
        for pid in job.below("sleep"):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)
    job.expect(0, context.reference(mpi, 3, program))
    check(job.restored == [5], f"restored {job.restored}")
    check(f"rank 1 on node 0 was killed by {number}\n" in job.err, f"the signal is not named: {job.err}")


@scenario("name-no-text", each=[{"how": "prctl"}, {"how": "cut"}, {"how": "bytes"}])
def name_no_text(context, how):
    """A rank whose name is no text, or is cut by the kernel in mid-character, dies, and a survivor aborts because of it: that
    is collateral. Agent and shepherd stand still meanwhile, so that only the kernel can tell of the death."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "named.c")
    file = {"prctl": "named", "cut": r"vierzehn-bytes\303\251", "bytes": r"\377\376"}[how]
    argument = r"$'\377\376'" if how == "prctl" else ""
    job = context.script(
        f"cp {program} $'./{file}'\nexec $FTRUN -n 2 --ft=reinit $'./{file}' {argument}\n", mpi=mpi,
        gates=["app.compute:1", "app.abort:0", "agent.noticed:*:1:mark"],
    )
    victim, _ = job.at_gate("app.compute", 1), job.at_gate("app.abort", 0)
    stopped = [job.one("ft-agent"), job.shepherd_of(victim)]
    proc.freeze(*stopped)
    job.kill(victim, "rank 1")
    job.go("app.abort", 0)
    agent, shepherd = stopped
    os.kill(agent, signal.SIGCONT)
    job.at_gate("agent.noticed")
    os.kill(shepherd, signal.SIGCONT)
    job.expect(0, patience=20)
    check(job.output.results == ["of named"] and job.restored == [None], f"{job.output.text}{job.err}")
    check("rank 1 on" in job.err and "SIGKILL" in job.err, f"the death is not named: {job.err}")


# A rank that speaks the two protocols itself: it joins as a client library, or as an MPI, and asks for what nobody asks for.
HOSTILE = peer.HEAD + r"""
def read(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            sys.exit("closed")
        data += more
    return data

def answer(s):
    word = unpack(read(s, struct.unpack("<I4x", read(s, 8))[0]))
    # A variant's name, and what it has.
    return next(iter(word.items())) if isinstance(word, dict) else (word, {})

def who(**more):
    return {"world": int(os.environ["FT_WORLD"]), "rank": int(os.environ["FT_RANK"]), "pid": os.getpid(), **more}

def join(layout):
    s = dial(CLIENT)
    read(s, 16)
    s.sendall(frame({"Hello": who(layout=layout)}))
    return s, answer(s)

# Its refusal says which layout of arenas this agent reads.
s, (_, refused) = join(0)
s, (said, _) = join(int(re.search(r"this ftd reads (\d+)", refused["reason"])[1]))
print(said, flush=True)
if sys.argv[1] == "size":
    for size in ((1 << 64) // 3 + 1, 1 << 63, (1 << 64) - 1):
        s.sendall(frame({"Reserve": {"place_bytes": size}}))
        said, what = answer(s)
        print(said, what.get("reason"), flush=True)
if sys.argv[1] == "frame":
    try:
        s.sendall(struct.pack("<I", 5 << 20) + bytes(4))
        s.sendall(bytes(1 << 20))
        read(s, 1)
    except OSError:
        sys.exit("closed")
if sys.argv[1] == "again":
    held = []
    for number in range(300):
        held.append(join(0)[0])
        s = dial(RANK)
        read(s, 16)
        s.sendall(frame({"Hello": who(flavour="Mpich", library="", session=False)}))
        said, what = answer(s)
        held.append(s)
        if number in (0, 299):
            print("joined" if said == "Welcome" else what["reason"], flush=True)
    while not os.path.exists("seen"):
        time.sleep(0.01)
if sys.argv[1] == "deaf":
    # As long as somebody takes it.
    s.settimeout(20)
    sent = 0
    try:
        while sent < 1 << 30:
            sent += s.send(frame("Due") * 4096)
    except TimeoutError:
        print("stopped", flush=True)
    except OSError:
        print("cut off", flush=True)
    while not os.path.exists("seen"):
        time.sleep(0.01)
"""


def hostile(context, what):
    """A job of one rank that is HOSTILE."""
    program = context.work / "hostile.py"
    program.write_text(HOSTILE)
    return context.ftrun(None, 1, "/usr/bin/python3", str(program), what)


def most_memory(job, look=lambda most: None):
    """The most kB of its own that the agent has had while the job runs; `look` is told again and again."""
    agent, most = job.one("ft-agent"), 0
    while job.running():
        try:
            most = max(most, proc.resources(agent)["private_kb"])
        except (OSError, StopIteration):
            break
        look(most)
        time.sleep(0.01)
    return most


@scenario("hostile-size")
def hostile_size(context):
    """Sizes at which a product overflows are refused with a sentence, and nothing else happens."""
    job = hostile(context, "size")
    job.expect(0, patience=20)
    lines = job.output.text.splitlines()
    check(lines[0] == "Welcome" and len(lines) == 4, job.output.text)
    for line in lines[1:]:
        check(line.startswith("NoMemory a version of") and "there is room for" in line, line)
    check(job.err == "", f"something else happened: {job.err}")


@scenario("hostile-frame")
def hostile_frame(context):
    """A frame that is too large is an error that both ends hear of."""
    job = hostile(context, "frame")
    job.expect(1, patience=20)
    check("closed" in job.err, f"the rank did not hear of it: {job.err}")
    check("the checkpoint library of rank 0 is cut off: a frame of 5242880 bytes is longer than the limit" in job.err, job.err)


@scenario("hostile-deaf", timeout=90)
def hostile_deaf(context):
    """A peer that asks and never reads is cut off before its answers fill the agent's memory, and this is said."""
    job = hostile(context, "deaf")

    def look(most):
        check(most < 200_000, f"the agent has {most} kB")
        if job.output.text.endswith("\ncut off\n"):
            job.wait_err("the checkpoint library of rank 0 is cut off: it does not read: 16 MiB wait for it", 1)
            (context.work / "seen").touch()

    most = most_memory(job, look)
    job.expect(0, patience=60)
    print(f"{most} kB")
    check(job.output.text == "Welcome\ncut off\n", job.output.text)
    check(most > 0, "nobody looked at the agent")


@scenario("hostile-again")
def hostile_again(context):
    """A rank that joins again and again is refused at last, and its connections fill no table of the agent's."""
    job = hostile(context, "again")
    agent = job.one("ft-agent")
    deadline = time.monotonic() + 30
    while len(job.output.text.splitlines()) < 3:
        check(time.monotonic() < deadline and job.running(), f"it does not come to its end: {job.output.text}{job.err}")
        time.sleep(0.01)
    descriptors = proc.resources(agent)["descriptors"]
    (context.work / "seen").touch()
    job.wait(20)
    lines = job.output.text.splitlines()
    check(lines[1] == "joined" and lines[2].endswith("has joined 16 times already"), job.output.text)
    check(descriptors < 150, f"the agent had {descriptors} descriptors")


PMI = r"""
import os, sys, socket
s = socket.socket(fileno=int(os.environ["PMI_FD"]))
f = s.makefile("rw", newline="\n")
def ask(line):
    f.write(line + "\n")
    f.flush()
    return f.readline()
ask("cmd=init pmi_version=1 pmi_subversion=1")
refused, value = 0, "v" * int(sys.argv[2])
for i in range(int(sys.argv[1]) // 1000):
    f.write("".join(f"cmd=put kvsname=x key=k{i}.{j} value={value}\n" for j in range(1000)))
    f.flush()
    refused += sum("key_space_full" in f.readline() for _ in range(1000))
names = sum("rc=0" not in ask(f"cmd=publish_name service=s{i} port=" + "p" * 4000) for i in range(int(sys.argv[3])))
print("refused", refused, names, flush=True)
ask("cmd=finalize")
"""


@scenario("hostile-keys", timeout=120, each=[{"keys": 1000000, "bytes": 1}, {"keys": 300000, "bytes": 3500}])
def hostile_keys(context, keys, bytes):
    """A million keys, or a gigabyte of them, through PMI: refused with a sentence, and the agent's memory is bounded. So are published
    names: of 20 000 with 4000 bytes each the last are refused."""
    program = context.work / "pmi.py"
    program.write_text(PMI)
    job = context.ftrun(None, 1, "/usr/bin/python3", str(program), str(keys), str(bytes), "20000", options=["--ft-mpi=mpich"])
    most = most_memory(job)
    job.expect(0, patience=90)
    print(f"{most} kB, {job.output.text}")
    _, refused, names = job.output.text.split()
    check(int(refused) > keys // 2 and 0 < int(names) < 10000, job.output.text)
    check(job.err.count("more than 64 MiB are published by the ranks") == 1, f"nobody is told, or often: {job.err}")
    check("puts more through PMI than" in job.err, f"nobody is told: {job.err}")
    check(0 < most < 150_000, f"the agent had {most} kB")


@scenario("file-size-limit", each=[{"blocks": 0}, {"blocks": 1}, {"blocks": 20000}])
def file_size_limit(context, blocks):
    """Under a file-size limit (`ulimit -f`) no part of ftd dies of it: checkpoints are refused with a sentence, or work."""
    mpi = context.mpi("openmpi4")
    program = context.program(mpi, "places.c")
    env = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
    if blocks == 20000:
        job = context.script(f"ulimit -f {blocks}\nexec $FTRUN -n 2 --ft=reinit {program}\n", mpi=mpi, env=env,
                             gates=["app.compute:1"])
        job.kill(job.at_gate("app.compute", 1))
        job.expect(0, context.reference(mpi, 2, program))
        check(job.restored == [5], f"restored {job.restored}")
        return
    # Through pipes: the test's own files have the limit, too.
    limited = f"(ulimit -f {blocks}; exec $FTRUN -n 2 --ft=reinit %s) 2>&1 | sort -u; exit ${{PIPESTATUS[0]}}\n"
    job = context.script(limited % program, mpi=mpi, env=env)
    if blocks == 0:
        check(job.wait(30) == 1, f"exit status {job.process.returncode}: {job.output.text}")
        check("the file-size limit (ulimit -f) leaves no room" in job.output.text, job.output.text)
        return
    check(job.wait(30) == 70, f"exit status {job.process.returncode}: {job.output.text}")
    for sentence in (f"file-size limit (ulimit -f) of {blocks * 1024} bytes leaves no room for checkpoints",
                     "leaves no room to keep the job's record outside of the agent"):
        check(sentence in job.output.text, f"'{sentence}' is not said: {job.output.text}")
    job = context.script(limited % "echo one", mpi=mpi)
    job.expect(0)
    check("one\n" in job.output.text, job.output.text)


@scenario("installed-size")
def installed_size(context):
    """The client library is installed without its debug information."""
    for name, most in (("libftd_client.so.0", 1 << 20), ("libftd_client.a", 16 << 20)):
        path = context.prefix / "lib" / name
        sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
        check(".debug_" not in sections, f"{name} has debug information")
        check(path.stat().st_size < most, f"{name} has {path.stat().st_size} bytes")
