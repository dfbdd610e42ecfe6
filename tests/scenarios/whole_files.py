"""Directories with odd names, and the files in $FT_CHECKPOINT_DIR: what a world finds there is whole."""

import os
import re
import shutil
import subprocess

from harness import proc
from harness.job import Skipped, check
from harness.registry import scenario

# Neither UTF-8 nor one line.
ODD = os.fsdecode(b"odd \xff\xfe\ndirectory")
# The dynamic linker takes a space in LD_PRELOAD for the end of a name.
ODD_WORD = ODD.replace(" ", "-")


@scenario("memory-on-disk")
def memory_on_disk(context):
    """FT_MEMORY_DIR on a disk is refused with a sentence that names both."""
    disk = context.work / "disk"
    disk.mkdir()
    kind = subprocess.run(["stat", "-f", "-c", "%T", disk], capture_output=True, text=True, check=True).stdout.strip()
    if kind == "tmpfs":
        raise Skipped("the tests' own directory is in memory")
    job = context.ftrun(None, 2, "true", env={"FT_MEMORY_DIR": disk})
    check(job.wait(10) == 1, f"exit status {job.process.returncode}")
    check(re.fullmatch(rf"ftrun: the memory directory {disk} \(FT_MEMORY_DIR\) is on \w+, not in memory: .*/dev/shm\n", job.err), job.err)
    check(not list(disk.iterdir()), f"made there: {list(disk.iterdir())}")


@scenario("odd-paths", each=[{"mpi": m} for m in ("mpich4", "mpich5", "openmpi4", "openmpi5")])
def odd_paths(context, mpi):
    """A working directory, a program, TMPDIR, FT_MEMORY_DIR (and so $FT_CHECKPOINT_DIR) and ftd's own programs in
    directories whose names are not UTF-8 and hold newlines."""
    mpi = context.mpi(mpi)
    odd = context.work / ODD
    (odd / "tmp").mkdir(parents=True)
    libexec = context.work / ODD_WORD
    shutil.copytree(next(context.prefix.rglob("ft-agent")).parent, libexec)
    memory = context.memory / ODD
    memory.mkdir()
    program = str(odd / "program")
    shutil.copy(context.program(mpi, "files.c"), program)
    env = {"FT_MEMORY_DIR": memory, "TMPDIR": odd / "tmp", "FT_LIBEXEC": libexec}
    job = context.ftrun(mpi, 2, program, options=[f"--chdir={odd}"], env=env, cwd=odd, gates=["files.half:0"])
    victim = job.at_gate("files.half", 0)
    seen = proc.environ(victim)
    check(seen["FT_CHECKPOINT_DIR"].startswith(str(memory)), f"FT_CHECKPOINT_DIR is {seen['FT_CHECKPOINT_DIR']!r}")
    check(os.readlink(f"/proc/{victim}/cwd") == str(odd), "the ranks' working directory is another")
    with open(f"/proc/{victim}/maps", "rb") as maps:
        check(b"libft_preload.so" in maps.read(), "the preload did not come along")
    job.kill(victim)
    job.expect(0)
    starts = re.findall(r"^restart from (\d+)$", job.output.text, re.M)
    check(len(starts) == 2, f"restarts from {starts}: {job.err}")
    check(len(job.restored) == 1, job.err)
    check(not list(memory.iterdir()), f"left in FT_MEMORY_DIR: {list(memory.iterdir())}")
    memory.rmdir()
    check(not list((odd / "tmp").iterdir()), f"left in TMPDIR: {list((odd / 'tmp').iterdir())}")
