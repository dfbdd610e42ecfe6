"""What a process needs that speaks the wire protocol itself: the head of small programs that dial the agent as strangers do."""

import pathlib
import re

# Of all messages; the source has it.
VERSION = int(re.search(
    r"^pub const VERSION: u32 = (\d+);", (pathlib.Path(__file__).parents[2] / "proto/wire/src/frame.rs").read_text(), re.M
)[1])

# For the program's own text; the socket's path is in $FT_SOCKET.
HEAD = pathlib.Path(__file__).with_name("names.py").read_text() + f"\nVERSION = {VERSION}\n" + r"""
import os, re, socket, struct, sys, time

SHEPHERD, RANK, CLIENT = 1, 2, 3

def frame(word, descriptors=0):
    body = pack(word)
    return struct.pack("<IB3x", len(body), descriptors) + body

def dial(role):
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["FT_SOCKET"])
    s.sendall(b"ftdwire\n" + struct.pack("<II", VERSION, role))
    return s
"""
