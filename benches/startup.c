/* startup [seconds]: the smallest MPI program; what is measured is everything around it, while it starts and ends, or while it
 * does nothing for so long. */
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc > 1) {
        sleep((unsigned)atoi(argv[1]));
    }
    MPI_Finalize();
    return 0;
}
