/* events: the highest rank raises PMIx events, one of each range, and all count those that come to them: what is for the node must not
 * leave it, what is for all comes to all, once, with what goes with it. Its process stands in each: one of another world is told apart.
 * The highest rank is at the place app.compute when it has raised them. */
#include "gate.h"
#include "libpmix.h"
#include <mpi.h>
#include <stdatomic.h>

enum { KINDS = 5, PATIENCE_MS = 20000, LATE_MS = 300 };
enum { NODE, JOB, SESSION, ALL, ONE };
static const pmix_data_range_t RANGES[KINDS] = {PMIX_RANGE_LOCAL, PMIX_RANGE_NAMESPACE, PMIX_RANGE_SESSION, PMIX_RANGE_GLOBAL, PMIX_RANGE_CUSTOM};

static atomic_int came[KINDS], strange, raiser;

static pmix_status_t code_of(int kind) {
    return PMIX_EXTERNAL_ERR_BASE - 1 - kind;
}

static void take(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t count, pmix_info_t *results,
                 size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data) {
    int known = 0;
    for (size_t at = 0; at < count; at++)
        if (strcmp(info[at].key, "ftd.raiser") == 0 && info[at].value.type == PMIX_INT32)
            known = info[at].value.data.int32 == atomic_load(&raiser);
    for (int kind = 0; kind < KINDS; kind++)
        if (status == code_of(kind))
            atomic_fetch_add(known ? &came[kind] : &strange, 1);
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void raise_all(const pmix_proc_t *me, int last) {
    pmix_status_t (*notify)(pmix_status_t, const pmix_proc_t *, pmix_data_range_t, const pmix_info_t *, size_t, pmix_op_cbfunc_t, void *) =
        pmix("PMIx_Notify_event");
    pmix_status_t (*load)(pmix_info_t *, const char *, const void *, pmix_data_type_t) = pmix("PMIx_Info_load");
    for (int kind = 0; kind < KINDS; kind++) {
        pmix_info_t info[2];
        pmix_proc_t first = *me;
        int32_t own = getpid();
        memset(info, 0, sizeof info);
        first.rank = 0;
        load(&info[0], "ftd.raiser", &own, PMIX_INT32);
        load(&info[1], PMIX_EVENT_CUSTOM_RANGE, &first, PMIX_PROC);
        pmix_status_t said = notify(code_of(kind), me, RANGES[kind], info, kind == ONE ? 2 : 1, NULL, NULL);
        if (said != PMIX_SUCCESS && said != PMIX_OPERATION_SUCCEEDED)
            printf("rank %d: the event of kind %d is not raised: %d\n", last, kind, said);
    }
}

int main(int argc, char **argv) {
    int rank, ranks, pid = getpid(), wrong = 0, any;
    char own[256] = "", theirs[256];
    pmix_proc_t me;
    pmix_status_t codes[KINDS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = pmix("PMIx_Init");
    pmix_status_t (*finalize)(const pmix_info_t *, size_t) = pmix("PMIx_Finalize");
    pmix_status_t (*attend)(pmix_status_t *, size_t, pmix_info_t *, size_t, pmix_notification_fn_t, pmix_hdlr_reg_cbfunc_t, void *) =
        pmix("PMIx_Register_event_handler");
    init(&me, NULL, 0);
    for (int kind = 0; kind < KINDS; kind++)
        codes[kind] = code_of(kind);
    MPI_Bcast(&pid, 1, MPI_INT, ranks - 1, MPI_COMM_WORLD);
    atomic_store(&raiser, pid);
    if (attend(codes, KINDS, NULL, 0, take, NULL, NULL) < 0)
        printf("rank %d: no handler\n", rank);
    gethostname(own, sizeof own - 1);
    memcpy(theirs, own, sizeof own);
    MPI_Bcast(theirs, sizeof theirs, MPI_CHAR, ranks - 1, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1)
        raise_all(&me, rank);
    gate_reach("app.compute", rank);
    int near = strcmp(own, theirs) == 0;
    int due[KINDS] = {near, 1, 1, 1, rank == 0};
    for (int ms = 0; rank != ranks - 1 && ms < PATIENCE_MS; ms++) {
        int all = 1;
        for (int kind = 0; kind < KINDS; kind++)
            all &= atomic_load(&came[kind]) >= due[kind];
        if (all)
            break;
        gate_sleep_ms(1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    gate_sleep_ms(LATE_MS);
    for (int kind = 0; kind < KINDS; kind++)
        if (rank != ranks - 1 && atomic_load(&came[kind]) != due[kind]) {
            printf("rank %d: %d events of kind %d came, not %d\n", rank, atomic_load(&came[kind]), kind, due[kind]);
            wrong = 1;
        }
    if (atomic_load(&strange)) {
        printf("rank %d: an event of another world\n", rank);
        wrong = 1;
    }
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("result %s\n", any ? "wrong" : "right");
    fflush(stdout);
    finalize(NULL, 0);
    MPI_Finalize();
    return 0;
}
