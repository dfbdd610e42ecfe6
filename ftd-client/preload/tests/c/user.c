/* A program for the unknown MPI. */
int MPI_Init(int *, char ***);
int MPI_Finalize(void);

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    return MPI_Finalize();
}
