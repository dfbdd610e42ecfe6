/* ownshm NAME: has shared memory of its own, and leaves it: a file NAME.RANK below /dev/shm, mapped before MPI_Init, in which
 * it counts its incarnations, and a private System V segment. Prints the counts and the segments' numbers. */
#include "gate.h"
#include <mpi.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

int main(int argc, char **argv) {
    char name[300];
    snprintf(name, sizeof name, "%s.%s", argv[1], getenv("FT_RANK"));
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0)
        return 70;
    int *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (count == MAP_FAILED)
        return 71;
    ++*count;
    MPI_Init(&argc, &argv);
    int rank, size, segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (segment < 0)
        MPI_Abort(MPI_COMM_WORLD, 72);
    gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d count %d segment %d\n", rank, *count, segment);
    MPI_Finalize();
    return 0;
}
