/* What the host of a plug-in calls: an MPI program in a library. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int go(void) {
    int rank, size;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1 && strcmp(getenv("FT_WORLD"), "1") == 0)
        kill(getpid(), SIGKILL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("size %d\n", size);
        fflush(stdout);
    }
    return MPI_Finalize();
}
