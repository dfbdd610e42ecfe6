/* bigckpt: after two versions of a small region, the region grows to MB megabytes per rank (argument), of which no page is
 * ever touched. That does not fit: ft_checkpoint must say so, and the older version must be whole. */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <stdint.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, state, value = 0;
    uint64_t version = 0;
    size_t bytes = (size_t)(argc > 1 ? atol(argv[1]) : 1 << 20) << 20;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (ft_init(&state) != 0 || ft_protect(0, &value, sizeof value) != 0)
        return 70;
    int code = ft_restore(&version);
    if (rank == 0)
        printf("restore code %d version %llu value %d\n", code, (unsigned long long)version, value);
    if (code != 0) {
        for (version = 1; version <= 2; version++) {
            value = (int)version * 11;
            if ((code = ft_checkpoint(version)) != 0)
                return 71;
        }
        void *huge = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (huge == MAP_FAILED || (code = ft_protect(1, huge, bytes)) != 0)
            return 72;
        value = 33;
        code = ft_checkpoint(3);
        fprintf(stderr, "rank %d checkpoint code %d: %s\n", rank, code, ft_strerror(code));
        MPI_Barrier(MPI_COMM_WORLD);
        gate_reach("app.compute", rank);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("result %d\n", value);
    fflush(stdout);
    ft_finalize();
    MPI_Finalize();
    return 0;
}
