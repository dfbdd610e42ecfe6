"""Installations of ftd that speak another protocol's number: releases before and after this one, as far as others can tell."""

import os
import shutil

from .job import check
from .peer import VERSION

SPOKEN = b"ftd speaks protocol %08d"
# What speaks.
PARTS = {"ftd", "ftrun", "ftctl", "ft-agent", "ft-shepherd", "ft-pmix", "ft-ship", "libft_preload.so"}


def patch(source, target, number):
    """Makes `target` what `source` would be in a release of this number; whether it speaks at all."""
    own, other = SPOKEN % VERSION, SPOKEN % number
    with open(source, "rb") as file:
        data = file.read()
    if own in data:
        with open(target, "wb") as file:
            file.write(data.replace(own, other))
        shutil.copymode(source, target)
        return True
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return False


def other_release(context, number, of=None):
    """A copy of the installation, or of a directory in it, of which every program and library speaks this number. Where it is."""
    source, spoken = of or context.prefix, set()
    into = context.work / f"protocol-{number}"

    def copy(source, target):
        if patch(source, target, number):
            spoken.add(os.path.basename(source))
        return target

    shutil.copytree(source, into, symlinks=True, copy_function=copy)
    there = {name for name in PARTS if any(into.rglob(name))}
    check(there <= spoken and (of or there == PARTS), f"of {there} only {spoken} say what they speak")
    return into
