/* loads WHEN NAME LIBRARY…: loads libraries of its own, and has each make a file NAME.RANK.N below /dev/shm and a private
 * segment, which it leaves; before that, all ranks have a shared window. WHEN is "late", after MPI_Finalize, or "during", by
 * another thread while MPI_Init runs. */
#include "gate.h"
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>

static int rank, count;
static char **libraries;
static int (*make[9])(const char *);

static void *load(void *unused) {
    gate_reach("app.load", rank);
    for (int i = 0; i < count; i++) {
        void *library = dlopen(libraries[i], RTLD_NOW);
        make[i] = library ? (int (*)(const char *))dlsym(library, "make_own") : NULL;
    }
    gate_reach("app.loaded", rank);
    return unused;
}

static void leave(const char *name) {
    for (int i = 0; i < count; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s.%d.%d", name, rank, i);
        printf("rank %d segment %d\n", rank, make[i] ? make[i](path) : -1);
    }
}

int main(int argc, char **argv) {
    pthread_t loader;
    int level, during = strcmp(argv[1], "during") == 0;
    rank = atoi(getenv("FT_RANK"));
    libraries = argv + 3;
    count = argc - 3;
    if (during)
        pthread_create(&loader, NULL, load, NULL);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Win window;
    int *mine;
    MPI_Win_allocate_shared(1 << 20, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window);
    if (during) {
        pthread_join(loader, NULL);
        leave(argv[2]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    gate_reach("app.compute", rank);
    MPI_Win_free(&window);
    MPI_Finalize();
    if (!during) {
        load(NULL);
        leave(argv[2]);
    }
    return 0;
}
