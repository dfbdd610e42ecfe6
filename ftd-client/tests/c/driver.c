/* Calls ft.h as its arguments say, one after the other, and prints what each call returned:
 * init protect:ID:BYTES:BYTE null:ID out:ID checkpoint:VERSION restore bytes:ID due finalize fork twice kill:SIGNAL
 * on:N nofunction inside */
#include <ft.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char *memory[16];
static size_t sizes[16];

static void called(void *number) { printf("called %ld\n", (long)number); }

static void inside(void *unused) {
    (void)unused;
    printf("inside %d\n", ft_finalize());
}

static int run(const char *op) {
    char name[32];
    unsigned long a = 0, b = 0, c = 0;
    sscanf(op, "%31[a-z]:%lu:%lu:%lu", name, &a, &b, &c);
    if (!strcmp(name, "init")) {
        int state = -1;
        int code = ft_init(&state);
        printf("init %d state %d\n", code, state);
    } else if (!strcmp(name, "protect")) {
        unsigned char *old = memory[a];
        memory[a] = malloc(b);
        memset(memory[a], (int)c, b);
        sizes[a] = b;
        printf("protect %d\n", ft_protect((int)a, memory[a], b));
        free(old);
    } else if (!strcmp(name, "null")) {
        printf("null %d\n", ft_protect((int)a, NULL, 8));
    } else if (!strcmp(name, "out")) {
        printf("out %d\n", ft_protect((int)a, NULL, 0));
    } else if (!strcmp(name, "checkpoint")) {
        printf("checkpoint %d\n", ft_checkpoint(a));
    } else if (!strcmp(name, "on")) {
        printf("on %d\n", ft_on_checkpoint(called, (void *)a));
    } else if (!strcmp(name, "nofunction")) {
        printf("nofunction %d\n", ft_on_checkpoint(NULL, NULL));
    } else if (!strcmp(name, "inside")) {
        printf("inside %d\n", ft_on_checkpoint(inside, NULL));
    } else if (!strcmp(name, "restore")) {
        uint64_t version = 0;
        int code = ft_restore(&version);
        printf("restore %d version %lu\n", code, (unsigned long)version);
    } else if (!strcmp(name, "bytes")) {
        size_t i = 0;
        while (i < sizes[a] && memory[a][i] == memory[a][0])
            i++;
        printf("bytes %d %s\n", memory[a][0], i == sizes[a] ? "all" : "mixed");
    } else if (!strcmp(name, "due")) {
        int yes = -1;
        int code = ft_checkpoint_due(&yes);
        printf("due %d %d\n", code, yes);
    } else if (!strcmp(name, "finalize")) {
        printf("finalize %d\n", ft_finalize());
    } else if (!strcmp(name, "fork")) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            printf("child %d\n", ft_checkpoint(a));
            fflush(stdout);
            exit(0);
        }
        waitpid(child, NULL, 0);
    } else if (!strcmp(name, "kill")) {
        fflush(stdout);
        raise((int)a);
    } else {
        return 1;
    }
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (run(argv[i]))
            return 99;
    return 0;
}
