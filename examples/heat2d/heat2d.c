/* heat2d: heat spreads over a square plate whose left edge is kept hot. Each rank holds a band of rows.
 *
 * With the checkpoint API (five calls, marked "ft") the job survives the death of any of its ranks:
 *
 *     mpicc -o heat2d heat2d.c $(pkg-config --cflags --libs ftd-client) -lm
 *     ftrun -n 4 --ft=reinit ./heat2d -s 500 -p 20        (ten seconds)
 *
 * The result is a hash over the plate after every single step: one wrong step shows. */
#include <ft.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096 };

static uint64_t mix(uint64_t x) { /* splitmix64's finalizer */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "heat2d: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

int main(int argc, char **argv) {
    int size = 128, steps = 100, every = 10, ballast_mb = 0, pause_ms = 0, option;
    while ((option = getopt(argc, argv, "g:s:c:m:p:")) != -1) {
        switch (option) {
        case 'g': size = atoi(optarg); break;
        case 's': steps = atoi(optarg); break;
        case 'c': every = atoi(optarg); break;
        case 'm': ballast_mb = atoi(optarg); break;
        case 'p': pause_ms = atoi(optarg); break;
        default:
            fprintf(stderr, "usage: heat2d [-g cells per side] [-s steps] [-c steps between checkpoints] "
                            "[-m MB of extra protected memory per rank] [-p milliseconds of pause per step]\n");
            return 2;
        }
    }
    MPI_Init(&argc, &argv);
    int rank, ranks, state;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int first = (int)((long)size * rank / ranks), rows = (int)((long)size * (rank + 1) / ranks) - first;
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    size_t cells = (size_t)(rows + 2) * size, ballast_bytes = (size_t)ballast_mb << 20;
    double *now = calloc(cells, sizeof *now), *next = calloc(cells, sizeof *next);
    char *ballast = calloc(ballast_bytes + 1, 1);
    int step = 0;
    uint64_t result = 0;

    check(ft_init(&state), "ft_init");                                       /* ft */
    check(ft_protect(0, &step, sizeof step), "ft_protect");                  /* ft: everything that a restarted */
    check(ft_protect(1, &result, sizeof result), "ft_protect");              /*     rank needs to go on */
    check(ft_protect(2, now, cells * sizeof *now), "ft_protect");
    if (ballast_mb > 0)
        check(ft_protect(3, ballast, ballast_bytes), "ft_protect");
    for (int row = 0; row < rows + 2; row++)
        now[(size_t)row * size] = next[(size_t)row * size] = 100.0;
    uint64_t version;
    int code = ft_restore(&version);                                         /* ft */
    if (code == 0) {
        if (rank == 0)
            printf("restarted from version %llu\n", (unsigned long long)version);
        for (size_t at = 0; at < ballast_bytes; at += PAGE)
            if (memcmp(ballast + at, &step, sizeof step) != 0)
                MPI_Abort(MPI_COMM_WORLD, 3);
    } else if (code != FT_ERR_NONE) {
        check(code, "ft_restore");
    }

    while (step < steps) {
        MPI_Sendrecv(now + size, size, MPI_DOUBLE, up, 0, now + (size_t)(rows + 1) * size, size, MPI_DOUBLE, down, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(now + (size_t)rows * size, size, MPI_DOUBLE, down, 1, now, size, MPI_DOUBLE, up, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        uint64_t mine = 0, all;
        for (int row = 1; row <= rows; row++) {
            for (int column = 1; column < size - 1; column++) {
                size_t at = (size_t)row * size + column;
                next[at] = 0.25 * (now[at - 1] + now[at + 1] + now[at - size] + now[at + size]);
                uint64_t bits;
                memcpy(&bits, &next[at], sizeof bits);
                mine ^= mix(bits + (uint64_t)(first + row) * size + column); /* the order of cells does not matter */
            }
        }
        memcpy(now + size, next + size, (size_t)rows * size * sizeof *now);
        MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        result = mix(result + all);
        step++;
        if (rank == 0) {
            printf("step %d hash %016llx\n", step, (unsigned long long)result);
            fflush(stdout);
        }
        usleep(pause_ms * 1000);
        if (step % every == 0) {
            for (size_t at = 0; at < ballast_bytes; at += PAGE)
                memcpy(ballast + at, &step, sizeof step);
            check(ft_checkpoint(step), "ft_checkpoint");                     /* ft */
        }
    }
    if (rank == 0)
        printf("result %016llx\n", (unsigned long long)result);
    check(ft_finalize(), "ft_finalize");                                     /* ft */
    MPI_Finalize();
    return 0;
}
