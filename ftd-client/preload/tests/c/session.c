/* The MPI-4 way, without MPI_Init: two sessions. */
#include <mpi.h>
#include <stdio.h>

int main(void) {
    MPI_Session one, two;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &one);
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &two);
    puts("inside");
    MPI_Session_finalize(&one);
    MPI_Session_finalize(&two);
    return 0;
}
