/* ending: programs that end in their own way. `ending HOW [RANK] [STATUS]`:
 *   ok          a few barriers and a clean end
 *   slow        likewise, after three seconds
 *   abort       RANK calls MPI_Abort(STATUS)
 *   exit        RANK calls exit(STATUS) without MPI_Finalize
 *   return      RANK returns STATUS from main without MPI_Finalize (0 is wrong as well)
 *   late        everybody finalizes, then RANK exits with STATUS
 *   crash       RANK dies of SIGSEGV, every time
 *   crash-once  RANK dies of SIGSEGV unless the file $ENDING_ONCE is there
 *   abort-once, exit-once   likewise
 *   early       RANK finalizes at once and exits 0 (where MPI allows that); the others go on after gate ending.early
 * What the other ranks do meanwhile: wait in a barrier that RANK never enters. */
#include "gate.h"
#include <mpi.h>
#include <signal.h>

static int first_time(void) {
    const char *path = getenv("ENDING_ONCE");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_EXCL, 0644) : -1;
    return file >= 0;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "ok";
    int who = argc > 2 ? atoi(argv[2]) : 1, status = argc > 3 ? atoi(argv[3]) : 1, rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(how, "slow") == 0)
        sleep(3);
    size_t length = strlen(how);
    int once = length > 5 && strcmp(how + length - 5, "-once") == 0;
    if (rank == who && (!once || first_time())) {
        if (strncmp(how, "abort", 5) == 0)
            MPI_Abort(MPI_COMM_WORLD, status);
        if (strncmp(how, "exit", 4) == 0)
            exit(status);
        if (strncmp(how, "return", 6) == 0)
            return status;
        if (strncmp(how, "crash", 5) == 0) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("result of ending\n");
    fflush(stdout);
    MPI_Finalize();
    return strcmp(how, "late") == 0 && rank == who ? status : 0;
}
