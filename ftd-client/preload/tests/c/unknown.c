/* An MPI that nobody knows. Its MPI_Init calls its PMPI_Init, as some do. */
#include <stdio.h>
#include <string.h>

int PMPI_Init(int *argc, char ***argv) {
    (void)argc, (void)argv;
    puts("native");
    return 0;
}

int MPI_Init(int *argc, char ***argv) { return PMPI_Init(argc, argv); }

int MPI_Finalize(void) { return 0; }

int MPI_Get_library_version(char *version, int *length) {
    strcpy(version, "Frobnicator MPI 1.0\nsecond line");
    *length = (int)strlen(version);
    return 0;
}
