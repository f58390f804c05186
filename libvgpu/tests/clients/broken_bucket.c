/* Samples in buckets of random bytes, as a program of the container can write them. Ends with 1 if what the
 * samples leave there is out of bounds.
 */
#include "control.h"

#include <stdlib.h>

int main(void)
{
    for (int i = 0; i < 200000; i++) {
        struct vgpu_bucket bucket;
        for (size_t j = 0; j < sizeof bucket; j++)
            ((unsigned char *)&bucket)[j] = (unsigned char)rand();
        uint64_t now = (uint64_t)1 << 40, charged = (uint64_t)rand();
        atomic_store(&bucket.resumed, 0);
        atomic_store(&bucket.sampled, now - 1000000000); /* else no sample counts */
        atomic_store(&bucket.sampled_charged, charged);
        atomic_store(&bucket.charged, charged + 300000000);
        atomic_store(&bucket.seen, (uint64_t)(i % 200) << 16);
        atomic_store(&bucket.expected, (uint64_t)(i % 100) << 16);
        if (i % 2)
            atomic_store(&bucket.rounds, (uint64_t)(i % 40));
        vgpu_bucket_sample(&bucket, now, (uint64_t)(i % 120));
        vgpu_bucket_sample(&bucket, now + 1000000000, 50);
        uint64_t scale = atomic_load(&bucket.scale);
        if (i % 200 && i % 100 && (scale < 65536 / 16 || scale > 65536 * 3 / 2))
            return 1;
        if (i % 200 && i % 100 && (atomic_load(&bucket.mean_sampled) > 256000000
                                   || atomic_load(&bucket.variance) > 256000000))
            return 1;
    }
    return 0;
}
