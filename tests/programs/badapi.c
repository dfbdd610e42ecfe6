/* badapi: uses the checkpoint API wrongly and prints what it is told: `NAME code N: SENTENCE`. Rank 0 speaks. */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <stdint.h>

static int rank;

static void tell(const char *name, int code) {
    if (rank == 0)
        printf("%s code %d: %s\n", name, code, ft_strerror(code));
    fflush(stdout);
}

int main(int argc, char **argv) {
    int state, yes, number = 7;
    uint64_t version = 99;
    static char region[10000];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    tell("protect-before-init", ft_protect(0, &number, sizeof number));
    tell("checkpoint-before-init", ft_checkpoint(1));
    tell("init", ft_init(&state));
    tell("restore-before-protect", ft_restore(&version));
    tell("null-pointer", ft_protect(0, NULL, 8));
    tell("null-state", ft_init(NULL));
    tell("null-version", ft_restore(NULL));
    tell("null-due", ft_checkpoint_due(NULL));
    tell("null-function", ft_on_checkpoint(NULL, NULL));
    tell("strerror-unknown", 123456);
    if (state == FT_STATE_NEW) {
        tell("protect", ft_protect(0, &number, sizeof number));
        tell("protect", ft_protect(1, region, sizeof region));
        tell("restore-nothing", ft_restore(&version));
        tell("checkpoint", ft_checkpoint(5));
        tell("version-not-increasing", ft_checkpoint(5));
        tell("version-going-back", ft_checkpoint(4));
        tell("restore-after-checkpoint", ft_restore(&version));
        MPI_Barrier(MPI_COMM_WORLD);
        gate_reach("app.compute", rank);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        number = 0;
        tell("protect", ft_protect(0, &number, sizeof number));
        tell("protect", ft_protect(1, region, sizeof region - 1));
        tell("checkpoint-before-restore", ft_checkpoint(6));
        tell("restore-other-size", ft_restore(&version));
        tell("unchanged", number);
        tell("protect", ft_protect(1, region, sizeof region));
        tell("restore", ft_restore(&version));
        if (rank == 0)
            printf("number %d version %llu\n", number, (unsigned long long)version);
    }
    tell("finalize", ft_finalize());
    tell("init-after-finalize", ft_init(&state));
    tell("checkpoint-after-finalize", ft_checkpoint(9));
    tell("restore-after-finalize", ft_restore(&version));
    tell("protect-after-finalize", ft_protect(0, &number, sizeof number));
    tell("due-after-finalize", ft_checkpoint_due(&yes));
    MPI_Finalize();
    return 0;
}
