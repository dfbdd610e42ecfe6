/* Preloaded: a packet filter that lets TCP through, and no datagram (of IP), from the node on which /tmp/filter is. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to, socklen_t size)
{
    if (to != NULL && to->sa_family == AF_INET && access("/tmp/filter", F_OK) == 0)
        return length;
    return syscall(SYS_sendto, fd, bytes, length, flags, to, size);
}
