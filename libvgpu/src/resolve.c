#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "resolve.h"

#include "log.h"
#include "process.h"

#include <dlfcn.h>
#include <string.h>

enum { PER_THREAD_FLAG = 2 };

typedef void *(*dlsym_type)(void *, const char *);

static _Atomic(void *) real_dlsym;
static atomic_bool driver_ready, nvml_ready;

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NO_SANITIZE __attribute__((no_sanitize("address", "undefined", "thread")))
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NO_SANITIZE __attribute__((no_sanitize("address", "undefined", "thread")))
#endif
#ifndef NO_SANITIZE
#define NO_SANITIZE
#endif

/* glibc's dlsym. Asked for by version, since ours has taken the plain name. */
NO_SANITIZE static dlsym_type glibc_dlsym(void)
{
    void *found = atomic_load(&real_dlsym);
    if (LIKELY(found != NULL))
        return (dlsym_type)found;
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (size_t i = 0; !found && i < sizeof versions / sizeof *versions; i++)
        found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store(&real_dlsym, found);
    return (dlsym_type)found;
}

static bool resolve(atomic_bool *ready, const char *library, bool nvml, bool load)
{
    if (LIKELY(atomic_load_explicit(ready, memory_order_acquire)))
        return true;
    /* The reference is kept: a library that is unloaded would leave us with dead addresses. */
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
    if (!handle)
        return false;
    for (int i = 0; i < SYMBOL_COUNT; i++)
        if (vgpu_known[i].nvml == nvml)
            atomic_store(&vgpu_real[i], glibc_dlsym()(handle, vgpu_names + vgpu_known[i].name));
    atomic_store_explicit(ready, true, memory_order_release);
    return true;
}

bool vgpu_resolve_driver(bool load)
{
    return resolve(&driver_ready, "libcuda.so.1", false, load);
}

bool vgpu_resolve_nvml(bool load)
{
    return resolve(&nvml_ready, "libnvidia-ml.so.1", true, load);
}

static int missing_cuda(void)
{
    return CUDA_NOT_FOUND;
}

static int missing_nvml(void)
{
    return 13; /* NVML: function not found */
}

void *vgpu_resolve(enum vgpu_symbol symbol)
{
    bool nvml = vgpu_known[symbol].nvml;
    if (nvml)
        vgpu_resolve_nvml(true);
    else
        vgpu_resolve_driver(true);
    void *address = atomic_load(&vgpu_real[symbol]);
    return address ? address : nvml ? (void *)missing_nvml : (void *)missing_cuda;
}

static bool has_base(int i, const char *name)
{
    return vgpu_known[i].wrapper && !strcmp(vgpu_names + vgpu_known[i].base, name);
}

/* As the driver chooses: of the functions with that name, the newest one that is not too new, of the kind of stream that
 * was asked for if there is one. */
static int choose_by_name(const char *name, uint32_t version, bool per_thread)
{
    int best = -1;
    for (int i = 0; i < SYMBOL_COUNT; i++) {
        const struct vgpu_known *known = &vgpu_known[i];
        if (!has_base(i, name) || !atomic_load(&vgpu_real[i]) || known->version > version
            || (known->per_thread && !per_thread))
            continue;
        bool better = best < 0 || known->per_thread > vgpu_known[best].per_thread
            || (known->per_thread == vgpu_known[best].per_thread && known->version > vgpu_known[best].version);
        best = better ? i : best;
    }
    return best;
}

/* Copies that are not charged cost nothing: the program gets the driver's own function. */
static void *wrapper_at(int i, void *real)
{
    return vgpu_known[i].copy && !vgpu_are_copies_charged() ? real : vgpu_known[i].wrapper;
}

/* The driver answers with the address that a symbol has. Of two functions at one address, the name tells which is meant. An
 * address that no symbol has, as a driver might give, is found by the name alone. */
void *vgpu_wrapper_of(void *address, const char *name, uint32_t version, uint64_t flags)
{
    int by_address = -1;
    bool hooked = false;
    for (int i = 0; i < SYMBOL_COUNT; i++) {
        bool named = has_base(i, name);
        hooked |= named;
        if (!vgpu_known[i].wrapper || atomic_load_explicit(&vgpu_real[i], memory_order_relaxed) != address)
            continue;
        if (named)
            return wrapper_at(i, address);
        by_address = i;
    }
    if (LIKELY(!hooked))
        return address;
    if (by_address < 0) {
        by_address = choose_by_name(name, version, flags & PER_THREAD_FLAG);
        LOG_ONCE(LOG_WARNING, "cuGetProcAddress has given an address of %s that no symbol has: chosen by its name", name);
    }
    return by_address < 0 ? address : wrapper_at(by_address, address);
}

NO_SANITIZE static int find(const char *name)
{
    int low = 0, high = SYMBOL_COUNT - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = strcmp(name, vgpu_names + vgpu_known[middle].name);
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return -1;
}

/* NULL, and dlerror says that there is no such symbol: behind us there is none. Programs print what dlerror says. */
static void *no_symbol(const char *name)
{
    return glibc_dlsym()(RTLD_NEXT, name);
}

/* What dlsym is to answer for a hooked name, given what glibc answers. */
static void *choose(int at, void *found)
{
    const struct vgpu_known *known = &vgpu_known[at];
    const char *name = vgpu_names + known->name;
    if (!found)
        return NULL;
    /* Only a program that has loaded the library can have its functions, and only those that it has. */
    if (!(known->nvml ? vgpu_resolve_nvml(false) : vgpu_resolve_driver(false)))
        return found == known->wrapper ? no_symbol(name) : found;
    void *real = atomic_load(&vgpu_real[at]);
    if (found == known->wrapper || found == real)
        return real ? wrapper_at(at, real) : no_symbol(name);
    return found; /* of another library that has a function with this name */
}

void *vgpu_dlsym_pick(void *handle, const char *name, void **result);

/* Called by dlsym below. Returns the function to go on with, or NULL if the answer is in *result. */
NO_SANITIZE __attribute__((used)) void *vgpu_dlsym_pick(void *handle, const char *name, void **result)
{
    dlsym_type real = glibc_dlsym();
    if (!real) {
        *result = NULL;
        return NULL;
    }
    bool ours = name && ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v'));
    int at = ours ? find(name) : -1;
    if (at < 0 || !vgpu_known[at].wrapper)
        return (void *)real;
    *result = choose(at, real(handle, name));
    return NULL;
}

/* dlsym: for all names that are not ours it jumps to glibc's, whose answer to RTLD_NEXT depends on who has called. */
#if defined(__x86_64__)
__asm__(".text\n.globl dlsym\n.type dlsym,@function\ndlsym:\n"
        ".cfi_startproc\n"
        "    push %rdi\n    .cfi_adjust_cfa_offset 8\n"
        "    push %rsi\n    .cfi_adjust_cfa_offset 8\n"
        "    sub $8, %rsp\n    .cfi_adjust_cfa_offset 8\n"
        "    mov %rsp, %rdx\n"
        "    call vgpu_dlsym_pick\n"
        "    pop %rdx\n    .cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n    .cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n    .cfi_adjust_cfa_offset -8\n"
        "    test %rax, %rax\n"
        "    je 1f\n"
        "    jmp *%rax\n"
        "1:  mov %rdx, %rax\n"
        "    ret\n"
        ".cfi_endproc\n.size dlsym,.-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl dlsym\n.type dlsym,%function\ndlsym:\n"
        ".cfi_startproc\n"
        "    stp x29, x30, [sp, #-48]!\n    .cfi_adjust_cfa_offset 48\n"
        "    .cfi_rel_offset x29, 0\n    .cfi_rel_offset x30, 8\n"
        "    mov x29, sp\n"
        "    stp x0, x1, [sp, #16]\n"
        "    add x2, sp, #32\n"
        "    bl vgpu_dlsym_pick\n"
        "    mov x16, x0\n"
        "    ldr x17, [sp, #32]\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #48\n    .cfi_adjust_cfa_offset -48\n"
        "    .cfi_restore x29\n    .cfi_restore x30\n"
        "    cbz x16, 1f\n"
        "    br x16\n"
        "1:  mov x0, x17\n"
        "    ret\n"
        ".cfi_endproc\n.size dlsym,.-dlsym\n");
#else
#error "only x86-64 and arm64"
#endif

static int chosen(int result, const char *name, void *address, uint32_t version, uint64_t flags)
{
    void **place = address;
    if (result == CUDA_OK && place && *place && name && vgpu_resolve_driver(false))
        *place = vgpu_wrapper_of(*place, name, version, flags);
    return result;
}

/* The driver knows which function a version and flags mean; its answer is only replaced where it is one that we hook. */
int cuGetProcAddress(void *name, void *address, uint32_t version, uint64_t flags)
{
    return chosen(REAL(cuGetProcAddress)(name, address, version, flags), name, address, version, flags);
}

int cuGetProcAddress_v2(void *name, void *address, uint32_t version, uint64_t flags, void *status)
{
    return chosen(REAL(cuGetProcAddress_v2)(name, address, version, flags, status), name, address, version, flags);
}
