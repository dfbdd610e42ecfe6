/* hog: rank 1 takes memory until the kernel's out-of-memory killer comes; only the first time ($ENDING_ONCE). */
#include "gate.h"
#include <mpi.h>

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *once = getenv("ENDING_ONCE");
    if (rank == 1 && once && open(once, O_WRONLY | O_CREAT | O_EXCL, 0644) >= 0)
        for (;;) {
            char *more = malloc(1 << 22);
            if (more)
                memset(more, 1, 1 << 22);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("result of hog\n");
    MPI_Finalize();
    return 0;
}
