/* manymaps: never calls MPI, and has so many mappings that its memory map is slow to read. */
#include "gate.h"
#include <sys/mman.h>

enum { MAPPINGS = 16000 };

int main(void) {
    const char *rank = getenv("FT_RANK");
    /* Neighbours with other rights are not merged. */
    for (int i = 0; i < MAPPINGS; i++)
        if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            abort();
    gate_reach("app.mapped", rank ? atoi(rank) : 0);
    return 0;
}
