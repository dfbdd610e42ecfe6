/* A library that starts a program when it is initialized. */
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void early(void) {
    char *words[] = {"echo", "started early", NULL};
    pid_t child = fork();
    if (child == 0) {
        execv("/bin/echo", words);
        _exit(1);
    }
    waitpid(child, NULL, 0);
}
