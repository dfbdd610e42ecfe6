"""What failed, so short that the closing lines of a log hold it."""

import re
import traceback

from . import job

LINES = 40
WIDTH = 200
# How much of one failure is worth showing when there is room for more.
EACH = 8


def explain(error, jobs):
    """The text with which a failed scenario's log ends: the assertion, where it stands, and all about its jobs."""
    if isinstance(error, job.Failed):
        where = [f for f in traceback.extract_tb(error.__traceback__) if "scenarios" in f.filename]
        word = "BROKEN" if isinstance(error, job.Broken) else "FAILED"
        text = f"{word}: {error}\n{''.join(traceback.format_list(where))}\n"
    else:
        text = "".join(traceback.format_exception(error))
    return text + "".join(f"{each.dump()}\n" for each in jobs)


def reason(log):
    """(lines of the assertion, lines that help) of a failed scenario's log."""
    body = log.partition("\n--- ")[0]
    lines = body.strip().splitlines()
    begin = next((n for n, line in enumerate(lines) if re.match(r"BROKEN: |FAILED: |HANG: |skipped: |Traceback ", line)), None)
    if begin is None:
        return ["no word about why; its log ends with:"], lines[-3:]
    frames = [n for n, line in enumerate(lines) if n > begin and line.startswith('  File "')]
    if lines[begin].startswith("HANG"):
        # Where it stood, by faulthandler: the innermost first.
        frames = [n for n, line in enumerate(lines[:begin]) if line.startswith('  File "') and "scenarios" in line][:1]
    if lines[begin].startswith("Traceback"):
        end = next((n for n in range(len(lines) - 1, begin, -1) if re.match(r"[\w.]+(: |$)", lines[n])), begin)
        said = lines[end:]
    else:
        said = lines[begin : frames[0] if frames and frames[0] > begin else None]
    help = [re.sub(r'.*File "(?:.*/)?(\w+\.py)", line (\d+),? in (.*)', r"at \1:\2, \3", lines[n]) for n in frames[-1:]]
    for stderr in re.findall(r"^--- (?:stderr|job\d+\.err)\n((?:(?!--- ).*\n)*)", log[len(body) :], re.M)[-1:]:
        help += [f"stderr: {line}" for line in stderr.strip().splitlines()[-2:]]
    return [line for line in said if line.strip()], help


def what_failed(failures):
    """At most LINES lines about (verdict, label, log) of the failed scenarios."""
    room = LINES - 2
    each = max(1, min(EACH, room // max(1, len(failures))))
    lines = ["=== what failed ==="]
    for verdict, label, log in failures[:room]:
        said, help = reason(log)
        first = re.sub(r"^(BROKEN|FAILED|HANG): ", "", said[0])
        # The assertion may hold a job's whole output: what helps has its place all the same.
        more = said[1:2] + help[:1] + said[2 : max(2, each - len(help))] + help[1:]
        lines += [line[:WIDTH] for line in [f"{verdict} {label}: {first}", *(f"     {line.strip()}" for line in more[: each - 1])]]
    if len(failures) > room:
        lines.append(f"and {len(failures) - room} more")
    return lines
