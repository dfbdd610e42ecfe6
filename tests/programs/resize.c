/* resize: a protected region grows, shrinks, moves to other memory and is protected anew between versions. Its length is
 * protected as well: a restarted rank restores the length first, then allocates, protects and restores the rest. */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <stdint.h>

enum { STEPS = 12, PLACE = 9, KINDS = 5 };

static const size_t lengths[KINDS] = {1000, 300000, 17, 4096, 70000}; /* words */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "resize: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 70);
    }
}

static uint64_t *field;

static void resize(int rank, uint64_t step) {
    size_t words = lengths[step % KINDS];
    uint64_t *old = field;
    field = malloc(words * sizeof *field); /* other memory every time */
    for (size_t i = 0; i < words; i++)
        field[i] = mix(((uint64_t)rank << 40) + step * 1000003 + i);
    check(ft_protect(3, field, words * sizeof *field), "ft_protect");
    free(old);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, state;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    uint64_t step = 0, result = 0, version = 0;
    check(ft_init(&state), "ft_init");
    check(ft_protect(0, &step, sizeof step), "ft_protect");
    check(ft_protect(1, &result, sizeof result), "ft_protect");
    int code = ft_restore(&version); /* what says how long the rest is */
    if (code == 0) {
        uint64_t found = version;
        static char wrong[8];
        check(ft_protect(3, wrong, sizeof wrong), "ft_protect");
        if (ft_restore(&version) != FT_ERR_SIZE || step != found)
            MPI_Abort(MPI_COMM_WORLD, 73); /* a refused restore changes nothing */
        resize(rank, step);
        memset(field, 0, lengths[step % KINDS] * sizeof *field);
        check(ft_restore(&version), "ft_restore");
        for (size_t i = 0; i < lengths[step % KINDS]; i++)
            if (version != found || step != version || field[i] != mix(((uint64_t)rank << 40) + step * 1000003 + i))
                MPI_Abort(MPI_COMM_WORLD, 74);
    } else if (code != FT_ERR_NONE) {
        check(code, "ft_restore");
    }
    if (rank == 0)
        printf(code == 0 ? "restored %llu\n" : "fresh\n", (unsigned long long)version);
    while (step < STEPS) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (step + 1 == PLACE)
            gate_reach("app.compute", rank);
        resize(rank, step + 1);
        uint64_t mine = 0, all;
        for (size_t i = 0; i < lengths[(step + 1) % KINDS]; i++)
            mine += field[i];
        MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        result = mix(result + all);
        step++;
        if (rank == 0)
            printf("step %d hash %016llx\n", (int)step, (unsigned long long)result);
        check(ft_checkpoint(step), "ft_checkpoint");
    }
    if (rank == 0)
        printf("result %016llx\n", (unsigned long long)result);
    check(ft_finalize(), "ft_finalize");
    MPI_Finalize();
    return 0;
}
