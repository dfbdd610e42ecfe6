/* files: a code with its own restart files in $FT_CHECKPOINT_DIR, one per step, written by rank 0 in two halves with a place
 * (gate files.half) between them, at step $FILES_STEP. It looks for nothing but the newest file that is there: ftd must
 * have set the torn one aside. */
#include "gate.h"
#include <dirent.h>
#include <mpi.h>
#include <stdint.h>

enum { STEPS = 10, WORDS = 5000 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, step = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *directory = getenv("FT_CHECKPOINT_DIR");
    int place = getenv("FILES_STEP") ? atoi(getenv("FILES_STEP")) : 6;
    if (!directory) {
        fprintf(stderr, "files: FT_CHECKPOINT_DIR is not set\n");
        return 70;
    }
    static uint64_t words[WORDS];
    char path[512];
    if (rank == 0) {
        DIR *listing = opendir(directory);
        struct dirent *entry;
        while (listing && (entry = readdir(listing)) != NULL) {
            int number;
            if (sscanf(entry->d_name, "restart.%d", &number) == 1 && number > step)
                step = number;
        }
        if (step > 0) {
            snprintf(path, sizeof path, "%s/restart.%d", directory, step);
            FILE *file = fopen(path, "rb");
            if (!file || fread(words, sizeof *words, WORDS, file) != WORDS || fgetc(file) != EOF) {
                fprintf(stderr, "files: %s is torn\n", path);
                MPI_Abort(MPI_COMM_WORLD, 71);
            }
            fclose(file);
        }
        printf("restart from %d\n", step);
        fflush(stdout);
    }
    MPI_Bcast(&step, 1, MPI_INT, 0, MPI_COMM_WORLD);
    while (step < STEPS) {
        step++;
        if (rank == 0) {
            for (int i = 0; i < WORDS; i++)
                words[i] = words[i] * 6364136223846793005u + (uint64_t)step * i + 1;
            snprintf(path, sizeof path, "%s/restart.%d", directory, step);
            FILE *file = fopen(path, "wb");
            if (!file)
                MPI_Abort(MPI_COMM_WORLD, 72);
            fwrite(words, sizeof *words, WORDS / 2, file);
            fflush(file);
            if (step == place)
                gate_reach("files.half", rank);
            fwrite(words + WORDS / 2, sizeof *words, WORDS - WORDS / 2, file);
            if (fclose(file) != 0)
                MPI_Abort(MPI_COMM_WORLD, 73);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (step == place) {
            gate_reach("app.compute", rank);
            MPI_Barrier(MPI_COMM_WORLD); /* nobody writes the next file before */
        }
    }
    if (rank == 0)
        printf("result %016llx\n", (unsigned long long)words[WORDS - 1]);
    MPI_Finalize();
    return 0;
}
