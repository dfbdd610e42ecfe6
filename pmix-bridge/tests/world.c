/* What a small MPI program does: for the tests of ft-pmix and ft-pmi1. Argument 1 says what it does after an allreduce. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dlfcn.h>

/* Counts what the MPI library calls when it waits. */
static volatile long yields;
int sched_yield(void) {
    yields++;
    return ((int (*)(void))dlsym(RTLD_NEXT, "sched_yield"))();
}

static int fail(int rank, const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    return 3;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "sum";
    int rank, size, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (size != atoi(getenv("FT_SIZE")) || rank != atoi(getenv("FT_RANK"))) return fail(rank, "wrong rank or size");
    if (sum != size * (size - 1) / 2) return fail(rank, "wrong sum");

    if (!strcmp(what, "abort")) {
        if (rank == size - 1) {
            MPI_Abort(MPI_COMM_WORLD, 7);
            sleep(60); /* MPICH 5 comes back and relies on being killed. */
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (!strcmp(what, "wait")) sleep(60);
    if (!strcmp(what, "names")) {
        char port[MPI_MAX_PORT_NAME] = "nowhere";
        if (rank == 0) MPI_Publish_name("ftd-test", MPI_INFO_NULL, "port-of-rank-0");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Lookup_name("ftd-test", MPI_INFO_NULL, port);
        if (strcmp(port, "port-of-rank-0")) return fail(rank, port);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) MPI_Unpublish_name("ftd-test", MPI_INFO_NULL, port);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        if (MPI_Lookup_name("ftd-test", MPI_INFO_NULL, port) == MPI_SUCCESS) return fail(rank, "found what was withdrawn");
    }
    if (!strcmp(what, "spawn") && rank == 0) {
        /* Alone: Open MPI leaves the other ranks waiting when the root's request fails. */
        MPI_Comm child;
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        int rc = MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &child, MPI_ERRCODES_IGNORE);
        if (rc == MPI_SUCCESS) return fail(rank, "spawn succeeded");
    }
    if (!strcmp(what, "session")) {
#if MPI_VERSION >= 4
        MPI_Session session;
        MPI_Group group;
        MPI_Comm comm;
        int all = 0, one = 1;
        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
        MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
        MPI_Comm_create_from_group(group, "ftd.test", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
        MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, comm);
        if (all != size) return fail(rank, "wrong size of the session's communicator");
        MPI_Comm_free(&comm);
        MPI_Group_free(&group);
        MPI_Session_finalize(&session);
#endif
    }
    if (!strcmp(what, "sched")) {
        /* Whether an idle rank gives its processor away: everybody waits for rank 0. */
        if (rank == 0) sleep(1);
        long before = yields;
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1 && yields - before > 1000) printf("rank 1 yields\n");
    }
    MPI_Finalize();
    if (rank == 0) printf("%s: %d ranks, sum %d\n", what, size, sum);
    return 0;
}
