/* windows: holds shared memory of every kind that a killed rank leaves behind: windows of one-sided communication, which are
 * files or segments depending on the MPI, and a private System V segment that is not marked for removal yet. */
#include "gate.h"
#include <mpi.h>
#include <sys/ipc.h>
#include <sys/shm.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (segment < 0)
        MPI_Abort(MPI_COMM_WORLD, 70);
    MPI_Win shared, window;
    int *mine, *memory, *base, unit;
    MPI_Aint bytes;
    MPI_Win_allocate_shared(1 << 20, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &shared);
    MPI_Win_allocate(1 << 20, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    *mine = 10 * rank;
    MPI_Win_fence(0, shared);
    MPI_Win_fence(0, window);
    MPI_Put(&rank, 1, MPI_INT, (rank + 1) % size, 0, 1, MPI_INT, window);
    MPI_Win_fence(0, window);
    gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_shared_query(shared, (rank + 1) % size, &bytes, &unit, &base);
    int sum = *base + *memory, all;
    MPI_Allreduce(&sum, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("result %d\n", all);
    MPI_Win_free(&window);
    MPI_Win_free(&shared);
    shmctl(segment, IPC_RMID, NULL);
    MPI_Finalize();
    return 0;
}
