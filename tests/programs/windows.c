/* windows: holds shared memory of the kinds that an MPI makes for a program: windows of one-sided communication, which are
 * files or segments depending on the MPI. */
#include "gate.h"
#include <mpi.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
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
    MPI_Finalize();
    return 0;
}
