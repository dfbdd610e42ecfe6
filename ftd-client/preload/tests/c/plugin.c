/* What a scripting language does: a program without MPI loads something that has it, out of the global scope. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef PLUGIN
#include <mpi.h>

int work(void) {
    MPI_Init(NULL, NULL);
    puts("inside");
    MPI_Finalize();
    return 0;
}
#else
int main(int argc, char **argv) {
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return ((int (*)(void))dlsym(plugin, "work"))();
}
#endif
