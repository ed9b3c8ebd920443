/* See seam.h. */
#define SEAM_REAL
#include "seam.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

struct seam_plan seam[SEAM_CALLS];
int seam_count[SEAM_CALLS];
char seam_log[4096];

void seam_reset(void)
{
    int i;

    memset(seam, 0, sizeof seam);
    memset(seam_count, 0, sizeof seam_count);
    memset(seam_log, 0, sizeof seam_log);
    for (i = 0; i < SEAM_CALLS; i++)
        seam[i].limit = -1;
}

/* Returns the plan if it applies to this call. */
static const struct seam_plan *next(enum seam_call call)
{
    size_t n = strlen(seam_log);

    seam_count[call]++;
    if (n + 1 < sizeof seam_log)
        seam_log[n] = "owrpscnldum"[call];
    if (seam[call].times == 0)
        return NULL;
    if (seam[call].times > 0)
        seam[call].times--;
    return &seam[call];
}

#define DO(call, real)                                                                             \
    do {                                                                                           \
        const struct seam_plan *plan = next(call);                                                 \
        if (plan && plan->error) {                                                                 \
            if (plan->do_first && (real) < 0)                                                      \
                return -1;                                                                         \
            errno = plan->error;                                                                   \
            return -1;                                                                             \
        }                                                                                          \
        return real;                                                                               \
    } while (0)

int seam_openat(int directory, const char *name, int flags, ...)
{
    va_list list;
    mode_t mode;

    va_start(list, flags);
    mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    DO(SEAM_OPENAT, openat(directory, name, flags, mode));
}

ssize_t seam_pwritev(int fd, const struct iovec *v, int count, off_t offset)
{
    const struct seam_plan *plan = next(SEAM_PWRITEV);

    if (plan && plan->error) {
        errno = plan->error;
        return -1;
    }
    if (plan && plan->limit >= 0) {
        if (plan->limit == 0)
            return 0;
        return pwrite(fd, v[0].iov_base,
                      v[0].iov_len < (size_t)plan->limit ? v[0].iov_len : (size_t)plan->limit, offset);
    }
    return pwritev(fd, v, count, offset);
}

ssize_t seam_pread(int fd, void *data, size_t n, off_t offset)
{
    const struct seam_plan *plan = next(SEAM_PREAD);

    if (plan && plan->error) {
        errno = plan->error;
        return -1;
    }
    if (plan && plan->limit >= 0 && n > (size_t)plan->limit)
        n = (size_t)plan->limit;
    return pread(fd, data, n, offset);
}

int seam_fallocate(int fd, int mode, off_t offset, off_t length)
{
    DO(SEAM_FALLOCATE, fallocate(fd, mode, offset, length));
}

int seam_fdatasync(int fd)
{
    DO(SEAM_FDATASYNC, fdatasync(fd));
}

int seam_close(int fd)
{
    /* As the kernel does, the descriptor is gone whatever the answer is. */
    const struct seam_plan *plan = next(SEAM_CLOSE);
    int result = close(fd);

    if (plan && plan->error) {
        errno = plan->error;
        return -1;
    }
    return result;
}

int seam_renameat2(int from, const char *name, int to, const char *other, unsigned int flags)
{
    DO(SEAM_RENAMEAT2, renameat2(from, name, to, other, flags));
}

int seam_linkat(int from, const char *name, int to, const char *other, int flags)
{
    DO(SEAM_LINKAT, linkat(from, name, to, other, flags));
}

int seam_fsync(int fd)
{
    DO(SEAM_FSYNC, fsync(fd));
}

int seam_unlinkat(int directory, const char *name, int flags)
{
    DO(SEAM_UNLINKAT, unlinkat(directory, name, flags));
}

int seam_mkdirat(int directory, const char *name, mode_t mode)
{
    DO(SEAM_MKDIRAT, mkdirat(directory, name, mode));
}
