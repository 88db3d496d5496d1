/* The time of day as another clock has it: preloaded into a process, for faults of clocks.
 *
 * FENCING_FALSE_CLOCK names a file whose first 8 bytes are the difference to the true clock, in
 * nanoseconds; it is mapped, so a change is seen by the next call. Clocks that only count, such as
 * CLOCK_MONOTONIC and CLOCK_BOOTTIME, are true, as are waits: on a real machine, too, a jump of the
 * time of day leaves them alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const int64_t *difference;
static int (*true_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void look_up(void)
{
    const char *path = getenv("FENCING_FALSE_CLOCK");
    true_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *difference, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        difference = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!true_clock_gettime) /* another library's constructor asks before ours has run */
        look_up();
    int failed = true_clock_gettime(clock, now);
    if (failed || !difference || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t sum = now->tv_nsec + __atomic_load_n(difference, __ATOMIC_RELAXED);
    int64_t rest = sum % SECOND;
    now->tv_sec += sum / SECOND - (rest < 0);
    now->tv_nsec = rest < 0 ? rest + SECOND : rest;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone; /* obsolete, and nobody's */
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}
