/* flood: prints far more than fits between it and whoever reads it: LINES lines of some 80 bytes in each step.
 *
 * flood STEPS LINES: a checkpoint of the step after each one. */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <stdint.h>

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "flood: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 70);
    }
}

int main(int argc, char **argv) {
    int steps = atoi(argv[1]), lines = atoi(argv[2]), rank, step = 0, state, sum;
    uint64_t version;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    check(ft_init(&state), "ft_init");
    check(ft_protect(0, &step, sizeof step), "ft_protect");
    if (state == FT_STATE_RESTARTED && ft_restore(&version) > FT_ERR_NONE)
        MPI_Abort(MPI_COMM_WORLD, 71);
    while (step < steps) {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        step++;
        for (int line = 0; line < lines; line++)
            printf("rank %d step %d line %-8d..................................................\n", rank, step, line);
        check(ft_checkpoint(step), "ft_checkpoint");
    }
    MPI_Finalize();
    return 0;
}
