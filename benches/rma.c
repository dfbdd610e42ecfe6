/* What libfabric itself takes to write memory files into those of another process: the measure for ft-ship.
 *
 *     rma PROVIDER ADDRESS MEGABYTES ARENAS ROUNDS [NETWORK ADDRESS]
 *
 * NETWORK: the name space of the process that is written to, a file of /proc, and its address there.
 * Each arena goes in one call. One line for each round: milliseconds from the first call until all bytes are where they should be.
 * The process that is written to only lets libfabric work. Both sides' memory is warm. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    void *memory[MOST];
    struct fid_mr *mr[MOST];
};

struct told {
    char name[512];
    size_t length;
    uint64_t base[MOST], key[MOST];
};

static void must(long code, const char *what) {
    if (code < 0) {
        fprintf(stderr, "rma: %s: %s\n", what, fi_strerror((int)-code));
        exit(1);
    }
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void open_side(struct side *side, const char *provider, const char *address, size_t bytes, int arenas, int fill) {
    struct fi_info *hints = fi_allocinfo();
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_av_attr av = {0};
    int named = strcmp(provider, "shm") != 0;

    hints->caps = FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(provider);
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    must(fi_getinfo(FI_VERSION(1, 14), named ? address : NULL, NULL, named ? FI_SOURCE : 0, hints, &side->info), "fi_getinfo");
    must(fi_fabric(side->info->fabric_attr, &side->fabric, NULL), "fi_fabric");
    must(fi_domain(side->fabric, side->info, &side->domain, NULL), "fi_domain");
    must(fi_cq_open(side->domain, &cq, &side->cq, NULL), "fi_cq_open");
    must(fi_av_open(side->domain, &av, &side->av, NULL), "fi_av_open");
    must(fi_endpoint(side->domain, side->info, &side->ep, NULL), "fi_endpoint");
    must(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_ep_bind(side->ep, &side->av->fid, 0), "fi_ep_bind");
    must(fi_enable(side->ep), "fi_enable");
    for (int i = 0; i < arenas; i++) {
        int fd = memfd_create("rma", 0);
        must(ftruncate(fd, (off_t)bytes), "ftruncate");
        side->memory[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        memset(side->memory[i], fill, bytes);
        must(fi_mr_reg(side->domain, side->memory[i], bytes, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                       (uint64_t)i + 1, 0, &side->mr[i], NULL), "fi_mr_reg");
    }
    fi_freeinfo(hints);
}

static void be_written_to(struct side *side, int arenas, int to) {
    struct told told = {.length = sizeof told.name};
    struct fi_cq_entry entry;
    int virtual = side->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;

    must(fi_getname(&side->ep->fid, told.name, &told.length), "fi_getname");
    for (int i = 0; i < arenas; i++) {
        told.base[i] = virtual ? (uint64_t)side->memory[i] : 0;
        told.key[i] = fi_mr_key(side->mr[i]);
    }
    if (write(to, &told, sizeof told) != sizeof told)
        exit(1);
    for (;;)
        fi_cq_read(side->cq, &entry, 1);
}

static void write_all(struct side *side, fi_addr_t peer, struct told *told, size_t bytes, int arenas) {
    struct fi_context2 contexts[MOST];
    int begun = 0, done = 0;

    while (done < arenas) {
        struct fi_cq_entry entry;
        if (begun < arenas) {
            struct iovec iov = {side->memory[begun], bytes};
            struct fi_rma_iov remote = {told->base[begun], bytes, told->key[begun]};
            void *desc = fi_mr_desc(side->mr[begun]);
            struct fi_msg_rma message = {&iov, &desc, 1, peer, &remote, 1, &contexts[begun], 0};
            ssize_t code = fi_writemsg(side->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
            if (code == 0)
                begun++;
            else if (code != -FI_EAGAIN)
                must(code, "fi_writemsg");
        }
        ssize_t count = fi_cq_read(side->cq, &entry, 1);
        if (count > 0)
            done++;
        else if (count != -FI_EAGAIN)
            must(count, "fi_cq_read");
    }
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 8) {
        fprintf(stderr, "usage: rma PROVIDER ADDRESS MEGABYTES ARENAS ROUNDS [NETWORK ADDRESS]\n");
        return 2;
    }
    size_t bytes = strtoull(argv[3], NULL, 10) << 20;
    int arenas = atoi(argv[4]), rounds = atoi(argv[5]), ends[2];
    struct side side = {0};
    struct told told;
    fi_addr_t peer;

    if (arenas < 1 || arenas > MOST || pipe(ends) != 0)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (argc == 8 && setns(open(argv[6], O_RDONLY | O_CLOEXEC), CLONE_NEWNET) != 0) {
            perror(argv[6]);
            exit(1);
        }
        open_side(&side, argv[1], argv[argc == 8 ? 7 : 2], bytes, arenas, 0);
        be_written_to(&side, arenas, ends[1]);
    }
    close(ends[1]);
    open_side(&side, argv[1], argv[2], bytes, arenas, 7);
    if (read(ends[0], &told, sizeof told) != sizeof told)
        return 1;
    must(fi_av_insert(side.av, told.name, 1, &peer, 0, NULL), "fi_av_insert");
    write_all(&side, peer, &told, bytes, arenas);
    for (int round = 0; round < rounds; round++) {
        double began = now_ms();
        write_all(&side, peer, &told, bytes, arenas);
        printf("%.3f\n", now_ms() - began);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
