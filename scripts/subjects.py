#!/usr/bin/python3
"""Checks the subjects of the commits since this rule came: at most 72 characters, an empty line, then the rest."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 72
THIS = "scripts/subjects.py"


def git(*words):
    """Output of a git command; None where this is no clone."""
    # The tree may be another user's: nothing is executed from it.
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def main():
    """One line for each commit that breaks the rule."""
    came = (git("log", "--diff-filter=A", "--format=%H", "--", THIS) or "").split()
    if not came:
        return 0
    wrong = 0
    for commit in (git("rev-list", "--no-merges", f"{came[-1]}^..HEAD") or "").split():
        subject, _, rest = (git("log", "-1", "--format=%B", commit) or "").strip().partition("\n")
        if len(subject) > LONGEST:
            print(f"{commit[:8]}: the subject has {len(subject)} characters, more than {LONGEST}: {subject}")
            wrong += 1
        elif rest and not rest.startswith("\n"):
            print(f"{commit[:8]}: there is no empty line below the subject: {subject}")
            wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
