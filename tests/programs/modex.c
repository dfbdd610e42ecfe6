/* modex: what ranks give each other through PMIx, however much that is. Arguments: how, and how many bytes each rank gives.
 *   fence    in a fence that collects what all have put
 *   direct   what is asked for when it is wanted, of the rank that has put it
 *   publish  published by the highest rank, and looked up by rank 0
 *   all      published by each rank under a name of its own, and those that could be looked up by rank 0
 *   event    goes with an event that the highest rank raises, and that is for all
 * Rank 0 prints `result right`, `result refused S`, with the status S that a rank had instead, or `result wrong`. */
#include "gate.h"
#include "libpmix.h"
#include <mpi.h>
#include <stdatomic.h>
#include <string.h>

enum { PATIENCE_MS = 60000 };

/* Whose event is waited for, and how much goes with it; whether it has come, and whether it was what was given. */
static int raiser;
static size_t due;
static atomic_int came, as_given;

/* Of rank `of`, at a place. */
static char byte(int of, size_t at) {
    return (char)(at * 2654435761u >> 11 ^ of * 41 ^ at);
}

static int is_what_was_given(const pmix_value_t *value, int of, size_t bytes) {
    if (value->type != PMIX_BYTE_OBJECT || value->data.bo.size != bytes)
        return 0;
    for (size_t at = 0; at < bytes; at++)
        if (value->data.bo.bytes[at] != byte(of, at))
            return 0;
    return 1;
}

static pmix_status_t put(const pmix_value_t *value, int collect, const pmix_proc_t *me) {
    pmix_status_t (*puts)(pmix_scope_t, const char *, pmix_value_t *) = pmix("PMIx_Put");
    pmix_status_t (*commit)(void) = pmix("PMIx_Commit");
    pmix_status_t (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t) = pmix("PMIx_Fence");
    pmix_status_t (*load)(pmix_info_t *, const char *, const void *, pmix_data_type_t) = pmix("PMIx_Info_load");
    pmix_info_t info;
    bool yes = collect;
    pmix_proc_t all = *me;
    memset(&info, 0, sizeof info);
    all.rank = PMIX_RANK_WILDCARD;
    load(&info, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    pmix_status_t status = puts(PMIX_GLOBAL, "ftd.given", (pmix_value_t *)value);
    if (status == PMIX_SUCCESS)
        status = commit();
    return status == PMIX_SUCCESS ? fence(&all, 1, &info, 1) : status;
}

static pmix_status_t publish(const pmix_value_t *value, const char *key) {
    pmix_status_t (*publishes)(const pmix_info_t *, size_t) = pmix("PMIx_Publish");
    pmix_info_t info = {.value = *value};
    strcpy(info.key, key);
    return publishes(&info, 1);
}

/* What rank `of` has published; a status, or 1 where that is something else. */
static int look_up(const char *key, int of, size_t bytes) {
    pmix_status_t (*looks_up)(pmix_pdata_t *, size_t, const pmix_info_t *, size_t) = pmix("PMIx_Lookup");
    pmix_pdata_t data;
    memset(&data, 0, sizeof data);
    strcpy(data.key, key);
    pmix_status_t status = looks_up(&data, 1, NULL, 0);
    return status ? status : !is_what_was_given(&data.value, of, bytes);
}

static int publish_all(const pmix_value_t *own, int rank, int ranks, size_t bytes) {
    char key[64];
    int refused[ranks], bad;
    snprintf(key, sizeof key, "ftd.given.%d", rank);
    bad = publish(own, key);
    MPI_Allgather(&bad, 1, MPI_INT, refused, 1, MPI_INT, MPI_COMM_WORLD);
    for (int of = 0; rank == 0 && of < ranks; of++) {
        snprintf(key, sizeof key, "ftd.given.%d", of);
        int found = look_up(key, of, bytes);
        /* What was refused is not there. */
        if (refused[of] ? found != PMIX_ERR_NOT_FOUND : found != PMIX_SUCCESS)
            bad = 1;
    }
    return bad;
}

static void take(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t count, pmix_info_t *results,
                 size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data) {
    for (size_t at = 0; at < count; at++)
        if (strcmp(info[at].key, "ftd.given") == 0)
            atomic_store(&as_given, is_what_was_given(&info[at].value, raiser, due));
    atomic_fetch_add(&came, 1);
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static int raise_event(const pmix_value_t *own, const pmix_proc_t *me, int rank, int ranks) {
    pmix_status_t (*attend)(pmix_status_t *, size_t, pmix_info_t *, size_t, pmix_notification_fn_t, pmix_hdlr_reg_cbfunc_t, void *) =
        pmix("PMIx_Register_event_handler");
    pmix_status_t (*notify)(pmix_status_t, const pmix_proc_t *, pmix_data_range_t, const pmix_info_t *, size_t, pmix_op_cbfunc_t, void *) =
        pmix("PMIx_Notify_event");
    pmix_status_t code = PMIX_EXTERNAL_ERR_BASE - 1;
    raiser = ranks - 1;
    due = own->data.bo.size;
    if (rank != raiser && attend(&code, 1, NULL, 0, take, NULL, NULL) < 0)
        return 1;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == raiser) {
        pmix_info_t info = {.key = "ftd.given", .value = *own};
        pmix_status_t status = notify(code, me, PMIX_RANGE_GLOBAL, &info, 1, NULL, NULL);
        return status == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : status;
    }
    for (int ms = 0; !atomic_load(&came) && ms < PATIENCE_MS; ms++)
        gate_sleep_ms(1);
    return !atomic_load(&as_given);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "fence";
    size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 64;
    int rank, ranks, bad = 0, worst;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = pmix("PMIx_Init");
    pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **) = pmix("PMIx_Get");
    pmix_status_t (*finalize)(const pmix_info_t *, size_t) = pmix("PMIx_Finalize");
    pmix_proc_t me, other;
    pmix_value_t own = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = malloc(bytes), .size = bytes}}, *found = NULL;
    init(&me, NULL, 0);
    for (size_t at = 0; at < bytes; at++)
        own.data.bo.bytes[at] = byte(rank, at);
    other = me;
    other.rank = (rank + 1) % ranks;
    if (strcmp(how, "all") == 0) {
        bad = publish_all(&own, rank, ranks, bytes);
    } else if (strcmp(how, "event") == 0) {
        bad = raise_event(&own, &me, rank, ranks);
    } else if (strcmp(how, "publish") == 0) {
        if (rank == ranks - 1)
            bad = publish(&own, "ftd.given");
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            bad = look_up("ftd.given", ranks - 1, bytes);
    } else {
        bad = put(&own, strcmp(how, "fence") == 0, &me);
        if (!bad)
            bad = get(&other, "ftd.given", NULL, 0, &found);
        if (!bad && !is_what_was_given(found, other.rank, bytes))
            bad = 1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int wrong = bad > 0, any;
    MPI_Allreduce(&bad, &worst, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    /* Statuses of PMIx are negative. */
    if (rank == 0 && worst < 0)
        printf("result refused %d\n", worst);
    else if (rank == 0)
        printf("result %s\n", any ? "wrong" : "right");
    fflush(stdout);
    finalize(NULL, 0);
    MPI_Finalize();
    return 0;
}
