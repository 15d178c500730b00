/* A wall clock that a test can set. It is loaded into a server by LD_PRELOAD.
 *
 * SERVER_CLOCK names a file of eight bytes: the nanoseconds to add to the true time, in the byte order of this machine.
 * They may change at any time. Monotonic clocks are not changed, just as when an administrator sets the time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOS 1000000000LL

static volatile long long *ahead;

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("SERVER_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0)
        return;
    void *bytes = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (bytes != MAP_FAILED)
        ahead = bytes;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (failed || !ahead || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    long long nanos = time->tv_sec * NANOS + time->tv_nsec + *ahead;
    time->tv_sec = nanos / NANOS;
    time->tv_nsec = nanos % NANOS;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed && time) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}
