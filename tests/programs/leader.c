/* leader: processes whose main thread has left (`pthread_exit`), as the others go on. `leader HOW`:
 *   rank    another thread calls MPI_Init; each rank writes restart.RANK in $FT_CHECKPOINT_DIR, reaches the gate `leader.ready`, and
 *           waits to be killed; those of the next world report what is in their files
 *   later   the same, but the main thread waits for MPI_Init: libraries look for their own memory map in that thread's
 *   helper  rank 0 forks a process whose other thread writes half of the file `half` in $FT_CHECKPOINT_DIR; it reaches the gate
 *           `leader.half`, and when that lets it go it ends by SIGTERM. Rank 0 waits for it, and reaches `leader.ended` */
#include "gate.h"
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static const char *how;
static atomic_int initialised;

static void store(const char *name, int keep) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FT_CHECKPOINT_DIR"), name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, "written\n", 8) != 8 || (!keep && close(file) != 0))
        perror(path);
}

static void *write_half(void *unused) {
    store("half", 1);
    gate_reach("leader.half", 0);
    kill(getpid(), SIGTERM);
    return unused;
}

static void help(void) {
    pid_t helper = fork();
    if (helper == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, write_half, NULL);
        pthread_exit(NULL);
    }
    int status = 0;
    waitpid(helper, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM)
        printf("status %d\n", status);
    gate_reach("leader.ended", 0);
}

static void *work(void *unused) {
    char name[32], line[32] = "none";
    int rank, provided, world = atoi(getenv("FT_WORLD"));
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    initialised = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(name, sizeof name, "restart.%d", rank);
    if (world == 1) {
        store(name, 0);
        MPI_Barrier(MPI_COMM_WORLD);
        if (strcmp(how, "helper") == 0 && rank == 0)
            help();
        gate_reach("leader.ready", rank);
        for (;;)
            gate_sleep_ms(1);
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FT_CHECKPOINT_DIR"), name);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%31s", line) == 1)
        fclose(file);
    snprintf(path, sizeof path, "%s/half", getenv("FT_CHECKPOINT_DIR"));
    printf("rank %d of world %d found %s%s\n", rank, world, line, access(path, F_OK) == 0 ? " and a half" : "");
    fflush(stdout);
    MPI_Finalize();
    exit(0);
}

int main(int argc, char **argv) {
    how = argc > 1 ? argv[1] : "rank";
    pthread_t thread;
    if (strcmp(how, "helper") == 0)
        work(NULL);
    pthread_create(&thread, NULL, work, NULL);
    while (strcmp(how, "later") == 0 && !initialised)
        gate_sleep_ms(1);
    pthread_exit(NULL);
}
