"""What the administrators' page tells to type: each line is typed by a scenario, or it is said here why not."""

import re

from harness.job import check
from harness.registry import scenario

# The beginnings of its lines, by the scenario that types them, in the page's order.
TYPED = {
    "ftd-service": ("install -D", "systemctl link", "systemctl enable --now", "systemctl enable --force", "systemctl try-restart", "ftd --version",
                    "ftd check-config", "systemctl reload", "systemctl restart", "ftd status", "journalctl"),
    "admin-certificates": ("openssl req -x509", "printf", "openssl req -newkey", "openssl x509"),
    "hosts-refused": ("echo 'account",),
    "slurm-admin": ("required", "srun --help"),
    # As lines of a configuration.
    "slurm-drain": (r"\[slurm\]", "drain = true"),
}
# Those that nobody types here.
NOT_TYPED = {
    "make": "what is tested was built before",
    "make install": "what is tested was installed so, below another PREFIX",
    "semanage": "no machine of the tests has SELinux",
    "restorecon": "no machine of the tests has SELinux",
}


def typed(context, name):
    """The page's lines that a scenario types, in the order of the table, with the PREFIX of what is tested."""
    text = (context.prefix / "share/doc/ftd/admin.md").read_text()
    found = {start: re.findall(rf"^ {{4,}}({start}.*)$", text, re.M) for start in TYPED[name]}
    check(all(len(lines) == 1 for lines in found.values()), f"not one line each: {found}")
    return [lines[0].replace("/opt/ftd", str(context.prefix)) for lines in found.values()]


@scenario("admin-page")
def page(context):
    """Each line of the administrators' page that can be typed is typed by a scenario, or is one of those of which it is said why not; none of these is
    there in vain."""
    text = (context.prefix / "share/doc/ftd/admin.md").read_text()
    lines = re.findall(r"^ {4,}(\S.*)$", text, re.M)
    starts = [*NOT_TYPED, *(start for starts in TYPED.values() for start in starts)]
    # A longer beginning is the one that is meant.
    of = {line: max((start for start in starts if re.match(rf"{start}(?!\w)", line)), key=len, default=None) for line in lines}
    check(None not in of.values(), f"nobody types {[line for line, start in of.items() if start is None]}")
    check(set(of.values()) == set(starts), f"not there: {set(starts) - set(of.values())}")
