/* checkpoint: `checkpoint MB REPETITIONS [MILLISECONDS [together]]`: ft_checkpoint of MB megabytes against memcpy of the same, in turns.
 * Both write to memory that was written before ("warm"), and the checkpoint's checksum, which is made behind the copy, is
 * waited for in between (so long, or 10 ms and one for each MB), so that it does not compete with the next copy. Prints `memcpy_us X` and `checkpoint_us Y` lines. `together`: all ranks take
 * each checkpoint at the same time, and `checkpoint VERSION from SECONDS to SECONDS` (of the machine's clock) is printed besides. */
#include <ft.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    size_t megabytes = argc > 1 ? (size_t)atoi(argv[1]) : 16, bytes = megabytes << 20;
    int repetitions = argc > 2 ? atoi(argv[2]) : 20, state;
    MPI_Init(&argc, &argv);
    /* As many destinations as the arena has places: both sides then find the same amount in the caches. */
    char *source = malloc(bytes), *copy[3];
    memset(source, 1, bytes);
    for (int i = 0; i < 3; i++)
        memset(copy[i] = malloc(bytes), 2, bytes);
    uint64_t version;
    if (ft_init(&state) != 0 || ft_protect(0, source, bytes) != 0)
        return 70;
    ft_restore(&version);
    int together = argc > 4;
    long rest = argc > 3 ? atol(argv[3]) : 10 + (long)megabytes;
    struct timespec pause = {rest / 1000, rest % 1000 * 1000000};
    for (int i = -4; i < repetitions; i++) { /* the first rounds warm every place */
        for (size_t at = 0; at < bytes; at += 4096)
            source[at] = (char)i;
        double begin = now(CLOCK_MONOTONIC);
        memcpy(copy[(i + 6) % 3], source, bytes);
        double middle = now(CLOCK_MONOTONIC);
        if (copy[(i + 6) % 3][bytes / 4096 / 2 * 4096] != (char)i)
            return 71;
        if (together)
            MPI_Barrier(MPI_COMM_WORLD);
        double from = now(CLOCK_REALTIME), again = now(CLOCK_MONOTONIC);
        if (ft_checkpoint((uint64_t)(i + 5)) != 0)
            return 72;
        double end = now(CLOCK_MONOTONIC);
        if (i >= 0)
            printf("memcpy_us %.1f\ncheckpoint_us %.1f\n", middle - begin, end - again);
        if (i >= 0 && together)
            printf("checkpoint %d from %.6f to %.6f\n", i + 5, from / 1e6, now(CLOCK_REALTIME) / 1e6);
        nanosleep(&pause, NULL);
    }
    ft_finalize();
    MPI_Finalize();
    return 0;
}
