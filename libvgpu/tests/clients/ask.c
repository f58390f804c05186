/* Asks the driver for functions as a CUDA runtime does. Each line of standard input is a name, a CUDA version and
 * flags; the answer is the library that holds the address, and its symbol.
 *
 * With an argument, that CUDA runtime is loaded and started first, so that it asks its own questions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*ask_type)(const char *, void **, int, uint64_t, int *);

int main(int argc, char **argv)
{
    if (argc > 1) {
        void *runtime = dlopen(argv[1], RTLD_NOW);
        int (*start)(int *) = runtime ? (int (*)(int *))dlsym(runtime, "cudaGetDeviceCount") : NULL;
        int count = 0;
        if (!start)
            return 3;
        /* It stops where it wants NVIDIA's private tables, which the fake driver does not imitate. */
        fprintf(stderr, "%d\n", start(&count));
        return 0;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    ask_type ask = driver ? (ask_type)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    char name[128];
    int version;
    unsigned long flags;
    if (!ask)
        return 3;
    while (scanf("%127s %d %lu", name, &version, &flags) == 3) {
        void *address = NULL;
        Dl_info info = {0};
        ask(name, &address, version, flags, NULL);
        if (address && dladdr(address, &info)) {
            const char *slash = strrchr(info.dli_fname, '/');
            printf("%s %s\n", slash ? slash + 1 : info.dli_fname, info.dli_sname ? info.dli_sname : "-");
        } else {
            printf("- -\n");
        }
    }
    return 0;
}
