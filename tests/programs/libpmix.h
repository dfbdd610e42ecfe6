/* The PMIx client that the MPI of this process has loaded, whichever that is: no program is linked against one. */
#ifndef LIBPMIX_H
#define LIBPMIX_H

#include <dlfcn.h>
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>

/* The function of this name. After MPI_Init; ends the process where there is none. */
static void *pmix(const char *name) {
    void *loaded = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD), *found = loaded ? dlsym(loaded, name) : NULL;
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(9);
    }
    return found;
}

#endif
