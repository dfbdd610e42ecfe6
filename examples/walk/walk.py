"""walk: a thousand numbers that move at every step, in plain Python. Neither MPI nor mpi4py is needed: ctypes calls the API.

    export LD_LIBRARY_PATH=/opt/ftd/lib        # where libftd_client.so.0 was installed
    ftrun -n 2 --ft=reinit python3 walk.py 500 0.02    # steps, and seconds of pause per step: ten seconds

With mpi4py it is the same, behind `from mpi4py import MPI`. Each rank prints a hash of its walk as it goes.
"""
import ctypes
import hashlib
import os
import sys
import time

ft = ctypes.CDLL("libftd_client.so.0")
ft.ft_strerror.restype = ctypes.c_char_p
# Without these Python passes 32 bits where the library reads 64.
ft.ft_protect.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
ft.ft_checkpoint.argtypes = [ctypes.c_uint64]
EMPTY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
FT_ERR_NONE = 1


def check(code):
    if code != 0:
        sys.exit(f"walk: {ft.ft_strerror(code).decode()}")


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0
# Under ftrun; under Open MPI's mpirun; under MPICH's and Intel MPI's mpiexec; alone.
names = ["FT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
rank = int(next((os.environ[name] for name in names if name in os.environ), "0"))
empty = EMPTY(lambda _: sys.stdout.flush())  # kept in a name as long as the program runs

state, version = ctypes.c_int(), ctypes.c_uint64()
step, walk = ctypes.c_int64(0), (ctypes.c_double * 1000)()
check(ft.ft_init(ctypes.byref(state)))
check(ft.ft_on_checkpoint(empty, None))  # print has a buffer that the library does not know
check(ft.ft_protect(0, ctypes.byref(step), ctypes.sizeof(step)))
check(ft.ft_protect(1, walk, ctypes.sizeof(walk)))
code = ft.ft_restore(ctypes.byref(version))
if code == 0:
    print("rank", rank, "goes on from version", version.value)
elif code != FT_ERR_NONE:
    check(code)

while step.value < steps:
    step.value += 1
    for i in range(len(walk)):
        walk[i] = walk[i] * 0.5 + (rank * 7919 + step.value * 104729 + i * 31) % 1000
    print("rank", rank, "step", step.value, "hash", hashlib.sha256(walk).hexdigest()[:16])
    time.sleep(pause)
    if step.value % 10 == 0:
        check(ft.ft_checkpoint(step.value))
check(ft.ft_finalize())
