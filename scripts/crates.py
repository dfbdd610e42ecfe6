#!/usr/bin/python3
"""Runs the tests of all crates as `cargo test --workspace` does, but all of them, also after one has failed, and with what only computes
beside what mostly waits.

What looks how processors are shared runs alone, before the others. What only computes (the core and its simulation, and the build of
what the scenarios need) has the lowest priority: the others, whose time-outs are short, do not notice it.

As with the scenarios (tests/run.py): where very few programs of tests fail, they are run again with nothing beside them. Who passes then
each time is told as shaky, and does not make the run a failed one.

    scripts/crates.py [--release]     with --release: also builds the workspace's release profile
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMPUTING = {"ftd-core", "ft-simulation"}
# They look who of the waiting ranks is given a processor.
ALONE = {"ft-pmix", "ft-pmi1"}
CARGO = os.environ.get("CARGO", "cargo")
SCREEN = threading.Lock()
# So many programs may be shaky, and each is run again so many times.
MOST_SHAKY, ALONE_AGAIN = 1, 5


def binaries():
    """The tests' programs: crate, kind and name, directory of the crate, program."""
    command = [CARGO, "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    build = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if build.returncode:
        sys.exit(build.returncode)
    found = []
    for message in map(json.loads, build.stdout.splitlines()):
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            manifest = pathlib.Path(message["manifest_path"])
            target = message["target"]
            found.append((manifest.parent, f"{'/'.join(target['kind'])} {target['name']}", message["executable"]))
    return found


def crate(directory):
    for line in (directory / "Cargo.toml").read_text().splitlines():
        if line.startswith("name = "):
            return line.split('"')[1]
    raise ValueError(f"{directory} is no crate")


def what_failed(said):
    """The lines that tell, each panic with what follows it."""
    lines = said.splitlines()
    telling = re.compile(r"^error|panicked at|^test .* FAILED")
    shown = sorted({at + more for at, line in enumerate(lines) if telling.search(line) for more in range(4) if at + more < len(lines)})
    return "\n".join(f"    {lines[at][:200]}" for at in shown or range(max(0, len(lines) - 10), len(lines)))


def run(title, failed, command, **more):
    """Runs it to its end, and then says what it said, as one piece. Of one that fails: what is to be told of it, and how it is run again."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more)
    with SCREEN:
        print(f"     Running {title}", done.stdout, sep="\n", flush=True)
        if done.returncode:
            failed.append((title, f"status {done.returncode}\n{what_failed(done.stdout)}", command, more))


def run_tests(tests, failed, nice):
    for directory, title, program in tests:
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(directory)}
        run(f"{crate(directory)}: {title}", failed, [*nice, program], cwd=directory, env=environment)


def fail_alone(failed):
    """Which of the failed ones fail again with nothing beside them, and which do not."""
    if len(failed) > MOST_SHAKY or any(command[0] == CARGO or CARGO in command for _, _, command, _ in failed):
        return failed, []
    broken, shaky = [], []
    for trial in failed:
        title, _, command, more = trial
        again = []
        for number in range(1, ALONE_AGAIN + 1):
            run(f"{title}, once more and alone ({number})", again, command, **more)
        (broken if again else shaky).append(trial)
    return broken, shaky


def compute(tests, failed, release):
    nice = ["nice", "-n", "19"]
    run_tests(tests, failed, nice)
    if release:
        run("cargo build --release", failed, [*nice, CARGO, "build", "--release", "--workspace"], cwd=ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", action="store_true", help="also build the workspace's release profile")
    options = parser.parse_args()
    tests, failed = binaries(), []
    if not tests:
        sys.exit("scripts/crates.py: cargo names no tests")
    computing = [test for test in tests if crate(test[0]) in COMPUTING]
    alone = [test for test in tests if crate(test[0]) in ALONE]
    waiting = [test for test in tests if test not in computing and test not in alone]
    run_tests(alone, failed, [])
    beside = threading.Thread(target=compute, args=(computing, failed, options.release))
    beside.start()
    run_tests(waiting, failed, [])
    beside.join()
    run("documentation", failed, [CARGO, "test", "--workspace", "--doc"], cwd=ROOT)
    print(f"{len(tests)} programs of tests")
    failed, shaky = fail_alone(failed)
    for title, said, *_ in shaky:
        print(f"SHAKY {title}: failed beside others, and {ALONE_AGAIN} times not alone; that is a defect, of ftd or of the test: find it\n{said}")
    if failed:
        print("=== what failed ===", *(f"FAIL {title}: {said}" for title, said, *_ in failed), sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
