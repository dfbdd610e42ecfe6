#!/usr/bin/python3
"""Checks that the numbers of the documents are those of the code.

Each time, size and count that the guide, the manual pages and the README name stands in the table below beside the constant that it
is about; one that stands in no row is an error, as is a row that finds nothing. That a change of any of these constants is noticed
is tried out, with each, whenever this runs.

    scripts/documented.py
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE, MAN, API, README, HELP = "docs/guide.md", "docs/man/ftrun.1", "docs/man/ft.3", "README.md", "ftd/cli/src/options.rs"
ADMIN = "docs/admin.md"
CLI, SYS, SHEPHERD, AGENT, CLIENT = "ftd/cli/src", "ftd/sys/src", "ftd/shepherd/src", "ftd/agent/src", "ftd-client/src"
POLICY = "ftd-core/src/policy.rs"

GRACE, FAILURES = f"{CLI}/options.rs GRACE", f"{CLI}/options.rs MAX_FAILURES"
TWICE, DISK = f"{CLI}/cancel.rs TWICE", f"{CLI}/sink.rs PATIENCE"
COMPUTED, PLACE = f"{POLICY} progress_after", f"{CLIENT}/client.rs PLACE"
LINE, IDLE = f"{CLI}/output.rs LONGEST", f"{CLI}/output.rs IDLE"
FILTER, AT_END = f"{SHEPHERD}/leaving.rs IN_A_RECOVERY", f"{SHEPHERD}/leaving.rs AT_THE_END"
BUSY, HELPER = f"{SHEPHERD}/slot.rs BUSY", f"{SYS}/pulse.rs PATIENCE"
HOLD, HELD = f"{CLI}/output.rs HOLD", f"{CLI}/output.rs HELD"
OVERDUE = (f"{SYS}/pulse.rs PERIOD * {SYS}/pulse.rs MOST_UNANSWERED", HELPER)
HEARTBEAT = [f"{POLICY} heartbeat_period", f"{POLICY} heartbeat_timeout"]

# (document, words in which each `#` is a number with its unit, what each of these is): the name of a constant, or several whose sum
# it is. A constant is a file and a name; `A * B` is a product.
NUMBERS = [
    (GUIDE, "`FT_MAX_FAILURES` | so many deaths in a row without progress end the job (#)", [FAILURES]),
    (MAN, "So many deaths in a row end the job (#)", [FAILURES]),
    (HELP, "end the job [default: #]", [FAILURES]),
    (GUIDE, "or an address space of less than # (", [f"{CLI}/limits.rs ADDRESSES"]),
    (README, "is held back for that, but for # at most", [HOLD]),
    (GUIDE, "is held back until then, for # and # at most", [HOLD, HELD]),
    (MAN, "it is held back until then, for # and # at most", [HOLD, HELD]),
    (GUIDE, "a signal that ends the job (#)", [GRACE]),
    (GUIDE, "The ranks have `--ft-grace` (#; 0: nothing)", [GRACE]),
    (GUIDE, "| within # of the signal |", ["ftd-core/src/heard.rs ANSWERED"]),
    (GUIDE, "or # after the signal, though # at least;", ["ftd-core/src/heard.rs ANSWERED", "ftd-core/src/agent/signals.rs LEAST"]),
    (GUIDE, "`--ft-grace` (# under Slurm) may be less", [f"{CLI}/options.rs STEP_GRACE"]),
    (GUIDE, "The # are `--ft-grace` where", ["ftd-core/src/heard.rs ANSWERED"]),
    (GUIDE, "once more those of the # before the", ["ftd-core/src/heard.rs ANSWERED"]),
    (GUIDE, "the rank has caught it for #, and else", ["ftd/shepherd/src/slot/pending.rs SETTLES"]),
    (GUIDE, "in the first # after it, likewise, but at the latest some # later", ["ftd-core/src/agent/signals.rs STARTS", "ftd/shepherd/src/slot/pending.rs STARTS"]),
    (GUIDE, "has answered before, the others have # more", ["ftd-core/src/agent/signals.rs ABORTED"]),
    (GUIDE, "After SIGTERM that waits for #, because", ["ftd-core/src/agent/signals.rs KILLED_TOGETHER"]),
    (ADMIN, "when it is not back within #", [f"{SHEPHERD}/task.rs BACK"]),
    (ADMIN, "srun ends with a sentence # later", [f"{CLI}/step.rs GATHERING"]),
    (MAN, "0 ends them at once (#)", [GRACE]),
    (README, "have # (`--ft-grace`) to save", [GRACE]),
    (HELP, "0 ends them at once [default: #]", [GRACE]),
    (GUIDE, "more than # after the first kills at once", [TWICE]),
    (MAN, "more than # later kills at once", [TWICE]),
    (GUIDE, "at most # and is finished within #", [LINE, IDLE]),
    (MAN, "more than #, or that is not finished within #", [LINE, IDLE]),
    (MAN, "A line that pauses for # while", [IDLE]),
    (GUIDE, "waits for its end, for # at most; then", [f"{CLI}/once/stream.rs PATIENCE"]),
    (GUIDE, "or a line of more than #, is no text", [f"{CLI}/once.rs LONGEST"]),
    (MAN, "or a line of more than #, or that takes", [f"{CLI}/once.rs LONGEST"]),
    (GUIDE, "all ranks wait for that, # at most", [FILTER]),
    (GUIDE, "the # begin when all that was printed has been read", [AT_END]),
    (GUIDE, "which is said after #", [AT_END]),
    (GUIDE, "as long as the job lasts, and # more", [AT_END]),
    (GUIDE, "filters have #.", [FILTER]),
    (GUIDE, "a signal that ended the job # at most", [f"{CLI}/launcher.rs LEAVE"]),
    (MAN, "a signal that ended the job for # at most", [f"{CLI}/launcher.rs LEAVE"]),
    (GUIDE, "if it loads its MPI within #;", [f"{SHEPHERD}/slot/heir.rs EARLY"]),
    (GUIDE, "nothing is decided within # goes on", [f"{SHEPHERD}/slot/stopped.rs UNDECIDED"]),
    (GUIDE, "tried again for #; when there is room", [DISK]),
    (MAN, "writing is tried again for #;", [DISK]),
    (GUIDE, "# of computing after one begin its count anew", [COMPUTED]),
    (MAN, "without a newer complete checkpoint or # of computing", [COMPUTED]),
    (HELP, "without that or # of computing", [COMPUTED]),
    (GUIDE, "# after the last sign of it (# while a rank is inside `MPI_Init`)", [f"{POLICY} report_patience", f"{POLICY} init_patience"]),
    (GUIDE, "one of more than # a second later", [f"{CLI}/held.rs SMALL"]),
    (GUIDE, "open for writing is tried again for #.", [BUSY]),
    (GUIDE, "open for writing for #.", [BUSY]),
    (GUIDE, "One that has not answered within # is left alone", [OVERDUE[0]]),
    (GUIDE, "otherwise it has # more and is then ended", [HELPER]),
    (GUIDE, "lost one within #, or, before the first epoch, within #", [f"{POLICY} slot_timeout", f"{POLICY} start_timeout"]),
    (GUIDE, "(# after a node fell silent, for", [f"{POLICY} yield_timeout"]),
    (GUIDE, "the job begins without it after #, or a little more", [f"{POLICY} absent_timeout"]),
    (GUIDE, "still there # after SIGKILL", [f"{POLICY} stop_timeout"]),
    (GUIDE, "still there # after SIGKILL", [f"{CLI}/launcher.rs UNKILLABLE"]),
    (GUIDE, "`show` names those that do not answer within # (`silent`)", [f"{AGENT}/elsewhere.rs PATIENCE"]),
    (GUIDE, "a node that does not answer within # is named", ["ftd/daemon/src/elsewhere.rs PATIENCE"]),
    (GUIDE, "`ft-pmix` not within #;", [f"{AGENT}/pmix.rs PATIENCE"]),
    (GUIDE, "what is not verified within # is left out", [f"{POLICY} inventory_timeout"]),
    (GUIDE, "dies six times within # and", [f"{CLI}/deaths.rs WITHIN"]),
    (GUIDE, "does not answer cannot be killed within #, or # when it waits in the kernel", [HELPER, f"{SYS}/pulse.rs DEVICE"]),
    (GUIDE, "do not answer within # of their start", [OVERDUE]),
    (GUIDE, "does not answer for # (after # stderr names it", [(*OVERDUE, f"{CLI}/launcher/asking.rs LAST_KEEPER"), OVERDUE]),
    (GUIDE, "end the job within # after `--ft-grace`", [f"{CLI}/cancel.rs AGENT"]),
    (GUIDE, "read or written for #;", [f"{POLICY} store_timeout"]),
    (GUIDE, "no free place for #;", [f"{AGENT}/checkpoints.rs FULL_FOR"]),
    (GUIDE, "`FT_CHECKPOINT_TIMEOUT` (#)", [PLACE]),
    (GUIDE, "waits for a place, #)", [PLACE]),
    (MAN, "waits for a free place (#)", [PLACE]),
    ("ftd-client/include/ft.h", "at most FT_CHECKPOINT_TIMEOUT seconds, #)", [PLACE]),
    (API, "for a free place, in seconds (#)", [PLACE]),
    (GUIDE, "processes below them than ftd's agent can watch (#,", [f"{AGENT}/files/helpers.rs MOST"]),
    (GUIDE, "they look when something happens, and every #.", [f"{SYS}/notes.rs SELDOM"]),
    (GUIDE, "soft limit of open files to # and # for each rank", [f"{CLI}/limits.rs MANY_FILES.0", f"{CLI}/limits.rs MANY_FILES.1"]),
    (GUIDE, "open files below # and # for each rank", [f"{CLI}/limits.rs FILES.0", f"{CLI}/limits.rs FILES.1"]),
    (GUIDE, "a stack of less than #", [f"{CLI}/limits.rs STACK"]),
    (GUIDE, "leaves room for less than # and # for each rank", [f"{CLI}/limits.rs TASKS.0", f"{CLI}/limits.rs TASKS.1"]),
    (GUIDE, "below # a job whose agent dies cannot go on", [(f"{'ftd/store/src/embedded/halves.rs'} HALF",) * 2]),
    (GUIDE, "(at most once a second), every # of what takes longer", [f"{AGENT}/partners/progress.rs LONG"]),
    (MAN, "(at most once a second), every # of what takes longer", [f"{AGENT}/partners/progress.rs LONG"]),
    (HELP, "the value is only checked [default: #,#]", HEARTBEAT),
    (MAN, "( #,# , the default)", HEARTBEAT),
    (MAN, "The period is at least #, and", [f"{CLI}/options.rs LEAST_PERIOD"]),
]

# Numbers that are no promise: examples, and what was measured with others' programs.
NO_PROMISE = [
    (GUIDE, "a quarter of it, and below 256 KiB there are none"),
    (GUIDE, "Open MPI 4 and MPICH 4 8 MiB; Open MPI 5 16 MiB; MPICH 5 8 MiB for up to 4 ranks, 32 MiB for 16; Intel MPI "
            "(`I_MPI_FABRICS=shm`, 2 ranks) 4 GiB"),
    (GUIDE, "(10 MB instead of 28"),
    (MAN, "( 500ms , 2m )"),
    (GUIDE, "lets each node send 200 MiB of them a second"),
]

UNITS = {"": 1, "ms": 0.001, "s": 1, "seconds": 1, "minutes": 60, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NUMBER = r"(\d+(?:\.\d+)?)(?: ?(ms|s|seconds|minutes|KiB|MiB|GiB)\b)?"
WITH_UNIT = re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|seconds|minutes|KiB|MiB|GiB)\b")


def words(document, text):
    """A document's words with one blank between them, without a manual's macros and without lines of code."""
    if document.startswith("docs/man/"):
        text = re.sub(r"\\f.|\\(?=-)", "", re.sub(r"^\.[A-Z]+ ?|\"", "", text, flags=re.M))
    elif document.endswith(".rs"):
        text = re.sub(r"^\s*/// ?", "", text, flags=re.M)
    else:
        text = re.sub(r"^    .*$", "", text, flags=re.M)
    return re.sub(r"\s+", " ", text)


def value(expression):
    """What a Rust expression of integers, times and tuples is; seconds, where it is a time."""
    time = re.fullmatch(r"(?:Duration|Micros)::from_(secs|millis)\((.*)\)", expression)
    if time:
        return value(time[2]) * (0.001 if time[1] == "millis" else 1)
    plain = re.sub(r"(?<=\d)_(?=\d)", "", expression)
    if not re.fullmatch(r"[\d\s()*+<,]+", plain):
        raise ValueError(f"'{expression}' is no number that this understands")
    return eval(plain)  # noqa: S307: digits and operators alone


def constant(name, sources):
    """The value of `FILE NAME` or `FILE NAME.INDEX`."""
    file, name = name.split()
    name, _, index = name.partition(".")
    found = re.search(rf"\bconst {name}: [^=]+ = (.+?);$|^\s+{name}: (\S.*?),$", sources(file), re.M)
    if not found:
        raise ValueError(f"{file} has no {name}")
    result = value(found[1] or found[2])
    return result[int(index)] if index else result


def meant(what, sources):
    """The number that a row says: a constant, or the sum of several."""
    if isinstance(what, tuple):
        return sum(meant(part, sources) for part in what)
    product = 1
    for factor in what.split(" * "):
        product *= constant(factor, sources)
    return product


def wrong(sources, numbers=None):
    """One sentence for each number that is not the code's, or is in no row."""
    texts = {document: words(document, sources(document)) for document in {row[0] for row in NUMBERS}}
    told = {document: [] for document in texts}
    for document, phrase, expected in numbers or NUMBERS:
        pattern = NUMBER.join(re.escape(part) for part in phrase.split("#"))
        found = list(re.finditer(pattern, texts[document]))
        if not found:
            yield f"{document} does not say '{phrase}'"
        for hit in found:
            told[document].append(hit.span())
            said = [float(number) * UNITS[unit or ""] for number, unit in zip(hit.groups()[::2], hit.groups()[1::2])]
            if phrase.endswith("#,#]") or ",# ," in phrase:
                # Heartbeats are in milliseconds, with or without the unit.
                said = [number / 1000 if number >= 1 else number for number in said]
            for number, what in zip(said, expected):
                if abs(number - meant(what, sources)) > 1e-9:
                    yield f"{document} says '{hit[0]}', and {what} is {meant(what, sources)}"
    if numbers:
        return
    for document, phrase in NO_PROMISE:
        told[document] += [hit.span() for hit in re.finditer(re.escape(phrase), texts[document])]
    for document in (GUIDE, MAN, API, README):
        for hit in WITH_UNIT.finditer(texts[document]):
            if not any(start <= hit.start() and hit.end() <= end for start, end in told[document]):
                around = texts[document][max(hit.start() - 40, 0) : hit.end() + 40]
                yield f"{document}: '{hit[0]}' in '…{around}…' is in no row of scripts/documented.py"


def names(what):
    """The constants of a row's number."""
    parts = what if isinstance(what, tuple) else (what,)
    return {name for part in parts for name in part.split(" * ")}


def unnoticed(sources):
    """A check that never fails is none: each constant in turn as if it were another one."""
    for name in sorted({name for _, _, expected in NUMBERS for what in expected for name in names(what)}):
        file, constant_name = name.split()
        constant_name = constant_name.partition(".")[0]

        def changed(path):
            text = sources(path)
            if path != file:
                return text
            return re.sub(rf"(\bconst {constant_name}: [^=]+ = \D*|^\s+{constant_name}: \D*)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}",
                          text, count=1, flags=re.M)

        rows = [row for row in NUMBERS if any(name in names(what) for what in row[2])]
        if not list(wrong(changed, rows)):
            yield f"nobody would miss a change of {name}"


def main():
    """Prints what does not agree."""

    @functools.cache
    def sources(path):
        return (ROOT / path).read_text()

    found = list(wrong(sources)) or list(unnoticed(sources))
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
