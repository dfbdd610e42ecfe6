/* leaving: ranks that save when they are told to end. `leaving HOW [MS]`:
 *   save        on a signal that ends a process every rank takes MS ms, writes its number to the file `saved.RANK` in
 *               $FT_CHECKPOINT_DIR and in $LEAVING_DIR, prints `saved RANK SIGNAL`, and exits with $LEAVING_STATUS (0)
 *   finalize    the same, and MPI_Finalize before it ends
 *   stay        every rank ignores the signals
 * With $LEAVING_TOGETHER=N none of the N ranks exits before all have printed: the first that exits with another status than 0 ends the
 * job, and with it those that have not come so far.
 * It makes the file `told.RANK` in $LEAVING_DIR first, and stands at the gate app.told then. Before that all ranks are past a barrier; rank r then makes the file `ready.R` in $LEAVING_DIR and computes. */
#include "gate.h"
#include <mpi.h>
#include <signal.h>

static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2};
static volatile sig_atomic_t came;

static void note(int signal) {
    came = signal;
}

static void leave(const char *directory, const char *name, int rank) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%d", directory, name, rank);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || dprintf(file, "%d\n", rank) < 0 || close(file) != 0)
        perror(path);
}

static void wait_for_all(const char *size) {
    char path[4096];
    for (int rank = 0; rank < atoi(size); rank++) {
        snprintf(path, sizeof path, "%s/printed.%d", getenv("LEAVING_DIR"), rank);
        while (access(path, F_OK) != 0)
            gate_sleep_ms(1);
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "save", *status = getenv("LEAVING_STATUS"), *together = getenv("LEAVING_TOGETHER");
    int rank;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], strcmp(how, "stay") == 0 ? SIG_IGN : note);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    leave(getenv("LEAVING_DIR"), "ready", rank);
    while (!came)
        gate_sleep_ms(1);
    leave(getenv("LEAVING_DIR"), "told", rank);
    gate_reach("app.told", rank);
    gate_sleep_ms(argc > 2 ? atoi(argv[2]) : 0);
    leave(getenv("FT_CHECKPOINT_DIR"), "saved", rank);
    leave(getenv("LEAVING_DIR"), "saved", rank);
    printf("saved %d %d\n", rank, (int)came);
    fflush(stdout);
    leave(getenv("LEAVING_DIR"), "printed", rank);
    if (together)
        wait_for_all(together);
    if (strcmp(how, "finalize") == 0)
        MPI_Finalize();
    _exit(status ? atoi(status) : 0);
}
