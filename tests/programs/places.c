/* places: the program that the failure tests kill. It computes in steps; every step sends messages around the ring, sums
 * over all ranks, hashes the state of all ranks and takes a checkpoint whose version is the number of the step.
 *
 * Environment:
 *   PLACES_STEPS (12)  PLACES_KB (64) of state per rank  PLACES_EVERY (1) steps per checkpoint  PLACES_SLEEP (0) ms per step
 *   PLACES_STEP (6)    the step, counted from 1, at whose start the places are; all ranks have checkpointed before it
 *   PLACES_STOP        file: once it is there this is the last step
 *   PLACES_END         file to which each rank appends the time, in ns since 1970, when it has nothing left to do
 *   PLACES_HEARS       file to which a rank appends `RANK SIGNAL` whenever it has one of those that end processes; it goes on then
 *   PLACES_TRACE       file in which rank r keeps its last committed version, 8 bytes at 8 * r
 *   FT_GATE            see gate.h. Places of this program:
 *     app.compute      the rank computes (it does not sleep) until the test says go
 *     app.recv         the rank is in an MPI_Recv whose message is sent only after the test says go
 *     app.allreduce    the rank is in an MPI_Allreduce which another rank enters only after the test says go
 *
 * Rank 0 prints `restored V` or `fresh`, `step K hash H` for every step, and `result H`. */
#include "gate.h"
#include <errno.h>
#include <ft.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int option(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "places: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 70);
    }
}

/* All ranks hear the same of the file, or one would wait for a message that is never sent. */
static int stopped(int rank) {
    const char *path = getenv("PLACES_STOP");
    int there = path && rank == 0 && access(path, F_OK) == 0;
    if (path)
        MPI_Bcast(&there, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return there;
}

/* Behind MPI_Finalize: what may take long after that is not the program. */
static int note_end(void) {
    const char *path = getenv("PLACES_END");
    struct timespec now;
    char line[32];
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    if (!path)
        return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    int length = snprintf(line, sizeof line, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    return file < 0 || write(file, line, length) != length ? 73 : 0;
}

static int hears = -1, hearer;

static void hear(int signal) {
    char line[] = {'0' + hearer / 10, '0' + hearer % 10, ' ', '0' + signal / 10, '0' + signal % 10, '\n'};
    if (write(hears, line, sizeof line) != sizeof line)
        _exit(74);
}

/* Behind MPI_Init, whose libraries have handlers of their own. */
static void hear_all(int rank) {
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2};
    const char *path = getenv("PLACES_HEARS");
    struct sigaction action = {.sa_handler = hear, .sa_flags = SA_RESTART};
    hearer = rank;
    hears = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    for (size_t i = 0; path && i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

static volatile double sink;

/* Ranks for which `name` is armed stand there; the lowest other rank keeps them there. With every rank armed there would be
 * nobody to keep them: the test must leave one. */
static int keeper(const char *name, int ranks) {
    int nth, mark;
    for (int rank = 0; rank < ranks; rank++)
        if (!gate_armed(name, rank, &nth, &mark))
            return rank;
    fprintf(stderr, "places: %s is armed for every rank\n", name);
    MPI_Abort(MPI_COMM_WORLD, 71);
    return 0;
}

/* A keeper lets go when the test says so; in later worlds the gate has been used up. */
static void keep(const char *name, int victim) {
    const char *world = getenv("FT_WORLD");
    if (world && atoi(world) > 1 && gate_exists(name, victim, ""))
        return;
    gate_wait(name, victim);
}

static void stand(int rank, int ranks) {
    int nth, mark, dummy = 0, armed_recv = 0, armed_allreduce = 0;
    MPI_Barrier(MPI_COMM_WORLD); /* every rank has committed the checkpoints of the steps before */
    if (gate_armed("app.compute", rank, &nth, &mark) && gate_mark("app.compute", rank)) {
        for (long round = 0; round < GATE_PATIENCE_MS && !gate_exists("app.compute", rank, ".go"); round++)
            for (int i = 0; i < 100000; i++)
                sink = sink * 0.999 + i;
    }
    for (int other = 0; other < ranks; other++) {
        armed_recv |= gate_armed("app.recv", other, &nth, &mark);
        armed_allreduce |= gate_armed("app.allreduce", other, &nth, &mark);
    }
    if (armed_recv) {
        int from = keeper("app.recv", ranks);
        for (int other = 0; other < ranks; other++) {
            if (!gate_armed("app.recv", other, &nth, &mark))
                continue;
            if (rank == other) {
                gate_mark("app.recv", rank);
                MPI_Recv(&dummy, 1, MPI_INT, from, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else if (rank == from) {
                keep("app.recv", other);
                MPI_Send(&dummy, 1, MPI_INT, other, 99, MPI_COMM_WORLD);
            }
        }
    }
    if (armed_allreduce) {
        int last = keeper("app.allreduce", ranks), sum;
        for (int other = 0; other < ranks; other++)
            if (gate_armed("app.allreduce", other, &nth, &mark)) {
                if (rank == other)
                    gate_mark("app.allreduce", rank);
                else if (rank == last)
                    keep("app.allreduce", other);
            }
        MPI_Allreduce(&dummy, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    int steps = option("PLACES_STEPS", 12), place = option("PLACES_STEP", 6), every = option("PLACES_EVERY", 1);
    size_t words = (size_t)option("PLACES_KB", 64) * 1024 / sizeof(uint64_t);
    MPI_Init(&argc, &argv);
    int rank, ranks, state;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    hear_all(rank);
    uint64_t *field = malloc(words * sizeof *field), result = 0, version, step = 0;
    struct { char text[16]; uint64_t version; } mark = {"PLACES-MARK-HERE", 0}; /* the test finds versions by it */
    for (size_t i = 0; i < words; i++)
        field[i] = mix(((uint64_t)rank << 40) + i);
    int trace = getenv("PLACES_TRACE") ? open(getenv("PLACES_TRACE"), O_WRONLY | O_CREAT, 0644) : -1;

    check(ft_init(&state), "ft_init");
    check(ft_protect(1, &step, sizeof step), "ft_protect");
    check(ft_protect(2, &result, sizeof result), "ft_protect");
    check(ft_protect(3, &mark, sizeof mark), "ft_protect");
    check(ft_protect(7, field, words * sizeof *field), "ft_protect");
    int code = ft_restore(&version);
    if (code == 0 && (version != step || version != mark.version))
        code = -1000; /* the bytes are not those of the version */
    if (code == 0 && rank == 0)
        printf("restored %llu\n", (unsigned long long)version);
    else if (code == FT_ERR_NONE && rank == 0)
        printf("fresh %d\n", state);
    else if (code != 0 && code != FT_ERR_NONE)
        check(code, "ft_restore");
    fflush(stdout);

    while (step < (uint64_t)steps && !stopped(rank)) {
        if (step + 1 == (uint64_t)place)
            stand(rank, ranks);
        uint64_t from_left, mine = 0, all;
        MPI_Sendrecv(&field[words - 1], 1, MPI_UINT64_T, (rank + 1) % ranks, 1, &from_left, 1, MPI_UINT64_T,
                     (rank + ranks - 1) % ranks, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t i = 0; i < words; i++) {
            field[i] = mix(field[i] + (i ? field[i - 1] : from_left) + step);
            mine += field[i];
        }
        MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        result = mix(result + all);
        step++;
        if (rank == 0) {
            printf("step %d hash %016llx\n", (int)step, (unsigned long long)result);
            fflush(stdout);
        }
        gate_sleep_ms(option("PLACES_SLEEP", 0));
        if (step % every == 0) {
            mark.version = step;
            check(ft_checkpoint(step), "ft_checkpoint");
            /* In which world, so that the test can tell what a rank of another one left there. */
            uint64_t noted = step | (uint64_t)option("FT_WORLD", 0) << 48;
            if (trace >= 0 && pwrite(trace, &noted, sizeof noted, 8 * rank) != sizeof noted)
                return 72;
        }
    }
    if (rank == 0)
        printf("result %016llx\n", (unsigned long long)result);
    fflush(stdout);
    check(ft_finalize(), "ft_finalize");
    MPI_Finalize();
    return note_end();
}
