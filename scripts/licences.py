#!/usr/bin/python3
"""Checks the licence of every crate that ftd is built from against the list in deny.toml.

A crate passes when its SPDX expression can be satisfied with licences of the list.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def satisfied(expression, allowed):
    """Evaluates an SPDX expression; AND binds tighter than OR, `WITH` belongs to its licence."""
    # Old manifests write "MIT/Apache-2.0" for "MIT OR Apache-2.0".
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def peek():
        return tokens[position] if position < len(tokens) else None

    def take():
        nonlocal position
        position += 1
        return tokens[position - 1]

    def one():
        if peek() == "(":
            take()
            value = either()
            if peek() != ")":
                raise ValueError("unbalanced parentheses")
            take()
            return value
        name = take()
        if peek() == "WITH":
            take()
            name = f"{name} WITH {take()}"
        return name in allowed

    def both():
        value = one()
        while peek() == "AND":
            take()
            value = one() and value
        return value

    def either():
        value = both()
        while peek() == "OR":
            take()
            value = both() or value
        return value

    value = either()
    if peek() is not None:
        raise ValueError(f"unexpected '{peek()}'")
    return value


def main():
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    bad = []
    for package in metadata["packages"]:
        expression = package["license"]
        try:
            good = expression is not None and satisfied(expression, allowed)
        except (ValueError, IndexError) as error:
            good = False
            expression = f"{expression} ({error})"
        if not good:
            bad.append(f"{package['name']} {package['version']}: {expression or 'no licence given'}")
    for line in sorted(bad):
        print(f"licence not in deny.toml: {line}", file=sys.stderr)
    if bad:
        return 1
    print(f"licences of {len(metadata['packages'])} crates are in deny.toml's list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
