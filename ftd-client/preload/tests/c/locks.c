/* locks: threads load and unload an object while a plug-in calls a function of its own MPI's, again and again. With PLUGIN:
 * the plug-in and its MPI in one. */
#ifdef PLUGIN
int MPI_Session_finalize(void *session) { return session == 0; }
int run(void) {
    int good = 0;
    for (int i = 0; i < 20000; i++)
        good += MPI_Session_finalize(0);
    return good == 20000 ? 0 : 1;
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
static atomic_int over;
static void *churn(void *path) {
    while (!over) {
        void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (object)
            dlclose(object);
    }
    return NULL;
}
int main(int argc, char **argv) {
    (void)argc;
    pthread_t threads[2];
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin)
        return 70;
    int (*run)(void) = (int (*)(void))dlsym(plugin, "run");
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, churn, argv[2]);
    int status = run();
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return status;
}
#endif
