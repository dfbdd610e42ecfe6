/* io: what a rank sees of the outside. Rank 0 hashes its standard input; every rank prints its working directory and the
 * value of $PROBE. With gate io.half rank 0 stops after the first line of input; with app.compute any rank stops. */
#include "gate.h"
#include <mpi.h>
#include <stdint.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, byte;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t hash = 1469598103934665603u, bytes = 0;
    while ((byte = getchar()) != EOF) { /* /dev/null for all but rank 0 */
        hash = (hash ^ (uint64_t)byte) * 1099511628211u;
        if (bytes++ == 0)
            gate_reach("io.half", rank);
    }
    gate_reach("app.compute", rank);
    for (int turn = 0; turn < ranks; turn++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (turn == rank) {
            char directory[512];
            printf("rank %d stdin %llu bytes %016llx cwd %s probe %s\n", rank, (unsigned long long)bytes,
                   (unsigned long long)hash, getcwd(directory, sizeof directory),
                   getenv("PROBE") ? getenv("PROBE") : "(unset)");
            fprintf(stderr, "rank %d on stderr\n", rank);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
