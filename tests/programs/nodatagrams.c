/* Preloaded: a packet filter that lets TCP through, and no datagram (of IP), from the node on which /tmp/filter is; where an address stands there, none to it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int kept_back(const struct sockaddr *to)
{
    char address[INET_ADDRSTRLEN] = "";
    int fd = open("/tmp/filter", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, address, sizeof address - 1);
    close(fd);
    return length <= 0 || inet_addr(address) == ((const struct sockaddr_in *)to)->sin_addr.s_addr;
}

ssize_t sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to, socklen_t size)
{
    if (to != NULL && to->sa_family == AF_INET && kept_back(to))
        return length;
    return syscall(SYS_sendto, fd, bytes, length, flags, to, size);
}
