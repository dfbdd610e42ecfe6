#!/usr/bin/python3
"""make demo: heat2d on four ranks, one of them killed with SIGKILL before your eyes, and the result compared with that of
the undisturbed run. Needs nothing but what was built and one MPI.

    scripts/demo.py [PREFIX]        with PREFIX: that installation instead of what was built
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS, STEPS, VICTIM = 4, 200, 2
COMMAND = ["-g", "256", "-s", str(STEPS), "-c", "10", "-p", "25"]
BOLD, RED, PLAIN = ("\033[1m", "\033[1;31m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def say(text):
    """A line of the demonstration itself."""
    print(f"{BOLD}{text}{PLAIN}", flush=True)


def fail(text):
    """The demonstration does not show what it should."""
    sys.exit(f"{RED}demo: {text}{PLAIN}")


def ranks(launcher):
    """rank -> pid of the processes that run heat2d below the launcher."""
    parents, found = {}, []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            environ = pathlib.Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
        if "(heat2d)" in stat:
            rank = re.search(rb"(?:^|\0)FT_RANK=(\d+)\0", environ)
            if rank:
                found.append((int(rank[1]), int(entry)))

    def below(pid):
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == launcher:
                return True
        return False

    # Other people's heat2d may run as well.
    return {rank: pid for rank, pid in found if below(pid)}


def run(argv, env, kill_at=None):
    """Runs the job, shows its progress on one line and everything else as it comes. Returns (status, result, world
    starts, how many steps came, how many of them again)."""
    steps, result, restarts = {}, None, []
    errors = tempfile.TemporaryFile("a+b")
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1)
    shown = 0
    repeated = 0

    def show_errors():
        nonlocal shown
        errors.seek(shown)
        text = errors.read().decode(errors="replace")
        shown += len(text.encode())
        if text:
            print("\r\033[K" if sys.stdout.isatty() else "", end="")
            print(text, end="", flush=True)

    try:
        for line in process.stdout:
            show_errors()
            if match := re.match(r"step (\d+) hash (\w+)", line):
                number = int(match[1])
                repeated += number in steps
                if steps.setdefault(number, match[2]) != match[2]:
                    fail(f"step {number} had hash {steps[number]}, and now has {match[2]}")
                if sys.stdout.isatty():
                    print(f"\r  step {number:3} of {STEPS}  {'#' * (number * 50 // STEPS):50}  {match[2]}", end="", flush=True)
                elif number % 50 == 0:
                    print(f"  step {number:3} of {STEPS}  {match[2]}", flush=True)
                if kill_at and number == kill_at[0]:
                    kill_at.pop(0)
                    found = ranks(process.pid)
                    patience = time.monotonic() + 5
                    while VICTIM not in found and time.monotonic() < patience:
                        found = ranks(process.pid)
                    if VICTIM not in found:
                        fail(f"rank {VICTIM} is not to be found below ftrun")
                    print(flush=True)
                    say(f"\n$ kill -9 {found[VICTIM]}        # rank {VICTIM}, after step {number}")
                    os.kill(found[VICTIM], signal.SIGKILL)
            elif match := re.match(r"result (\w+)", line):
                result = match[1]
                print(flush=True)
            else:
                if "restarted" in line:
                    restarts.append(line.strip())
                    print()
                print(f"  {line.rstrip()}", flush=True)
        status = process.wait(60)
        show_errors()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return status, result, restarts, len(steps), repeated


def main():
    begun = time.monotonic()
    compiler = next((c for c in ("mpicc", "mpicc.mpich", "mpicc.openmpi") if shutil.which(c)), None)
    if compiler is None:
        fail("there is no mpicc; run scripts/install-deps.sh demo")
    with tempfile.TemporaryDirectory(prefix="ftd-demo-") as scratch:
        if len(sys.argv) > 1:
            prefix = sys.argv[1]
        else:
            prefix = f"{scratch}/ftd"
            install = subprocess.run(
                ["make", "-s", "-C", str(ROOT), "install", f"PREFIX={prefix}"], capture_output=True, text=True
            )
            if install.returncode != 0:
                fail(f"cannot install what make built into {scratch}: {install.stderr}")
        program = f"{scratch}/heat2d"
        lib = f"{prefix}/lib"
        subprocess.run(
            [compiler, "-O2", "-o", program, ROOT / "examples/heat2d/heat2d.c", f"-I{prefix}/include", f"-L{lib}",
             f"-Wl,-rpath,{lib}", "-lftd_client", "-lm"], check=True,
        )
        # An undisturbed run of a few seconds, and on few cores the transports that need no probing.
        # Also for a reader who has set it.
        env = dict(os.environ, OMPI_MCA_pml="ob1", FT_OUTPUT="once")
        ftrun = f"{prefix}/bin/ftrun"
        shown = f"ftrun -n {RANKS} --ft=reinit ./heat2d {' '.join(COMMAND)}"
        argv = [ftrun, "-n", str(RANKS), "--ft=reinit", "--oversubscribe", program, *COMMAND]

        say(f"1. The undisturbed run.\n$ {shown}")
        status, truth, _, _, _ = run(argv, env)
        if status != 0 or truth is None:
            fail(f"the undisturbed run ended with status {status}")
        say("\n2. The same again, and a rank is killed.\n$ " + shown)
        status, result, restarts, came, repeated = run(argv, env, kill_at=[136])
        if status != 0:
            fail(f"the job ended with status {status}")
        say("\n3. The comparison.")
        print(f"  undisturbed   result {truth}")
        print(f"  one kill -9   result {result}")
        if result != truth:
            fail("the results differ")
        if not restarts:
            fail("the job was not restarted from a checkpoint")
        if (came, repeated) != (STEPS, 0):
            fail(f"{came} of {STEPS} steps were shown, {repeated} of them again")
        print(f"  identical, bit for bit; exit code 0; what was computed again was shown once")
        say(f"\nThat took {time.monotonic() - begun:.0f} seconds.")


if __name__ == "__main__":
    main()
