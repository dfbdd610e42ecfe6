/* versions: ranks that do not checkpoint the same versions. `versions HOW`:
 *   same      all take 1 to 12, rank 1 much later than the others
 *   differ    rank 3 takes 11, all others 10
 *   missing   rank 2 takes none; the others take 1 to 4, the last one when all have taken three
 *   apart     all take 10, 20, 30 and 40, but rank 3 11, 21, 31 and 41, the last one likewise
 *   finalized rank 2 takes 1 and 2, calls ft_finalize, and tries 3; then the others take 3 to 12
 *   back      every rank takes 5, 5 and 4
 * A checkpoint that fails is told on stderr, and the program goes on. */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <stdint.h>

static int rank;

static void take(uint64_t version) {
    int code = ft_checkpoint(version);
    if (code)
        fprintf(stderr, "rank %d version %d: %s\n", rank, (int)version, ft_strerror(code));
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "same";
    int state, value = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (ft_init(&state) || ft_protect(0, &value, sizeof value))
        MPI_Abort(MPI_COMM_WORLD, 70);
    if (strcmp(how, "same") == 0)
        for (int version = 1; version <= 12; version++) {
            if (rank == 1)
                gate_sleep_ms(30);
            take(version);
        }
    if (strcmp(how, "differ") == 0)
        take(rank == 3 ? 11 : 10);
    int missing = strcmp(how, "missing") == 0, apart = strcmp(how, "apart") == 0;
    for (int i = 1; i <= 4 && (missing || apart); i++) {
        if (i == 4)
            MPI_Barrier(MPI_COMM_WORLD);
        if (apart || rank != 2)
            take(apart ? 10 * i + (rank == 3) : i);
    }
    if (strcmp(how, "finalized") == 0) {
        take(1);
        take(2);
        if (rank == 2) {
            ft_finalize();
            take(3);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int version = 3; version <= 12 && rank != 2; version++)
            take(version);
    }
    if (strcmp(how, "back") == 0) {
        take(5);
        take(5);
        take(4);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(how, "differ") == 0)
        gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
