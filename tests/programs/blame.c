/* blame: a program that has itself to blame, or nobody. `blame HOW [MS]`; FT_WORLD tells it the world.
 *   crash-after MS   computes MS milliseconds past MPI_Init without checkpoints, then rank FT_WORLD % size dies of SIGSEGV
 *   crash-one MS     likewise, always rank 1
 *   compute MS       computes MS milliseconds, then gate app.compute, and ends well
 *   spin             rank 1 takes all the processor time that it is allowed; the others wait for it
 *   never-restores   checkpoints in world 1, then gate app.compute; later worlds end well without ft_restore
 *   abort-restored   likewise, but rank 1 of a later world calls MPI_Abort(3) once it has its state back, before the others
 *   wrong-size       likewise, but every rank of a later world protects another size, and goes on without its state
 *   wrong-size-one   likewise, but only rank 2 does, and aborts with 4
 *   own-files        writes restart files of its own to $FT_CHECKPOINT_DIR, then gate app.compute; later worlds read them */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>

static int rank, size, world;

static void own_files(void) {
    char path[4096], text[16] = "";
    snprintf(path, sizeof path, "%s/state.%d", getenv("FT_CHECKPOINT_DIR"), rank);
    FILE *file = fopen(path, world == 1 ? "w" : "r");
    if (!file || (world == 1 ? fputs("state", file) < 0 : !fgets(text, sizeof text, file)))
        MPI_Abort(MPI_COMM_WORLD, 70);
    fclose(file);
    if (world > 1)
        printf("rank %d read %s\n", rank, text);
}

static void with_checkpoints(const char *how) {
    uint64_t step = 1, version;
    int state;
    if (ft_init(&state) || ft_protect(0, &step, sizeof step))
        MPI_Abort(MPI_COMM_WORLD, 71);
    if (world == 1 && ft_checkpoint(1))
        MPI_Abort(MPI_COMM_WORLD, 72);
    if (world > 1 && strncmp(how, "wrong-size", 10) == 0) {
        int one = strcmp(how, "wrong-size-one") == 0;
        if (!one || rank == 2)
            ft_protect(0, &step, sizeof step / 2);
        if (one && rank == 2)
            MPI_Barrier(MPI_COMM_WORLD);
        int code = ft_restore(&version);
        if (one && rank != 2)
            MPI_Barrier(MPI_COMM_WORLD);
        if (one && rank == 2)
            MPI_Abort(MPI_COMM_WORLD, code);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (world > 1 && strcmp(how, "abort-restored") == 0) {
        if (rank == 1) {
            ft_restore(&version);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "", *number = getenv("FT_WORLD");
    world = number ? atoi(number) : 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int last = strcmp(how, "crash-one") == 0 ? 1 : world % size;
    if (argc > 2)
        gate_sleep_ms(atoi(argv[2]));
    if (strncmp(how, "crash", 5) == 0 && rank == last) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (strcmp(how, "spin") == 0 && rank == 1)
        for (volatile int forever = 1; forever;)
            ;
    if (strcmp(how, "own-files") == 0)
        own_files();
    if (strcmp(how, "never-restores") == 0 || strcmp(how, "abort-restored") == 0 || strncmp(how, "wrong-size", 10) == 0)
        with_checkpoints(how);
    MPI_Barrier(MPI_COMM_WORLD);
    gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("result of blame\n");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
