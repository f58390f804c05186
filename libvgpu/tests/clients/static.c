/* A static program: no loader preloads the limiter into it. It is linked with the fake driver, and stands for a program that
 * speaks to the driver without libcuda.so.1. Takes memory in pieces of MIB until the driver refuses one, says how many
 * it has, and keeps them until its standard input ends. Usage: static MIB MOST_PIECES
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    CUcontext context;
    CUdeviceptr address;
    int pieces = 0, result = 0;
    if (count != 3 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 3;
    while (pieces < atoi(words[2]) && !(result = cuMemAlloc(&address, (size_t)atol(words[1]) << 20)))
        pieces++;
    printf("%d %d\n", pieces, result);
    fflush(stdout);
    return getchar() != EOF;
}
