/* checkpoint: `checkpoint MB REPETITIONS [MILLISECONDS]`: ft_checkpoint of MB megabytes against memcpy of the same, in turns.
 * Both write to memory that was written before ("warm"), and the checkpoint's checksum, which is made behind the copy, is
 * waited for in between (so long, or 10 ms and one for each MB), so that it does not compete with the next copy. Prints `memcpy_us X` and `checkpoint_us Y` lines. */
#include <ft.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
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
    long rest = argc > 3 ? atol(argv[3]) : 10 + (long)megabytes;
    struct timespec pause = {rest / 1000, rest % 1000 * 1000000};
    for (int i = -4; i < repetitions; i++) { /* the first rounds warm every place */
        for (size_t at = 0; at < bytes; at += 4096)
            source[at] = (char)i;
        double begin = now();
        memcpy(copy[(i + 6) % 3], source, bytes);
        double middle = now();
        if (copy[(i + 6) % 3][bytes / 4096 / 2 * 4096] != (char)i)
            return 71;
        double again = now();
        if (ft_checkpoint((uint64_t)(i + 5)) != 0)
            return 72;
        double end = now();
        if (i >= 0)
            printf("memcpy_us %.1f\ncheckpoint_us %.1f\n", middle - begin, end - again);
        nanosleep(&pause, NULL);
    }
    ft_finalize();
    MPI_Finalize();
    return 0;
}
