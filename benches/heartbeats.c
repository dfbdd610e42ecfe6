/* The least that a process takes which tells another one ten times a second that it is there: the measure for an agent.
 *
 *     heartbeats OWN-ADDRESS OTHER-ADDRESS first|follows
 *
 * The first one says so by its timer, the other one as soon as it hears that, in one datagram with its answer: one wake in a period for the
 * one that follows, two for the first one, as of two agents. Nothing is checked, and nothing is done but that. Ends by a signal. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { PORT = 9730, PERIOD_MS = 100, BYTES = 96 };

static struct sockaddr_in at(const char *address)
{
    struct sockaddr_in found = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, address, &found.sin_addr);
    return found;
}

int main(int count, char **words)
{
    if (count != 4)
        return fprintf(stderr, "heartbeats OWN-ADDRESS OTHER-ADDRESS first|follows\n"), 2;
    int first = strcmp(words[3], "first") == 0;
    struct sockaddr_in own = at(words[1]), other = at(words[2]);
    int udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (bind(udp, (struct sockaddr *)&own, sizeof own) != 0)
        return perror("heartbeats: bind"), 1;
    /* The one that follows has its timer for when the first one is silent. */
    struct timespec period = {.tv_nsec = PERIOD_MS * 1000000L * (first ? 1 : 2) % 1000000000L};
    struct itimerspec next = {.it_value = period};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), all = epoll_create1(0);
    struct epoll_event timed = {.events = EPOLLIN, .data.fd = timer}, heard = {.events = EPOLLIN, .data.fd = udp};
    epoll_ctl(all, EPOLL_CTL_ADD, timer, &timed);
    epoll_ctl(all, EPOLL_CTL_ADD, udp, &heard);
    timerfd_settime(timer, 0, &next, NULL);
    char words_out[BYTES] = {0}, words_in[2048];
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(all, &event, 1, -1) < 0 && errno != EINTR)
            return perror("heartbeats: epoll_wait"), 1;
        int says = !first;
        if (event.data.fd == timer) {
            uint64_t rung;
            says = read(timer, &rung, sizeof rung) == sizeof rung;
        } else {
            while (recv(udp, words_in, sizeof words_in, 0) > 0)
                continue;
        }
        if (says)
            sendto(udp, words_out, sizeof words_out, 0, (struct sockaddr *)&other, sizeof other);
        if (says)
            timerfd_settime(timer, 0, &next, NULL);
    }
}
