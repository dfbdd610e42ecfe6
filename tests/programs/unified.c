/* For slurmd, by LD_PRELOAD: of /proc/self/cgroup it reads the line of the one hierarchy of version 2, as on a machine that has no others.
 * Slurm refuses to start where there are both. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int opens(const char *, int, ...);

static int hidden(opens *next)
{
    static char text[1 << 14], *line;
    int from = next("/proc/self/cgroup", O_RDONLY | O_CLOEXEC), to = memfd_create("cgroup", MFD_CLOEXEC);
    ssize_t got = read(from, text, sizeof text - 1);

    text[got > 0 ? got : 0] = 0;
    close(from);
    for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, "0::", 3))
            dprintf(to, "%s\n", line);
    lseek(to, 0, SEEK_SET);
    return to;
}

#define OPENS(name)                                                       \
    int name(const char *path, int flags, ...)                            \
    {                                                                     \
        opens *next = (opens *)dlsym(RTLD_NEXT, #name);                   \
        va_list more;                                                     \
        int mode;                                                         \
                                                                          \
        va_start(more, flags);                                            \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;     \
        va_end(more);                                                     \
        return strcmp(path, "/proc/self/cgroup") ? next(path, flags, mode) : hidden(next); \
    }

OPENS(open)
OPENS(open64)
