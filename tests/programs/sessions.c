/* MPI without MPI_Init: a session, and twice in it the communicators of all and of oneself. (A second session in one process ends
 * MPICH 4.0.2 and Open MPI 5.0.11 under their own launchers, too.) */
#include "gate.h"
#include <mpi.h>

static MPI_Comm from_set(MPI_Session session, const char *set, const char *tag) {
    MPI_Group group;
    MPI_Comm communicator;
    MPI_Group_from_session_pset(session, set, &group);
    MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &communicator);
    MPI_Group_free(&group);
    return communicator;
}

static long sum_of(MPI_Session session, int round, int *rank) {
    MPI_Comm world = from_set(session, "mpi://WORLD", "ftd.world"), self = from_set(session, "mpi://SELF", "ftd.self");
    int alone;
    MPI_Comm_rank(world, rank);
    MPI_Comm_size(self, &alone);
    long sum = 0, mine = (*rank + 1) * round * 100 + alone, again = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, world);
    gate_reach("app.compute", *rank);
    MPI_Allreduce(&sum, &again, 1, MPI_LONG, MPI_SUM, world);
    MPI_Comm_free(&self);
    MPI_Comm_free(&world);
    return again;
}

int main(void) {
    int rank;
    MPI_Session session;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    long first = sum_of(session, 1, &rank), second = sum_of(session, 2, &rank);
    MPI_Session_finalize(&session);
    if (rank == 0)
        printf("result %ld %ld\n", first, second);
    return 0;
}
