/* What a program finds in an NVML from before release 615. */
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = (void *)uuid;
    return 0;
}
