"""What a process needs that speaks the wire protocol itself: the head of small programs that dial the agent as strangers do."""

# For the program's own text; the socket's path is in $FT_SOCKET.
HEAD = r"""
import os, re, socket, struct, sys, time

SHEPHERD, RANK, CLIENT = 1, 2, 3

def varint(n):
    out = b""
    while True:
        out += bytes([n & 0x7f | (0x80 if n > 0x7f else 0)])
        n >>= 7
        if not n:
            return out

def dial(role):
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["FT_SOCKET"])
    s.sendall(b"ftdwire\n" + struct.pack("<II", 1, role))
    return s
"""
