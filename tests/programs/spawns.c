/* spawns: calls MPI_Comm_spawn, which ftd refuses; with an argument the errors are returned to the program, which goes on. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, codes[2];
    MPI_Comm children;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc > 1)
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int again = 0; again < 20; again++)
        if (MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children, codes) == MPI_SUCCESS)
            printf("rank %d has children\n", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("result of spawns\n");
    MPI_Finalize();
    return 0;
}
