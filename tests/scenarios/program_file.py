"""The program's file and the working directory are deleted, replaced or written while the job runs."""

import errno
import os
import re
import shutil
import subprocess
import time

from harness.job import check
from harness.registry import scenario

EVERY_KIND = ("openmpi4", "openmpi5", "mpich4", "impi")


def own_copy(context, mpi, source="places.c"):
    """The program as a file of this scenario's own."""
    path = context.work / "app"
    shutil.copy(context.program(mpi, source), path)
    return path


def replace(path):
    """What `make` or `cp` to a new name and `mv` do: another file under the same name."""
    path.with_suffix(".new").write_bytes(b"#!/bin/sh\necho another program\n")
    path.with_suffix(".new").chmod(0o755)
    path.with_suffix(".new").rename(path)


def open_to_write(path, patience=10.0):
    """Opens a program for writing, once the kernel has let go of the last dead process that ran it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return os.open(path, os.O_RDWR)
        except OSError as error:
            check(error.errno == errno.ETXTBSY and time.monotonic() < deadline, str(error))
            time.sleep(0.005)


def write(path):
    """Opens a file, changes its last byte in place, and leaves it open."""
    file = open_to_write(path)
    at = os.fstat(file).st_size - 1
    os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 1]), at)
    return file


def between_worlds(job):
    """Every rank is dead, and the agent has not begun the next world: what runs cannot be written."""
    job.at_gate("app.compute", 1)
    ranks = job.ranks()
    job.kill(ranks.pop(1))
    job.at_gate("agent.noticed")
    job.kill_all(ranks)


def at_known_content(job, patience=10.0):
    """Until ftrun has read the program, which nothing at the start waits for."""
    deadline = time.monotonic() + patience
    while True:
        for entry in os.scandir(f"/proc/{job.below('ft-shepherd')[0]}/fd"):
            if "memfd:ft-program" in os.readlink(entry.path) and os.stat(entry.path).st_size > 0:
                return
        check(time.monotonic() < deadline, "the program was not read")
        time.sleep(0.005)


def touch(path, as_user):
    as_user(f'touch "{path}"')


def change_attributes(path, as_user):
    """All that changes a file's times and not the file."""
    steps = ('touch -d yesterday "$P"', 'chmod g+w "$P"', 'chown "$(id -u)" "$P"', 'ln -f "$P" "$P.link"', 'mv "$P" "$P.away"',
             'mv "$P.away" "$P"', 'setfattr -n user.note -v x "$P" 2>/dev/null || true', 'touch "$P"')
    as_user(f'P="{path}"; {"; ".join(steps)}')


def rewrite(path, as_user):
    """The same bytes once more, in place: what `cp` of a file over its copy does."""
    shutil.copy(path, f"{path}.copy")
    os.close(open_to_write(path))
    as_user(f'cp "{path}.copy" "{path}"')


def deploy(path, as_user):
    """The same bytes in a new file: what `git checkout`, `rsync` and `install` do."""
    as_user(f'cp "{path}" "{path}.new"; mv "{path}.new" "{path}"')


SAME = {"touched": touch, "attributes": change_attributes, "rewritten": rewrite, "deployed": deploy}


@scenario("program-same", each=[{"kind": k, "how": h} for k in ("elf", "script") for h in SAME])
def program_same(context, kind, how):
    """A program of which nothing but times, names or the inode has changed goes on, and nothing is said. Twice: what was found
    once is not forgotten, and not taken for the truth for ever."""
    mpi = context.mpi("mpich4")
    path = own_copy(context, mpi)
    if kind == "script":
        path.rename(path.with_name("inner"))
        path.write_text(f"#!/bin/sh\nexec {context.work}/inner\n")
        path.chmod(0o755)
    reference = context.reference(mpi, 2, context.program(mpi, "places.c"))
    job = context.ftrun(mpi, 2, path, gates=["app.compute:1", "agent.noticed:*:1", "client.restoring:0"])
    job.at_gate("app.compute", 1)
    at_known_content(job)
    as_user = lambda line: subprocess.run(["bash", "-e", "-c", line], check=True)
    between_worlds(job)
    SAME[how](path, as_user)
    job.go("agent.noticed")
    rank = job.at_gate("client.restoring", 0)
    if kind == "elf":
        check(os.path.samefile(f"/proc/{rank}/exe", path), f"it was started from {os.readlink(f'/proc/{rank}/exe')}")
    if how != "rewritten":
        SAME[how](path, as_user)
    job.kill(rank)
    job.expect(0, reference)
    check("since the job began" not in job.err and set(job.restored) == {5}, job.err)


@scenario("program-gone", each=[{"mpi": m, "how": "deleted"} for m in EVERY_KIND] + [{"mpi": "mpich4", "how": "replaced"}])
def program_gone(context, mpi, how):
    """A program that is deleted or replaced: the next worlds run the one that the job began with, and it is said once."""
    mpi = context.mpi(mpi)
    reference = context.reference(mpi, 3, context.program(mpi, "places.c"))
    path = own_copy(context, mpi)
    job = context.ftrun(mpi, 3, path, gates=["app.compute:1", "client.restoring:0"])
    first = job.at_gate("app.compute", 1)
    path.unlink() if how == "deleted" else replace(path)
    job.kill(first)
    job.kill(job.at_gate("client.restoring", 0))
    job.expect(0, reference)
    check(job.restored and set(job.restored) == {5}, f"restored {job.restored}")
    said = re.findall(rf"^ftd: .*/app was {how}\b.*: ranks are started from the file as it was$", job.err, re.M)
    check(len(said) == 1, f"it is not said once: {job.err}")


@scenario("program-linked")
def program_linked(context):
    """Another name and other permissions make no other program of it: nothing is said."""
    mpi = context.mpi("mpich4")
    path = own_copy(context, mpi)
    job = context.ftrun(mpi, 2, path, gates=["app.compute:1"])
    pid = job.at_gate("app.compute", 1)
    os.link(path, path.with_suffix(".too"))
    path.chmod(0o700)
    job.kill(pid)
    job.expect(0)
    check("since the job began" not in job.err and job.restored == [5], job.err)


@scenario("program-other", each=[{"how": h} for h in ("overwritten", "set-id", "script-deleted", "script-replaced", "script-overwritten")])
def program_other(context, how):
    """What might be another program now, or cannot be started without its name, ends the job with a sentence that says so."""
    mpi = context.mpi("mpich4")
    path = own_copy(context, mpi)
    script = how.startswith("script")
    if script:
        (path.rename(path.with_name("inner")))
        path.write_text(f"#!/bin/sh\nexec {context.work}/inner\n")
        path.chmod(0o755)
    elif how == "set-id":
        path.chmod(0o2755)
    job = context.ftrun(mpi, 2, path, gates=["app.compute:1", "agent.noticed:*:1"])
    between_worlds(job)
    if how.endswith("overwritten"):
        os.close(write(path))
    elif how == "script-replaced":
        replace(path)
    else:
        path.unlink()
    job.go("agent.noticed")
    check(job.wait(20) == 126, f"exit status {job.process.returncode}")
    words = {"overwritten": "was overwritten since the job began", "set-id": "set-id bit", "script-deleted": "was deleted",
             "script-replaced": "was replaced", "script-overwritten": "was overwritten"}[how]
    last = job.err.splitlines()[-1]
    check(words in last and str(path) in last, f"the sentence is {last!r}")
    # Who died of what is said, and no recovery is pretended.
    check("rank 1 on node 0 was killed by SIGKILL" in job.err and "not known" not in job.err, job.err)
    check("restored  nothing: the ranks cannot be started again" in job.err and "restarted" not in job.err, job.err)
    check("another program" not in job.output.text, job.output.text)
    check(not script or how == "script-overwritten" or "script" in last, last)


@scenario("program-busy", each=[{"when": w} for w in ("first", "later", "for-ever")])
def program_busy(context, when):
    """A program that somebody has open for writing is tried again for 10 s; then the sentence names it."""
    mpi = context.mpi("mpich4")
    path = own_copy(context, mpi)
    gates = [] if when == "first" else ["app.compute:1", "agent.noticed:*:1"]
    if when == "first":
        writer = os.open(path, os.O_RDWR)
    job = context.ftrun(mpi, 2, path, gates=gates, hurry=5 if when == "for-ever" else 1)
    if when != "first":
        between_worlds(job)
        writer = open_to_write(path)
        job.go("agent.noticed")
    # Meanwhile no rank runs, and the job is still there.
    time.sleep(0.5)
    check(job.running(), f"it was not tried again: {job.err}")
    check(job.output.text.count("result") == 0 and not job.ranks(), "it was started")
    if when == "for-ever":
        check(job.wait(20) == 126, f"exit status {job.process.returncode}")
        check("open for writing" in job.err and str(path) in job.err, job.err)
    os.close(writer)
    if when != "for-ever":
        job.expect(0)


@scenario("directory-gone", each=[{"mpi": m, "how": "deleted"} for m in EVERY_KIND] + [{"mpi": "mpich4", "how": "renamed"}])
def directory_gone(context, mpi, how):
    """A working directory that is deleted, or renamed: the next world works in the old one, and it is said."""
    mpi = context.mpi(mpi)
    place = context.work / "place"
    place.mkdir()
    program = context.program(mpi, "places.c")
    reference = context.reference(mpi, 3, program)
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1", "client.restoring:0"], cwd=place)
    first = job.at_gate("app.compute", 1)
    if how == "deleted":
        place.rmdir()
    else:
        place.rename(context.work / "elsewhere")
        place.mkdir()
    job.kill(first)
    second = job.at_gate("client.restoring", 0)
    here = os.readlink(f"/proc/{second}/cwd")
    check(here == str(context.work / "elsewhere" if how == "renamed" else f"{place} (deleted)"), f"rank 0 is in {here}")
    job.go("client.restoring", 0)
    job.expect(0, reference)
    check(job.restored == [5], f"restored {job.restored}")
    # Open MPI complains of a deleted one itself.
    said = [line for line in job.err.splitlines() if line.startswith("ftd: ") and "working directory" in line]
    check(len(said) == 1 and str(place) in said[0] and "--chdir" not in job.err, f"{job.err}")


@scenario("directory-gone-before")
def directory_gone_before(context):
    """ftrun in a directory that is deleted already: one sentence, which speaks of no option."""
    job = context.script('mkdir here; cd here; rmdir ../here; exec "$FTRUN" -n 1 /bin/true')
    check(job.wait(10) == 1, f"exit status {job.process.returncode}")
    lines = job.err.splitlines()
    check(len(lines) == 1 and "directory in which ftrun was started" in lines[0] and "--" not in lines[0], f"{lines}")
