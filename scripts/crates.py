#!/usr/bin/python3
"""Runs the tests of all crates as `cargo test --workspace` does, but all of them, also after one has failed, and with what only computes
beside what mostly waits.

What looks how processors are shared runs alone, before the others. What only computes (the core and its simulation, and the build of
what the scenarios need) has the lowest priority: the others, whose time-outs are short, do not notice it.

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
    """Runs it to its end, and then says what it said, as one piece."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more)
    with SCREEN:
        print(f"     Running {title}", done.stdout, sep="\n", flush=True)
        if done.returncode:
            failed.append(f"FAIL {title}: status {done.returncode}\n{what_failed(done.stdout)}")


def run_tests(tests, failed, nice):
    for directory, title, program in tests:
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(directory)}
        run(f"{crate(directory)}: {title}", failed, [*nice, program], cwd=directory, env=environment)


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
    if failed:
        print("=== what failed ===", *failed, sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
