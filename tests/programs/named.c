/* named: in the first world rank 1 computes at the place app.compute and rank 0 calls MPI_Abort after the place app.abort;
 * later worlds end well. With an argument rank 1 calls itself that, else it keeps the name of its program's file. */
#include "gate.h"
#include <mpi.h>
#include <sys/prctl.h>

int main(int argc, char **argv) {
    const char *world = getenv("FT_WORLD");
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1 && argc > 1)
        prctl(PR_SET_NAME, argv[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world && atoi(world) == 1) {
        if (rank == 1)
            gate_reach("app.compute", rank);
        if (rank == 0) {
            gate_reach("app.abort", rank);
            MPI_Abort(MPI_COMM_WORLD, 42);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("result of named\n");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
