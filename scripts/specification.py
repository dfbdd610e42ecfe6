#!/usr/bin/python3
"""Checks that docs/SPECIFICATION.md and the tests know each other.

Every scenario and every Rust test module that a row names exists; every scenario is named by a row; no number is used twice; and of
each family there are as many variants as the document says, so that a single one that is deleted is missed. That each deletion is
noticed is tried out, with all of them, whenever this runs.

    scripts/specification.py [--count]      with --count: writes the numbers of variants into the document, for a look at the diff
"""

import collections
import fnmatch
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VARIANTS = "## Variants"


def rows(text):
    """The rows: number and what holds it."""
    return re.findall(r"^\| ((?:[A-Z]|J-[A-Z])\d+[a-z]?) \|.*\| ([^|]*) \|$", text, re.M)


def patterns(held_by):
    """The scenarios that a row names; what is in backquotes and has a blank or a dot is a command or a file."""
    for quoted in re.findall(r"`([^`]+)`", held_by):
        if not re.search(r"[ .=]", quoted):
            choice = re.search(r"\{(.*)\}", quoted)
            yield from [quoted.replace(choice[0], one) for one in choice[1].split(",")] if choice else [quoted]


def rust(held_by):
    """(crate, module or None) of the Rust tests that a row names."""
    for crate, modules in re.findall(r"-p ([\w-]+)`(?: \(([^)]*)\))?", held_by):
        yield from ((crate, module.strip()) for module in modules.split(",")) if modules else [(crate, None)]


def counts(text):
    """How many variants each family is said to have."""
    return {name: int(number) for name, number in re.findall(r"^    ([\w-]+) (\d+)$", text.partition(VARIANTS)[2], re.M)}


def counted(names, in_soak):
    """How many variants each family has that has several, or others in `make soak`: the row alone would not miss the last one."""
    found = collections.Counter(name.partition("/")[0] for name in names)
    more = {name.partition("/")[0] for name in in_soak}
    return {family: number for family, number in sorted(found.items()) if number > 1 or family in more}


def with_counts(text, numbers):
    """The document with these numbers."""
    before, heading, rest = text.partition(VARIANTS)
    told, next_heading, after = rest.partition("\n## ")
    # One to a line: several people add scenarios at the same time.
    listed = "".join(f"    {family} {number}\n" for family, number in numbers.items())
    return before + heading + told[: told.index("\n    ") + 1] + listed + next_heading + after


def skips(text):
    """The scenarios that may be skipped."""
    return re.findall(r"^\| `([^`]+)` \|", text.partition("## Skips that are allowed")[2], re.M)


@functools.cache
def meets(name, pattern):
    """Whether a row that says `pattern` means this scenario."""
    return name == pattern or name.startswith(f"{pattern}/") or fnmatch.fnmatch(name, pattern)


class Specification:
    """The document, read once."""

    def __init__(self, text):
        self.rows = rows(text)
        self.counts = counts(text)
        self.skips = skips(text)
        self.named = sorted({pattern for _, held_by in self.rows for pattern in patterns(held_by)})
        self.tested = sorted({test for _, held_by in self.rows for test in rust(held_by)}, key=str)

    def wrong(self, names, in_soak):
        """One sentence for each disagreement with the scenarios of `make test`; `in_soak` are those that run in `make soak` only."""
        found = counted(names, in_soak)
        for family in sorted(set(found) | set(self.counts)):
            if found.get(family, 0) != self.counts.get(family, 0):
                yield f"{family} has {found.get(family, 0)} variants; below '{VARIANTS}' it says {self.counts.get(family, 0)}"
        every = names | in_soak
        numbers = [number for number, _ in self.rows]
        yield from (f"the number {number} is used twice" for number in sorted(set(numbers)) if numbers.count(number) > 1)
        for pattern in [*self.named, *self.skips]:
            if not any(meets(name, pattern) for name in every):
                yield f"it names {pattern}, and no scenario is called so"
        for name in sorted(every):
            if not any(meets(name, pattern) for pattern in self.named):
                yield f"no row names the scenario {name}"


def crates():
    """name -> directory of the workspace's crates."""
    found = {}
    for manifest in ROOT.glob("*/**/Cargo.toml"):
        if "target" not in manifest.relative_to(ROOT).parts:
            name = re.search(r'^\[package\]\nname = "(.+)"', manifest.read_text(), re.M)
            found.update({name[1]: manifest.parent} if name else {})
    return found


def has_test(directory, module):
    """Whether the crate has a test, in that module or with a name that begins like that."""
    files = [path for part in ("src", "tests") for path in (directory / part).rglob("*.rs")]
    texts = {path: path.read_text() for path in files}
    if module is None:
        return any("#[test]" in text or "#[tokio::test" in text or "proptest!" in text for text in texts.values())
    if module.endswith("…"):
        return any(re.search(rf"#\[test\]\n(?:\s*#.*\n)*\s*fn {module[:-1]}", text) for text in texts.values())
    of_module = [text for path, text in texts.items() if path.stem == module or module in path.relative_to(directory).parent.parts]
    of_module += [text for text in texts.values() if re.search(rf"^mod {module} \{{|\buse \w+(?:::\w+)*::{module}\b", text, re.M)]
    return any(re.search(r"#\[(?:tokio::)?test|proptest!", text) for text in of_module)


def scenarios(*options):
    """The names of all that the runner would run."""
    command = [sys.executable, ROOT / "tests/run.py", "--list", *options]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def main():
    """Prints what does not agree."""
    names = scenarios()
    # The full matrix has the names of its rows' families.
    in_soak = {name for name in scenarios("--soak") - names if not name.startswith("matrix/")}
    document = ROOT / "docs/SPECIFICATION.md"
    if sys.argv[1:] == ["--count"]:
        document.write_text(with_counts(document.read_text(), counted(names, in_soak)))
    specification = Specification(document.read_text())
    found = list(specification.wrong(names, in_soak))
    if not found:
        # A check that never fails is none: each scenario in turn as if it had been deleted.
        found += [f"nobody would miss {name}" for name in sorted(names) if not any(specification.wrong(names - {name}, in_soak))]
    directories = crates()
    for crate, module in specification.tested:
        if crate not in directories or not has_test(directories[crate], module):
            found.append(f"it names the tests of {crate}{f' ({module})' if module else ''}, and there are none")
    for line in found:
        print(f"docs/SPECIFICATION.md: {line}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
