#!/usr/bin/python3
"""Whether any program prints with random kills the same lines, once, as without.

    tests/same_lines.py [--runs 5] [--kills 2] [--seed N] [--timeout S] [--any-order] -n 4 [OPTION OF FTRUN …] -- PROGRAM …

`ftrun` and `ftctl` are those of the PATH. The program runs three times undisturbed; then so many times under --ft=reinit, and each time random
ranks of it are killed, each within the time that an undisturbed run takes after the start or the recovery before. What the program prints is to
be what it prints undisturbed, but for lines that hold times: those that differ between the undisturbed runs, and all that have their words."""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time

NUMBER = re.compile(r"[-+]?\d[\d.:]*([eEdD][-+]?\d+)?")
# A number may look the same in three runs, and be a time all the same.
TIMED = re.compile(r"\b(time|seconds?|mops|mflops|wall ?clock|elapsed|date)\b|/s\b", re.I)


def shape(line):
    """Its words, whatever the numbers."""
    return " ".join(NUMBER.sub("#", line).split())


def lines_of(text):
    return text.splitlines()


def timed_shapes(texts):
    """The shapes of lines that hold times, from what undisturbed runs have printed."""
    found = set()
    counts = {len(lines_of(text)) for text in texts}
    if len(counts) != 1:
        sys.exit(f"undisturbed runs print different numbers of lines, {sorted(counts)}: nothing can be compared")
    for line, *others in zip(*map(lines_of, texts)):
        if any(other != line for other in others) or TIMED.search(line):
            found.update(map(shape, (line, *others)))
    return found


def kept(text, timed, any_order):
    """The lines that are compared."""
    # A death in the middle of such a line cuts it, and what was shown of it stands there as a line.
    is_timed = lambda words: words in timed or (words and any(one.startswith(words) for one in timed))
    kept = [line for line in lines_of(text) if not is_timed(shape(line))]
    return sorted(kept) if any_order else kept


def undisturbed(ftrun, command, patience):
    begun = time.monotonic()
    try:
        run = subprocess.run([*ftrun, "--ft=none", *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                             timeout=patience)
    except subprocess.TimeoutExpired:
        sys.exit(f"the undisturbed run is not over after {patience} s (--timeout)")
    if run.returncode != 0:
        sys.exit(f"the undisturbed run ends with {run.returncode}: {run.stderr}")
    return run.stdout, time.monotonic() - begun


class Disturbed:
    """One run with kills."""

    def __init__(self, ftrun, command, size, dice, within):
        self.size, self.dice, self.within = size, dice, within
        self.out, self.err = tempfile.TemporaryFile("w+", errors="replace"), tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen([*ftrun, "--ft=reinit", *command], stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err)

    def said(self, file):
        file.seek(0)
        return file.read()

    def recoveries(self):
        return self.said(self.err).count("ftd: recovery, epoch")

    def ends(self, patience):
        """Its status."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()
            sys.exit(f"the run with kills is not over after {patience:.0f} s: {self.said(self.err)}")

    def over(self):
        return self.process.poll() is not None

    def kill(self):
        """Kills a random rank at a random moment; false when the job was over before."""
        before, rank, patience = self.recoveries(), self.dice.randrange(self.size), time.monotonic() + 120
        until = time.monotonic() + self.dice.uniform(0.02, 0.95) * self.within
        while time.monotonic() < until and not self.over():
            time.sleep(0.01)
        asked = None
        # Just begun, it has no ranks yet.
        while not self.over() and (asked is None or asked.returncode != 0):
            asked = subprocess.run(["ftctl", "inject", str(self.process.pid), f"rank={rank}"], capture_output=True, text=True)
            self.gives_up(patience, f"rank {rank} is not killed: {asked.stdout}{asked.stderr}")
        while not self.over() and self.recoveries() == before:
            time.sleep(0.02)
            self.gives_up(patience, "no recovery")
        return self.recoveries() > before

    def gives_up(self, patience, what):
        if time.monotonic() > patience:
            self.process.terminate()
            self.process.wait()
            sys.exit(f"{what} within 120 s: {self.said(self.err)}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that an undisturbed run may take (default %(default)s)")
    parser.add_argument("--any-order", action="store_true", help="ranks print at the same time")
    parser.add_argument("-n", type=int, required=True)
    mine, theirs = sys.argv[1:], []
    if "--" in mine:
        at = mine.index("--")
        mine, theirs = mine[:at], mine[at + 1 :]
    given, options = parser.parse_known_args(mine)
    ftrun = ["ftrun", "-n", str(given.n), *options]
    runs = [undisturbed(ftrun, theirs, given.timeout) for _ in range(3)]
    timed, within = timed_shapes([text for text, _ in runs]), sorted(took for _, took in runs)[1]
    wanted = kept(runs[0][0], timed, given.any_order)
    if not wanted:
        sys.exit("no line is left to be compared")
    print(f"{len(wanted)} lines are compared, {len(timed)} kinds hold times; {within:.1f} s undisturbed; seed {given.seed}", flush=True)
    dice, bad, late, done = random.Random(given.seed), 0, 0, 0
    while done < given.runs and late < 5 * given.runs:
        run = Disturbed(ftrun, theirs, given.n, dice, within)
        killed = sum(run.kill() for _ in range(given.kills) if not run.over())
        status = run.ends(20 * within + 300)
        got = kept(run.said(run.out), timed, given.any_order)
        is_bad, is_late = status != 0 or got != wanted, killed < given.kills
        late, done = late + (is_late and not is_bad), done + (is_bad or not is_late)
        if is_bad:
            bad += 1
            at = next((at for at, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted)))
            print(f"run {done}, {killed} kills: status {status}, {len(got)} lines; line {at}: {got[max(0, at - 1) : at + 3]}, not {wanted[max(0, at - 1) : at + 3]}")
            print(run.said(run.err)[-3000:], flush=True)
    print(f"{done - bad} of {done} runs with {given.kills} kills print the same lines, once ({late} were over before the last kill)")
    sys.exit(bool(bad or done < given.runs))


if __name__ == "__main__":
    main()
