/* montecarlo: estimates pi by throwing darts. It knows nothing of ftd and takes no checkpoint: after a failure ftd starts
 * it again from the beginning, and it ends with the same result, because its random numbers are a function of
 * (rank, throw) alone.
 *
 *     mpicc -o montecarlo montecarlo.c
 *     ftrun -n 4 --ft=reinit ./montecarlo 500 10000 20        (ten seconds)
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t mix(uint64_t x) { /* splitmix64's finalizer */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 100, throws = argc > 2 ? atoi(argv[2]) : 10000;
    int pause_ms = argc > 3 ? atoi(argv[3]) : 0;
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t result = 0, hits = 0;
    for (int step = 1; step <= steps; step++) {
        uint64_t mine = 0, all;
        for (int i = 0; i < throws; i++) {
            uint64_t dart = mix(((uint64_t)rank << 48) + (uint64_t)step * throws + i + 1);
            double x = (double)(uint32_t)dart / UINT32_MAX, y = (double)(uint32_t)(dart >> 32) / UINT32_MAX;
            mine += x * x + y * y <= 1.0;
        }
        MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        hits += all;
        result = mix(result + hits); /* a hash over every step: one wrong step shows */
        if (rank == 0) {
            printf("step %d hash %016llx\n", step, (unsigned long long)result);
            fflush(stdout);
        }
        usleep(pause_ms * 1000);
    }
    if (rank == 0) {
        printf("pi is about %.6f\n", 4.0 * hits / ((double)steps * throws * ranks));
        printf("result %016llx\n", (unsigned long long)result);
    }
    MPI_Finalize();
    return 0;
}
