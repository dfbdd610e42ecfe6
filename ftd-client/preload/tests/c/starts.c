/* Starts /usr/bin/env, or what follows, in the named way, with an empty environment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char *words[] = {"env", NULL}, *none[] = {NULL}, *path = "/usr/bin/env", *how = argc > 1 ? argv[1] : "";
    pid_t child = -1;
    int status = 1;
    if (strcmp(how, "execv") == 0 || strcmp(how, "execvp") == 0)
        clearenv();
    if (strcmp(how, "execv") == 0)
        execv(path, words);
    if (strcmp(how, "execve") == 0)
        execve(path, words, none);
    if (strcmp(how, "execvp") == 0)
        execvp(path, words);
    if (strcmp(how, "execvpe") == 0)
        execvpe("env", words, none);
    if (strcmp(how, "fexecve") == 0)
        fexecve(open(path, O_RDONLY | O_CLOEXEC), words, none);
    if (strcmp(how, "execveat") == 0)
        execveat(AT_FDCWD, path, words, none, 0);
    if (strcmp(how, "posix_spawn") == 0 && posix_spawn(&child, path, NULL, NULL, words, none) == 0)
        waitpid(child, &status, 0);
    if (strcmp(how, "posix_spawnp") == 0 && posix_spawnp(&child, "env", NULL, NULL, words, none) == 0)
        waitpid(child, &status, 0);
    if (strcmp(how, "vfork") == 0) {
        if ((child = vfork()) == 0) {
            execve(path, words, none);
            _exit(1);
        }
        waitpid(child, &status, 0);
    }
    return status;
}
