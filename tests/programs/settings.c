/* What a setting of the MPI's is, in the environment and for the tools' interface: before MPI_Init ("tools": once that has been opened), and after it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void tell(const char *when, const char *name) {
    const char *value = getenv(name);
    printf("%s %s\n", when, value ? value : "none");
}

int main(int argc, char **argv) {
    const char *how = argv[1], *name = argv[2];
    int provided, index, count, value = -1;
    MPI_T_cvar_handle handle;
    if (strcmp(how, "tools") == 0) {
        MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
        if (MPI_T_cvar_get_index("MPIR_CVAR_ASYNC_PROGRESS", &index) == MPI_SUCCESS &&
            MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
            MPI_T_cvar_read(handle, &value);
            printf("tools %d\n", value);
        }
        fflush(stdout);
        if (system("tr '\\0' '\\n' < /proc/$$/environ | grep '^MPIR_CVAR_ASYNC_PROGRESS='"))
            printf("nothing keeps what it starts from starting alone\n");
    }
    MPI_Init(&argc, &argv);
    tell("joined", name);
    MPI_Finalize();
    if (strcmp(how, "tools") == 0)
        MPI_T_finalize();
    return 0;
}
