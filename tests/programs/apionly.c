/* apionly: uses the checkpoint library and calls no MPI, in C and C++. `apionly [HOW]`:
 *   (nothing)   15 steps, a checkpoint in every fourth; prints `rank R step K` in each, and `rank R done`
 *   crash       dies of SIGSEGV in step 6, in every world
 *   threads     ends by itself, with status 0, while another thread computes
 *   leaves      calls ft_init, and ends with status 0
 * With -DTHEN_MPI it calls MPI_Init when it has its state back, and MPI_Finalize before it ends. */
#include "gate.h"
#include <ft.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#ifdef THEN_MPI
#include <mpi.h>
#endif

enum { STEPS = 15, EVERY = 4, CRASHES = 6 };

static void *compute(void *argument) {
    for (;;)
        gate_sleep_ms(1);
    return argument;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int rank = atoi(getenv("FT_RANK")), state, step = 0;
    uint64_t version;
    if (ft_init(&state) || ft_protect(0, &step, sizeof step))
        return 70;
    if (strcmp(how, "leaves") == 0)
        return 0;
    if (state == FT_STATE_RESTARTED)
        ft_restore(&version);
#ifdef THEN_MPI
    MPI_Init(&argc, &argv);
#endif
    pthread_t thread;
    if (strcmp(how, "threads") == 0 && pthread_create(&thread, NULL, compute, NULL))
        return 71;
    while (step < STEPS) {
        printf("rank %d step %d\n", rank, ++step);
        if (strcmp(how, "crash") == 0 && step == CRASHES)
            raise(SIGSEGV);
        if (step % EVERY == 0 && ft_checkpoint(step))
            return 72;
    }
    printf("rank %d done\n", rank);
#ifdef THEN_MPI
    MPI_Finalize();
#endif
    return ft_finalize();
}
