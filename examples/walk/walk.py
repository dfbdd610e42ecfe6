"""walk: a thousand numbers that move at every step, in plain Python, and how far they went. Neither MPI, mpi4py nor numpy is needed.

    export PYTHONPATH=/opt/ftd/share/ftd/python        # where ftd was installed
    ftrun -n 2 --ft=reinit python3 walk.py 500 0.02    # steps, and seconds of pause per step: ten seconds

With mpi4py it is the same, behind `from mpi4py import MPI`. Each rank prints a hash of its walk as it goes.
"""
import array
import hashlib
import os
import sys
import time

import ftd

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0
# Under ftrun; under Open MPI's mpirun; under MPICH's and Intel MPI's mpiexec; alone.
names = ["FT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
rank = int(next((os.environ[name] for name in names if name in os.environ), "0"))

state = ftd.protect(step=0, walk=array.array("d", [0]) * 1000, way=[])
version = ftd.restore()
if version is not None:
    print("rank", rank, "goes on from version", version)

walk = state.walk
while state.step < steps:
    state.step += 1
    for i in range(len(walk)):
        walk[i] = walk[i] * 0.5 + (rank * 7919 + state.step * 104729 + i * 31) % 1000
    state.way.append(sum(walk))
    print("rank", rank, "step", state.step, "hash", hashlib.sha256(walk.tobytes() + repr(state.way).encode()).hexdigest()[:16])
    time.sleep(pause)
    if state.step % 10 == 0:
        ftd.checkpoint(state.step)
ftd.finalize()
