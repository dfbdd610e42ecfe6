"""heat2d: heat spreads over a square plate whose left edge is kept hot. Each rank holds a band of rows.

With the module ftd (five lines, marked "ft") the job survives the death of any of its ranks:

    export PYTHONPATH=/opt/ftd/share/ftd/python        # where ftd was installed
    ftrun -n 4 --ft=reinit python3 -m mpi4py heat2d.py -s 500 -p 20        (ten seconds)

The result is a hash over the plate after every single step: one wrong step shows. It is that of heat2d.c, bit for bit.
"""
import argparse
import time

import ftd                                                                # ft
import numpy
from mpi4py import MPI


def mix(x):  # splitmix64's finalizer; integers wrap around
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return x ^ (x >> numpy.uint64(31))


parser = argparse.ArgumentParser()
parser.add_argument("-g", type=int, default=128, help="cells per side")
parser.add_argument("-s", type=int, default=100, help="steps")
parser.add_argument("-c", type=int, default=10, help="steps between checkpoints")
parser.add_argument("-p", type=int, default=0, help="milliseconds of pause per step")
options = parser.parse_args()
world, size = MPI.COMM_WORLD, options.g
first = size * world.rank // world.size
rows = size * (world.rank + 1) // world.size - first
up = world.rank - 1 if world.rank > 0 else MPI.PROC_NULL
down = world.rank + 1 if world.rank < world.size - 1 else MPI.PROC_NULL
now = numpy.zeros((rows + 2, size))
now[:, 0] = 100
places = (numpy.arange(first + 1, first + rows + 1)[:, None] * size + numpy.arange(1, size - 1)).astype(numpy.uint64)

state = ftd.protect(step=0, result=numpy.zeros(1, numpy.uint64), now=now)  # ft: what a restarted rank needs to go on
version = ftd.restore()                                                   # ft: fills `now` where it is
if version is not None and world.rank == 0:
    print("restarted from version", version)

while state.step < options.s:
    world.Sendrecv(now[1], up, 0, now[rows + 1], down, 0)
    world.Sendrecv(now[rows], down, 1, now[0], up, 1)
    now[1:-1, 1:-1] = 0.25 * (now[1:-1, :-2] + now[1:-1, 2:] + now[:-2, 1:-1] + now[2:, 1:-1])
    mine = numpy.bitwise_xor.reduce(mix(now[1:-1, 1:-1].view(numpy.uint64) + places), axis=None)
    state.result = mix(state.result + numpy.uint64(world.allreduce(int(mine), MPI.BXOR)))
    state.step += 1
    if world.rank == 0:
        print(f"step {state.step} hash {state.result[0]:016x}", flush=True)
    time.sleep(options.p / 1000)
    if state.step % options.c == 0:
        ftd.checkpoint(state.step)                                        # ft
if world.rank == 0:
    print(f"result {state.result[0]:016x}")
ftd.finalize()                                                            # ft
