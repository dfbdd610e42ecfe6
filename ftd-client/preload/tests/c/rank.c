/* A program of one rank that ends in the way its argument says. */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "finalize";
    MPI_Init(&argc, &argv);
    printf("inside %s\n", getenv("FT_TEST_WORD") ? getenv("FT_TEST_WORD") : "-");
    fflush(stdout);
    if (!strcmp(how, "return"))
        return 3;
    if (!strcmp(how, "exit"))
        exit(4);
    if (!strcmp(how, "_exit"))
        _exit(5);
    if (!strcmp(how, "_Exit"))
        _Exit(6);
    if (!strcmp(how, "quick_exit"))
        quick_exit(7);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "fork")) { /* a child's end is not the rank's */
        pid_t child = fork();
        if (child == 0)
            exit(9);
        waitpid(child, NULL, 0);
        child = vfork();
        if (child == 0)
            _exit(9);
        waitpid(child, NULL, 0);
        raise(SIGKILL);
    }
    if (!strcmp(how, "mpi_abort"))
        MPI_Abort(MPI_COMM_WORLD, 77);
    if (!strcmp(how, "closed")) { /* closes descriptors that are not its own, and opens a file there */
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        FILE *file = tmpfile();
        for (int i = 0; i < 40; i++)
            dup(fileno(file));
        MPI_Abort(MPI_COMM_WORLD, 78);
    }
    MPI_Finalize();
    return 0;
}
