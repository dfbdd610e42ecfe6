/* A program without MPI, which loads a plug-in with it where what is preloaded does not reach. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
    const char *how = arguments[1], *plugin = arguments[2];
    void *handle = strcmp(how, "deepbind") == 0 ? dlopen(plugin, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
                                                : dlmopen(LM_ID_NEWLM, plugin, RTLD_NOW | RTLD_LOCAL);
    int (*go)(void) = count == 3 && handle ? (int (*)(void))dlsym(handle, "go") : NULL;
    if (!go) {
        fprintf(stderr, "%s\n", dlerror());
        return 9;
    }
    return go();
}
