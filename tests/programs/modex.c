/* modex: what ranks give each other through PMIx, however much that is. Arguments: how, and how many bytes each rank gives.
 *   fence    in a fence that collects what all have put
 *   direct   what is asked for when it is wanted, of the rank that has put it
 *   publish  published by the highest rank, and looked up by rank 0
 * Rank 0 prints `result right`, `result refused S`, with the status S that it or the highest rank had instead, or `result wrong`. */
#include "libpmix.h"
#include <mpi.h>
#include <string.h>

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

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "fence";
    size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 64;
    int rank, ranks, bad = 0, worst, publishes = strcmp(how, "publish") == 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = pmix("PMIx_Init");
    pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **) = pmix("PMIx_Get");
    pmix_status_t (*publish)(const pmix_info_t *, size_t) = pmix("PMIx_Publish");
    pmix_status_t (*look_up)(pmix_pdata_t *, size_t, const pmix_info_t *, size_t) = pmix("PMIx_Lookup");
    pmix_status_t (*finalize)(const pmix_info_t *, size_t) = pmix("PMIx_Finalize");
    pmix_proc_t me, other;
    pmix_value_t own = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = malloc(bytes), .size = bytes}}, *found = NULL;
    init(&me, NULL, 0);
    for (size_t at = 0; at < bytes; at++)
        own.data.bo.bytes[at] = byte(rank, at);
    other = me;
    other.rank = (rank + 1) % ranks;
    if (!publishes) {
        bad = put(&own, strcmp(how, "fence") == 0, &me);
        if (!bad)
            bad = get(&other, "ftd.given", NULL, 0, &found);
        if (!bad && !is_what_was_given(found, other.rank, bytes))
            bad = 1;
    } else if (rank == ranks - 1) {
        pmix_info_t info = {.value = own};
        strcpy(info.key, "ftd.given");
        bad = publish(&info, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (publishes && rank == 0) {
        pmix_pdata_t data;
        memset(&data, 0, sizeof data);
        strcpy(data.key, "ftd.given");
        bad = look_up(&data, 1, NULL, 0);
        if (!bad && !is_what_was_given(&data.value, ranks - 1, bytes))
            bad = 1;
    }
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
