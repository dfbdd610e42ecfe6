/* streams: what a program finds that a script has started with closed standard streams: all that its MPI and ftd open has other
   numbers. Each rank says in the file $SAID.<rank> what it found. */
#include <errno.h>
#include <ft.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, round = 0;
    char path[4096], byte;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int state;
    if (ft_init(&state) != 0 || ft_protect(1, &round, sizeof round) != 0)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (; round < 3; round++) {
        printf("out %d\n", round);
        fprintf(stderr, "err %d\n", round);
        if (ft_checkpoint(round + 1) != 0)
            MPI_Abort(MPI_COMM_WORLD, 3);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    snprintf(path, sizeof path, "%s.%d", getenv("SAID"), rank);
    FILE *said = fopen(path, "w");
    fprintf(said, "%d %d %d\n", read(0, &byte, 1) < 0 ? errno : 0, write(1, "", 0) < 0 ? errno : 0, write(2, "", 0) < 0 ? errno : 0);
    fclose(said);
    MPI_Finalize();
    return 0;
}
