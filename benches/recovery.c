/* recovery: `recovery PROTECTED_MB RESIDENT_MB [PAUSE_MS]`. Ranks that write down when they came out of MPI_Init and ft_restore, take
 * one checkpoint, and then sum over all ranks until they are killed or the file $BENCH_STOP is there, with a pause after each sum.
 *
 * $BENCH_TRACE gets one line per rank and world: `rank R pid P init NS restored NS version V` (CLOCK_MONOTONIC), and
 * `ready` from rank 0 when the world computes. */
#include <fcntl.h>
#include <ft.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void trace(const char *line) {
    int file = open(getenv("BENCH_TRACE"), O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (file < 0 || write(file, line, strlen(line)) < 0)
        abort();
    close(file);
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 16) << 20, resident = (size_t)(argc > 2 ? atoi(argv[2]) : 0) << 20;
    struct timespec pause = {0, argc > 3 ? atoi(argv[3]) * 1000000L : 0};
    int rank, state, stop = 0;
    uint64_t version = 0, step = 0;
    MPI_Init(&argc, &argv);
    long long initialised = now();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char *protected = malloc(bytes), *other = malloc(resident + 1), line[200];
    if (ft_init(&state) != 0 || ft_protect(0, &step, sizeof step) != 0 || ft_protect(1, protected, bytes) != 0)
        return 70;
    int code = ft_restore(&version);
    long long restored = now();
    if (code != 0 && code != FT_ERR_NONE)
        return 71;
    if (code == 0 && (version != step || protected[bytes / 2] != (char)step))
        return 72;
    snprintf(line, sizeof line, "rank %d pid %d init %lld restored %lld version %llu\n", rank, (int)getpid(), initialised,
             restored, (unsigned long long)version);
    trace(line);
    memset(other, rank, resident);
    step++;
    memset(protected, (int)step, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (ft_checkpoint(step) != 0)
        return 73;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        trace("ready\n");
    while (!stop) {
        int mine = rank == 0 && access(getenv("BENCH_STOP"), F_OK) == 0;
        MPI_Allreduce(&mine, &stop, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (pause.tv_nsec > 0)
            nanosleep(&pause, NULL);
    }
    ft_finalize();
    MPI_Finalize();
    return 0;
}
