/* restarts: restart files in $FT_CHECKPOINT_DIR as a library writes them (-DHDF5, -DNETCDF, or MPI-IO). The first world
 * writes step 1, and of step 2 one half, up to a place (gate writer.half); with an argument it ends the step, and the place
 * is writer.done. The second says which steps it finds, and reads them. */
#include "gate.h"
#include <mpi.h>
#include <sys/stat.h>

enum { WORDS = 4096 };

static int rank, size;
static const char *place = "writer.half";

static void must(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "restarts: %s failed\n", what);
        MPI_Abort(MPI_COMM_WORLD, 70);
    }
}

static void half(int step) {
    if (step == 2)
        gate_reach("writer.half", rank);
}

static void fill(double *words, int step) {
    for (int i = 0; i < WORDS; i++)
        words[i] = step * 1000.0 + rank + i;
}

#if defined HDF5
#include <hdf5.h>

static void put(const char *path, const double *words, int step) {
    if (rank != 0)
        return;
    hsize_t all = WORDS, first = WORDS / 2, zero = 0;
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    must(file >= 0, "H5Fcreate");
    hid_t space = H5Screate_simple(1, &all, NULL), part = H5Screate_simple(1, &first, NULL);
    hid_t data = H5Dcreate(file, "field", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    must(H5Sselect_hyperslab(space, H5S_SELECT_SET, &zero, NULL, &first, NULL) >= 0, "H5Sselect_hyperslab");
    must(H5Dwrite(data, H5T_NATIVE_DOUBLE, part, space, H5P_DEFAULT, words) >= 0, "H5Dwrite");
    must(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0, "H5Fflush");
    half(step);
    must(H5Dwrite(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, words) >= 0, "H5Dwrite");
    H5Dclose(data), H5Sclose(space), H5Sclose(part);
    must(H5Fclose(file) >= 0, "H5Fclose");
}

static int get(const char *path, double *words) {
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t data = H5Dopen(file, "field", H5P_DEFAULT);
    int good = H5Dread(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, words) >= 0;
    H5Dclose(data), H5Fclose(file);
    return good;
}
#elif defined NETCDF
#include <netcdf.h>

static void put(const char *path, const double *words, int step) {
    if (rank != 0)
        return;
    int file, dimension, data;
    size_t zero = 0, first = WORDS / 2;
    must(nc_create(path, step == 1 ? NC_CLOBBER : NC_NETCDF4, &file) == NC_NOERR, "nc_create");
    must(nc_def_dim(file, "cell", WORDS, &dimension) == NC_NOERR, "nc_def_dim");
    must(nc_def_var(file, "field", NC_DOUBLE, 1, &dimension, &data) == NC_NOERR, "nc_def_var");
    must(nc_enddef(file) == NC_NOERR, "nc_enddef");
    must(nc_put_vara_double(file, data, &zero, &first, words) == NC_NOERR, "nc_put_vara_double");
    must(nc_sync(file) == NC_NOERR, "nc_sync");
    half(step);
    must(nc_put_var_double(file, data, words) == NC_NOERR, "nc_put_var_double");
    must(nc_close(file) == NC_NOERR, "nc_close");
}

static int get(const char *path, double *words) {
    int file, data;
    int good = nc_open(path, NC_NOWRITE, &file) == NC_NOERR && nc_inq_varid(file, "field", &data) == NC_NOERR
               && nc_get_var_double(file, data, words) == NC_NOERR;
    nc_close(file);
    return good;
}
#else
/* All ranks write one file, through the aggregators of collective buffering. */
static void put(const char *path, const double *words, int step) {
    MPI_File file;
    MPI_Info hints;
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "romio_cb_write", "enable");
    MPI_Info_set(hints, "cb_buffer_size", "8192");
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, hints, &file) == MPI_SUCCESS, "MPI_File_open");
    MPI_Info_free(&hints);
    MPI_Offset at = (MPI_Offset)rank * WORDS * (MPI_Offset)sizeof *words;
    must(MPI_File_write_at_all(file, at, words, WORDS / 2, MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "MPI_File_write_at_all");
    half(step);
    must(MPI_File_write_at_all(file, at, words, WORDS, MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "MPI_File_write_at_all");
    must(MPI_File_close(&file) == MPI_SUCCESS, "MPI_File_close");
}

static int get(const char *path, double *words) {
    FILE *file = fopen(path, "rb");
    int good = file && fread(words, sizeof *words, WORDS, file) == WORDS;
    struct stat stat_;
    good = good && stat(path, &stat_) == 0 && stat_.st_size == (off_t)(size * WORDS * sizeof *words);
    if (file)
        fclose(file);
    return good;
}
#endif

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    static double words[WORDS], read[WORDS];
    char path[4096];
    int again = strcmp(getenv("FT_WORLD"), "1") != 0;
    if (argc > 1)
        place = "writer.done";
    for (int step = 1; step <= 2; step++) {
        snprintf(path, sizeof path, "%s/step.%d", getenv("FT_CHECKPOINT_DIR"), step);
        fill(words, step);
        struct stat there;
        if (!again) {
            put(path, words, step);
            MPI_Barrier(MPI_COMM_WORLD);
        } else if (rank == 0 && stat(path, &there) == 0) {
            must(get(path, read) && memcmp(words, read, sizeof words) == 0, path);
            printf("found %d\n", step);
        }
    }
    if (!again)
        gate_reach(place, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
