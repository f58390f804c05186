/* What a context sets aside for what runs on the device, when the program sets a limit of it. */
#include "account.h"
#include "context.h"
#include "devices.h"
#include "measure.h"
#include "objects.h"
#include "process.h"
#include "resolve.h"

enum {
    STACK_SIZE = 0,
    PRINTF_FIFO = 1,
    MALLOC_HEAP = 2,
    SYNC_DEPTH = 3,
    PENDING_LAUNCHES = 4,
    BLOCK_MEMORY = 10,
};

/* What is charged for one of them, by a key that no handle has. */
static struct vgpu_object limit_of(uint64_t context, uint32_t limit, int d)
{
    struct vgpu_object fresh = {.handle = context + limit + 1, .context = context,
                                .amount = {.device = d, .part = PART_CONTEXT}};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, fresh.handle);
    struct vgpu_object found = known ? *known : fresh;
    vgpu_unlock(&vgpu_process.lock);
    return found;
}

/* From now on it is charged so many bytes in place of `charged`. */
static void settle(struct vgpu_object *limit, uint64_t charged, uint64_t bytes)
{
    limit->amount.bytes = bytes;
    vgpu_lock(&vgpu_process.lock);
    vgpu_correct(limit->amount.device, charged, bytes, PART_CONTEXT);
    vgpu_table_put(&vgpu_process.objects, limit);
    vgpu_unlock(&vgpu_process.lock);
}

/* Bytes of a buffer beyond the usual one. */
static uint64_t beyond(const struct vgpu_object *buffer, uint64_t value)
{
    return vgpu_round(vgpu_less(value, buffer->usual), VGPU_GRANULE);
}

/* The value is the size of a buffer; the driver may round it. */
static int set_buffer(uint64_t context, int d, uint32_t limit, uint64_t value)
{
    uint64_t usual = 0, real = value;
    struct vgpu_object buffer = limit_of(context, limit, d);
    if (!buffer.usual && REAL(cuCtxGetLimit)(&usual, limit) == CUDA_OK)
        buffer.usual = usual;
    uint64_t before = buffer.amount.bytes, more = vgpu_less(beyond(&buffer, value), before);
    int result = vgpu_charge(d, more, PART_CONTEXT);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuCtxSetLimit)(limit, value);
    if (result != CUDA_OK) {
        vgpu_uncharge(d, more, PART_CONTEXT);
        return result;
    }
    if (REAL(cuCtxGetLimit)(&real, limit) != CUDA_OK)
        real = value;
    settle(&buffer, before + more, beyond(&buffer, real));
    return result;
}

/* The driver sets aside what it thinks that it needs for the value. NVML may tell how much that is. */
static int set_measured(uint64_t context, int d, uint32_t limit, uint64_t value)
{
    struct vgpu_own own;
    int64_t change = 0;
    uint64_t earlier = 0;
    struct vgpu_object reserve = limit_of(context, limit, d);
    bool told = REAL(cuCtxGetLimit)(&earlier, limit) == CUDA_OK && vgpu_own_begin(&own, d, true);
    int result = REAL(cuCtxSetLimit)(limit, value);
    if (result != CUDA_OK || !told || !vgpu_own_change(&own, &change))
        return result;
    uint64_t before = reserve.amount.bytes, more = change > 0 ? (uint64_t)change : 0;
    uint64_t less = change < 0 ? (uint64_t)-change : 0;
    result = vgpu_charge(d, more, PART_CONTEXT);
    if (result == CUDA_OK)
        settle(&reserve, before + more, vgpu_less(before + more, less));
    else
        REAL(cuCtxSetLimit)(limit, earlier);
    return result;
}

/* One thread after the other: what the driver holds is what the last of them has asked for. */
int cuCtxSetLimit(uint32_t limit, uint64_t value)
{
    int d;
    uint64_t context;
    bool is_buffer = limit == PRINTF_FIFO || limit == MALLOC_HEAP;
    bool is_measured = limit == STACK_SIZE || limit == SYNC_DEPTH || limit == PENDING_LAUNCHES || limit == BLOCK_MEMORY;
    if ((!is_buffer && !is_measured) || !vgpu_current(&d, &context))
        return REAL(cuCtxSetLimit)(limit, value);
    struct vgpu_turn turn = vgpu_turn_begin(&vgpu_process.limit_turn);
    int result = is_buffer ? set_buffer(context, d, limit, value) : set_measured(context, d, limit, value);
    vgpu_turn_end(turn);
    return result;
}
