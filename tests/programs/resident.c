/* resident: every rank touches MB megabytes (argument), then stands at gate app.compute, then ends. */
#include "gate.h"
#include <mpi.h>

int main(int argc, char **argv) {
    int rank;
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 1) << 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char *memory = malloc(bytes);
    memset(memory, rank + 1, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("result %d\n", memory[bytes / 2]);
    MPI_Finalize();
    return 0;
}
