/* generates: prints what a seed says: blank lines, equal ones, ones with a carriage return, with the time, with a NUL; a restarted
 * process prints some more and leaves some out. Of each line it notes first, in a file of its rank's, that it prints it.
 *
 * generates SEED STEPS EVERY DIRECTORY: a checkpoint whose version is the step in every EVERYth one; with 0 the library is not called.
 * The file is DIRECTORY/RANK, a record a line: `W world`, `L` and the line in hexadecimal, `B version` before a checkpoint.
 * Places: app.worldN in every step, between two of its lines; N is the world's number. */
#include "gate.h"
#include <ft.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>

static int notes;
static uint64_t seed;

static uint64_t dice(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + a * 0xbf58476d1ce4e5b9u + b * 0x94d049bb133111ebu + c * 0xd6e8feb86659fd93u;
    for (int i = 0; i < 3; i++)
        x = (x ^ x >> 31) * 0xd6e8feb86659fd93u;
    return x >> 8;
}

static void note(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (write(notes, text, length) != length)
        abort();
}

static void print_line(const char *line, int length) {
    char hex[1024] = "";
    for (int i = 0; i < length; i++)
        sprintf(hex + 2 * i, "%02x", (unsigned char)line[i]);
    note("L %s\n", hex);
    fwrite(line, 1, length, stdout);
    putchar('\n');
}

static void print_one(int rank, int world, int step, int number) {
    char line[200];
    struct timespec now;
    int length = 0;
    switch (dice(rank, step, number) % 8) {
    case 0:
        break;
    case 1:
        length = sprintf(line, "same");
        break;
    case 2:
        length = sprintf(line, "10 %%\r%d %%", step);
        break;
    case 3:
        clock_gettime(CLOCK_REALTIME, &now);
        length = sprintf(line, "at %ld.%09ld", (long)now.tv_sec, now.tv_nsec);
        break;
    case 4:
        length = sprintf(line, "world %d", world);
        break;
    default:
        length = sprintf(line, "rank %d step %d line %d", rank, step, number);
    }
    if (world > 1 && dice(rank, step, 100 + number + 10 * world) % 6 == 0)
        return;
    print_line(line, length);
    if (world > 1 && dice(rank, step, 1000 + number + 10 * world) % 6 == 0)
        print_line(line, sprintf(line, "more of world %d, step %d", world, step));
}

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "generates: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 70);
    }
}

int main(int argc, char **argv) {
    int steps = atoi(argv[2]), every = atoi(argv[3]), world = atoi(getenv("FT_WORLD")), rank, step = 0, state, sum;
    char path[512], gate[32];
    seed = strtoull(argv[1], NULL, 10);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s/%d", argv[4], rank);
    snprintf(gate, sizeof gate, "app.world%d", world);
    notes = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    note("W %d\n", world);
    if (every) {
        uint64_t version;
        check(ft_init(&state), "ft_init");
        check(ft_protect(0, &step, sizeof step), "ft_protect");
        if (state == FT_STATE_RESTARTED && ft_restore(&version) > FT_ERR_NONE)
            MPI_Abort(MPI_COMM_WORLD, 71);
    }
    while (step < steps) {
        if (step % 3 == 0)
            MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        step++;
        int lines = dice(rank, step, 77) % 5, before = lines / 2;
        // Of one rank in eight what it prints is no text from there on.
        if (rank % 8 == 7 && step == 5)
            print_line("a\0b", 3);
        for (int number = 0; number < before; number++)
            print_one(rank, world, step, number);
        gate_reach(gate, rank);
        for (int number = before; number < lines; number++)
            print_one(rank, world, step, number);
        if (every && step % every == 0) {
            note("B %d\n", step);
            check(ft_checkpoint(step), "ft_checkpoint");
        }
    }
    MPI_Finalize();
    return 0;
}
