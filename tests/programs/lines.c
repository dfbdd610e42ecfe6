/* lines: prints `rank R step K` in every step, through stdio, and never flushes. Also compiled as C++.
 *
 * lines STEPS EVERY HOW: a checkpoint whose version is the step in every EVERYth one; with 0 the library is not called.
 * HOW (letters):
 *   p  with printf and puts in turns; nothing else is said about the buffer
 *   f  asks for a large buffer after MPI_Init: only ft_checkpoint empties it
 *   o  the same before MPI_Init: the program has a buffer of its own
 *   b  collects lines in a buffer of its own, which a registered function hands to stdio
 *   r  another thread reads standard input all the time
 *   h  another thread holds stdout for ever, and lines go past stdio
 *   w  starts a filter of its own after MPI_Init, $LINES_FILTER, and prints through that
 *   c  C++: std::cout.  u  C++: std::cout, not synchronised with stdio.  l  C++: std::clog, not synchronised
 * Places: app.first before the first step; app.step at the end of step LINES_AT (6), after the line. */
#include "gate.h"
#include <ft.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>

static char own[1 << 16], collected[1 << 16];

static void hand_over(void *text) {
    fputs((char *)text, stdout);
    *(char *)text = 0;
}

static void *read_on(void *unused) {
    while (getchar() != EOF) {
    }
    return unused;
}

static void *hold(void *held) {
    flockfile(stdout);
    *(volatile int *)held = 1;
    for (;;)
        pause();
}

static void print_line(char how, int rank, int step) {
    char line[64];
    snprintf(line, sizeof line, "rank %d step %d", rank, step);
    if (how == 'b')
        strcat(strcat(collected, line), "\n");
    else if (how == 'h')
        dprintf(1, "%s\n", line);
#ifdef __cplusplus
    else if (how == 'c' || how == 'u')
        std::cout << line << '\n';
    else if (how == 'l')
        std::clog << line << '\n';
#endif
    else if (step % 2)
        puts(line);
    else
        printf("%s\n", line);
}

static void print_through(const char *filter) {
    FILE *pipe = popen(filter, "w");
    if (!pipe || dup2(fileno(pipe), 1) != 1)
        abort();
    close(fileno(pipe));
}

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "lines: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 70);
    }
}

int main(int argc, char **argv) {
    int steps = atoi(argv[1]), every = atoi(argv[2]), rank, step = 0, state, sum;
    char how = argv[3][0];
    const char *at = getenv("LINES_AT");
    pthread_t thread;
    volatile int held = 0;
    if (how == 'o')
        setvbuf(stdout, own, _IOFBF, sizeof own);
#ifdef __cplusplus
    if (how == 'u' || how == 'l')
        std::ios::sync_with_stdio(false);
#endif
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (how == 'f' || how == 'r')
        setvbuf(stdout, own, _IOFBF, sizeof own);
    if (how == 'w')
        print_through(getenv("LINES_FILTER"));
    if (how == 'b')
        check(ft_on_checkpoint(hand_over, collected), "ft_on_checkpoint");
    if (how == 'r' && pthread_create(&thread, NULL, read_on, NULL) != 0)
        abort();
    if (how == 'h' && pthread_create(&thread, NULL, hold, (void *)&held) != 0)
        abort();
    while (how == 'h' && !held)
        gate_sleep_ms(1);
    if (every) {
        uint64_t version;
        check(ft_init(&state), "ft_init");
        check(ft_protect(0, &step, sizeof step), "ft_protect");
        if (state == FT_STATE_RESTARTED && ft_restore(&version) > FT_ERR_NONE)
            MPI_Abort(MPI_COMM_WORLD, 71);
    }
    gate_reach("app.first", rank);
    while (step < steps) {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        print_line(how, rank, ++step);
        if (step == (at ? atoi(at) : 6))
            gate_reach("app.step", rank);
        if (every && step % every == 0)
            check(ft_checkpoint(step), "ft_checkpoint");
    }
    if (how == 'b')
        hand_over(collected);
    MPI_Finalize();
    if (how == 'h')
        _exit(0);
    return 0;
}
