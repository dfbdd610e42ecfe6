/* Named places at which a test can hold a process, and which prove that the process was there.
 *
 * FT_GATE = comma list of `name[:rank[:nth[:mark]]]` (rank `*` = any rank), FT_GATE_DIR = a directory. On its nth hit of an
 * armed gate the process creates $FT_GATE_DIR/<name>.<rank>, with its pid in it, and unless `mark` was given waits until
 * <that file>.go exists. A gate stops one process once: when the file is there already, it passes.
 * ftd's own programs follow the same convention. */
#ifndef GATE_H
#define GATE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GATE_PATIENCE_MS = 60000 };

static void gate_sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void gate_path(char *path, size_t size, const char *name, int rank, const char *suffix) {
    const char *directory = getenv("FT_GATE_DIR");
    snprintf(path, size, "%s/%s.%d%s", directory ? directory : "/nonexistent", name, rank, suffix);
}

static int gate_exists(const char *name, int rank, const char *suffix) {
    char path[512];
    gate_path(path, sizeof path, name, rank, suffix);
    return access(path, F_OK) == 0;
}

/* Whether FT_GATE arms `name` for `rank`; says which hit counts and whether it only marks. */
static int gate_armed(const char *name, int rank, int *nth, int *mark) {
    const char *list = getenv("FT_GATE");
    char text[1024];
    snprintf(text, sizeof text, "%s", list ? list : "");
    char *outer, *inner;
    for (char *item = strtok_r(text, ",", &outer); item; item = strtok_r(NULL, ",", &outer)) {
        char *part = strtok_r(item, ":", &inner);
        if (!part || strcmp(part, name) != 0)
            continue;
        char *which = strtok_r(NULL, ":", &inner), *hit = strtok_r(NULL, ":", &inner), *kind = strtok_r(NULL, ":", &inner);
        if (which && strcmp(which, "*") != 0 && atoi(which) != rank)
            continue;
        *nth = hit ? atoi(hit) : 1;
        *mark = kind && strcmp(kind, "mark") == 0;
        return 1;
    }
    return 0;
}

/* Leaves the proof. False when this gate has already stopped a process. */
static int gate_mark(const char *name, int rank) {
    char path[512], pid[32];
    gate_path(path, sizeof path, name, rank, "");
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (file < 0)
        return 0;
    int length = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (write(file, pid, length) != length)
        abort();
    close(file);
    return 1;
}

/* Waits for the test's go. */
static void gate_wait(const char *name, int rank) {
    char path[512];
    for (long waited = 0; waited < GATE_PATIENCE_MS; waited++) {
        if (gate_exists(name, rank, ".go"))
            return;
        gate_sleep_ms(1);
    }
    gate_path(path, sizeof path, name, rank, ".timeout");
    close(open(path, O_WRONLY | O_CREAT, 0644));
}

/* The whole convention, for a place that is hit once per process. */
static inline void gate_reach(const char *name, int rank) {
    int nth, mark;
    if (gate_armed(name, rank, &nth, &mark) && gate_mark(name, rank) && !mark)
        gate_wait(name, rank);
}

#endif
