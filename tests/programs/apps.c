// Says which program of a job it is, and in world 1 waits for somebody who ends it.
//   apps WORD
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *of(const char *name) {
    const char *value = getenv(name);
    return value ? value : "-";
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, found, *number;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &found);
    char here[4096];
    printf("world %s rank %d of %d: program %d, %s, OWN=%s ALL=%s %s\n", of("FT_WORLD"), rank, size, found ? *number : -1,
           argc > 1 ? argv[1] : "-", of("OWN"), of("ALL"), getcwd(here, sizeof here) ? here : "-");
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    while (of("FT_WORLD")[0] == '1' && of("WAITS")[0] == '1') usleep(10000);
    MPI_Finalize();
}
