/* ownshm NAME: has shared memory of its own, and leaves it: a file NAME.RANK below /dev/shm, mapped before MPI_Init, in which
 * it counts its incarnations, and a private System V segment whose number it keeps in that file, and which its next
 * incarnation finds again by that. Prints the counts and the segments' numbers. */
#include "gate.h"
#include <mpi.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

struct own {
    int count, segment;
};

/* Makes the segment, or finds the one of the world before, and counts in it as well. */
static int count_in_segment(struct own *own) {
    if (own->count == 1)
        own->segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    int *counter = shmat(own->segment, NULL, 0);
    if (counter == (void *)-1)
        return -1;
    int count = ++*counter;
    shmdt(counter);
    return count;
}

int main(int argc, char **argv) {
    char name[300];
    int rank = atoi(getenv("FT_RANK")), counted = 0;
    snprintf(name, sizeof name, "%s.%d", argv[1], rank);
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0)
        return 70;
    struct own *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (own == MAP_FAILED)
        return 71;
    ++own->count;
    /* Some before, some after. */
    if (rank == 0)
        counted = count_in_segment(own);
    MPI_Init(&argc, &argv);
    if (rank != 0)
        counted = count_in_segment(own);
    if (counted != own->count) {
        printf("rank %d: the segment %d of the world before is not there\n", rank, own->segment);
        MPI_Abort(MPI_COMM_WORLD, 72);
    }
    /* Nobody is killed before all have their segments: the next incarnation looks for them. */
    MPI_Barrier(MPI_COMM_WORLD);
    gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d count %d segment %d\n", rank, own->count, own->segment);
    MPI_Finalize();
    return 0;
}
