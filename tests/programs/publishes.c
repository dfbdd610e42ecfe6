/* publishes: the highest rank publishes a port under a name, and all look it up; before that, in each world, nobody finds it. Then rank
 * 0 publishes one for the highest. Ranks are at the place app.compute while the names are published. With the argument `connect` the
 * highest rank accepts at the port, and rank 0 connects. */
#include "gate.h"
#include <mpi.h>

static int rank, wrong;

static void check(int right, const char *what) {
    if (!right) {
        printf("rank %d: %s\n", rank, what);
        wrong = 1;
    }
}

static int found(const char *name, char *port) {
    memset(port, 0, MPI_MAX_PORT_NAME);
    return MPI_Lookup_name(name, MPI_INFO_NULL, port) == MPI_SUCCESS;
}

static void exchange(const char *name, int publisher, int also) {
    char port[MPI_MAX_PORT_NAME] = "", other[MPI_MAX_PORT_NAME];
    check(!found(name, other), "a name that nobody has published");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == publisher)
        MPI_Open_port(MPI_INFO_NULL, port);
    MPI_Bcast(port, sizeof port, MPI_CHAR, publisher, MPI_COMM_WORLD);
    if (rank == publisher)
        check(MPI_Publish_name(name, MPI_INFO_NULL, port) == MPI_SUCCESS, "it is not published");
    MPI_Barrier(MPI_COMM_WORLD);
    check(found(name, other) && strcmp(port, other) == 0, "the port is not found");
    check(port[0] != 0, "the port has no name");
    if (rank != publisher)
        check(MPI_Publish_name(name, MPI_INFO_NULL, "another") != MPI_SUCCESS, "it is published twice");
    gate_reach("app.compute", rank);
    if (also) {
        MPI_Comm between;
        if (rank == publisher)
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &between);
        if (rank == 0)
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &between);
        int mine = rank + 100, theirs = -1;
        if (rank == publisher || rank == 0) {
            MPI_Sendrecv(&mine, 1, MPI_INT, 0, 1, &theirs, 1, MPI_INT, 0, 1, between, MPI_STATUS_IGNORE);
            check(theirs == (rank ? 100 : publisher + 100), "what came over the port");
            MPI_Comm_disconnect(&between);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == publisher)
        check(MPI_Unpublish_name(name, MPI_INFO_NULL, port) == MPI_SUCCESS, "it is not withdrawn");
    MPI_Barrier(MPI_COMM_WORLD);
    check(!found(name, other), "a name that was withdrawn");
    if (rank == publisher)
        MPI_Close_port(port);
}

int main(int argc, char **argv) {
    int ranks, all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    exchange("ftd-there", ranks - 1, argc > 1);
    exchange("ftd-back", 0, 0);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("result %s\n", all ? "wrong" : "right");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
