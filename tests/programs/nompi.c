/* nompi: a program without MPI. `nompi [STATUS]` prints a line and ends with STATUS. */
#include "gate.h"

int main(int argc, char **argv) {
    const char *rank = getenv("FT_RANK");
    gate_reach("app.compute", rank ? atoi(rank) : 0);
    printf("hello from %s\n", rank ? rank : "nowhere");
    return argc > 1 ? atoi(argv[1]) : 0;
}
