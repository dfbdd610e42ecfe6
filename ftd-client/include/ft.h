/*
 * ftd's client library: checkpoints into memory that outlives the process.
 *
 *     int state;
 *     ft_init(&state);
 *     ft_protect(1, &step, sizeof step);
 *     ft_protect(2, field, bytes);
 *     if (state == FT_STATE_RESTARTED) { uint64_t version; ft_restore(&version); }
 *     for (; step < steps; ) { ...; step++; ft_checkpoint(step); }
 *     ft_finalize();
 *
 * Every function returns FT_OK (0) or one of the codes below. Each error also prints one sentence on stderr, except
 * FT_ERR_NONE. The functions may be called from any thread, one after the other. No function calls MPI, and none is a
 * barrier: take a checkpoint at the same place of the loop in every rank, where no message is under way, and after a
 * failure all ranks get the same version back.
 *
 * The checkpoints end with the job, however it ends: another one begins from the start.
 *
 * Without ftd the same program runs: ft_init says FT_STATE_NEW, checkpoints succeed and protect nothing, ft_restore
 * returns FT_ERR_NONE. Rank 0 says so once on stderr.
 */
#ifndef FT_H
#define FT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus) && !defined(FT_NO_IOSTREAM)
#include <iostream>
#include <stdio.h>
#include <unistd.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FT_OK = 0,
    FT_ERR_NONE = 1,      /* there is nothing to restore: begin from the start */
    FT_ERR_ORDER = 2,     /* the call comes too early or too late */
    FT_ERR_ARGUMENT = 3,  /* a null pointer, an impossible size */
    FT_ERR_SIZE = 4,      /* a protected region does not match the version: nothing was restored */
    FT_ERR_VERSION = 5,   /* the version is not greater than the one before */
    FT_ERR_MEMORY = 6,    /* the checkpoint does not fit in memory: older versions are untouched */
    FT_ERR_TIMEOUT = 7,   /* no place became free in time: older versions are untouched */
    FT_ERR_AGENT = 8,     /* the agent of this job does not answer */
    FT_ERR_MIXED = 9,     /* library and agent are from different releases of ftd */
    FT_ERR_REFUSED = 10,  /* the agent refused this process */
    FT_ERR_ARENA = 11,    /* the checkpoint memory cannot be used or is damaged */
    FT_ERR_CHILD = 12,    /* called in a child of the process that called ft_init */
    FT_ERR_INTERNAL = 13  /* a bug in this library */
};

enum {
    FT_STATE_NEW = 0,       /* first process of this rank */
    FT_STATE_RESTARTED = 1, /* replaces a process that ended in a failure: call ft_restore */
    FT_STATE_SURVIVOR = 2,  /* lived through a failure and kept its memory (mode spare) */
    FT_STATE_SPARE = 3      /* waited as a spare and has just become a rank (mode spare) */
};

/* Joins the job, before or after MPI_Init. A second call changes nothing and returns the same state; a call after
 * ft_finalize is FT_ERR_ORDER. */
int ft_init(int *state);

/* Protects a region of memory from the next checkpoint on. The same id again gives the region a new address and size;
 * (id, NULL, 0) takes it out. A null pointer with bytes > 0 is FT_ERR_ARGUMENT. */
int ft_protect(int id, void *pointer, size_t bytes);

/* Copies all protected regions and returns; the rest goes on behind. Versions increase. Waits only while all three
 * places hold versions that must be kept (at most FT_CHECKPOINT_TIMEOUT seconds, 60). A restarted process calls
 * ft_restore first. When another rank has called ft_finalize, or has ended, versions after its last one are FT_ERR_ORDER at
 * once: no version counts without every rank. Whatever the error, older versions stay whole.
 * What the program printed before the call is out when the version counts: stdout is emptied, in C++ std::cout,
 * std::clog and their wide kin (see below), in Fortran output_unit, and all that ft_on_checkpoint was told of. */
int ft_checkpoint(uint64_t version);

/* Has `call` called with `argument` at the beginning of each ft_checkpoint, in the thread that calls that: it empties the
 * program's own output buffers, so that a failure loses no output that a restored version does not print again. Any number
 * may be registered, from the program's start on; the last one is called first, and the same pair counts once. stdout is
 * emptied after all of them. `call` must return (no exception, no longjmp) and must call no function of this library
 * (FT_ERR_ORDER). A null pointer is FT_ERR_ARGUMENT; after ft_finalize, FT_ERR_ORDER. */
int ft_on_checkpoint(void (*call)(void *), void *argument);

/* Copies the newest version that is complete for all ranks back, all protected regions or none, and says which it is.
 * FT_ERR_NONE when there is none. Every protected region must have the size that it had in that version; regions of the
 * version that are not protected are left out. So a program whose sizes change protects and restores its sizes first, then
 * allocates, protects the rest and calls ft_restore again. Not after ft_checkpoint. */
int ft_restore(uint64_t *version);

/* Whether a checkpoint is worth its cost now (Young/Daly, from the measured cost and failure rate). 0 without ftd. */
int ft_checkpoint_due(int *yes);

/* Ends the use of the library, when this rank has taken its last checkpoint: no version counts without every rank, so that later
 * ones of the other ranks are refused from its return on. The checkpoints stay: if another rank fails later, this one is restored from them too. */
int ft_finalize(void);

/* One sentence for a code; never NULL. */
const char *ft_strerror(int code);

#ifdef __cplusplus
}
#endif

/* C++: whoever includes this header has std::cout, std::wcout, std::clog and std::wclog emptied in ft_checkpoint, also after
 * std::ios::sync_with_stdio(false). Then, as everywhere, no other thread may use them at that moment; a program that cannot
 * promise that defines FT_NO_IOSTREAM before it includes this header, and registers a function that takes its own lock. */
#if defined(__cplusplus) && !defined(FT_NO_IOSTREAM)
namespace ft_detail {
/* Streams that are tied to stdio wait for its lock, which another thread may hold for ever. */
inline bool lock(FILE *file) {
    for (int waited = 0; ftrylockfile(file) != 0; waited++) {
        if (waited == 1000)
            return false;
        usleep(1000);
    }
    return true;
}
inline void empty_streams(void *) {
    if (lock(stdout)) {
        std::cout.flush();
        std::wcout.flush();
        funlockfile(stdout);
    }
    /* libstdc++ gives them a buffer after sync_with_stdio(false). */
    if (lock(stderr)) {
        std::clog.flush();
        std::wclog.flush();
        funlockfile(stderr);
    }
}
struct Registration {
    Registration() { ft_on_checkpoint(empty_streams, 0); }
};
static const Registration registration;
}
#endif

#endif
