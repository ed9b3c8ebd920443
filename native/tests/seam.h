/* Put before durable.c in the tests' copy of it: its system calls become the doubles of seam.c. */
#ifndef SEAM_H
#define SEAM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum seam_call {
    SEAM_OPENAT,
    SEAM_PWRITEV,
    SEAM_PREAD,
    SEAM_FALLOCATE,
    SEAM_FDATASYNC,
    SEAM_CLOSE,
    SEAM_RENAMEAT2,
    SEAM_LINKAT,
    SEAM_FSYNC,
    SEAM_UNLINKAT,
    SEAM_MKDIRAT,
    SEAM_CALLS
};

/* What happens to the next `times` calls of one kind (-1: to all). */
struct seam_plan {
    int times;
    int error;    /* fail with it; 0: no failure */
    int do_first; /* carry the call out before it fails */
    int limit;    /* bytes that one write or read may move at most; -1: no limit */
};

extern struct seam_plan seam[SEAM_CALLS];
extern int seam_count[SEAM_CALLS];    /* calls so far */
extern char seam_log[4096];           /* one letter per call, in order of seam_call: owrpscnldum */
void seam_reset(void);

int seam_openat(int directory, const char *name, int flags, ...);
ssize_t seam_pwritev(int fd, const struct iovec *v, int count, off_t offset);
ssize_t seam_pread(int fd, void *data, size_t n, off_t offset);
int seam_fallocate(int fd, int mode, off_t offset, off_t length);
int seam_fdatasync(int fd);
int seam_close(int fd);
int seam_renameat2(int from, const char *name, int to, const char *other, unsigned int flags);
int seam_linkat(int from, const char *name, int to, const char *other, int flags);
int seam_fsync(int fd);
int seam_unlinkat(int directory, const char *name, int flags);
int seam_mkdirat(int directory, const char *name, mode_t mode);

#ifndef SEAM_REAL
#define openat seam_openat
#define pwritev seam_pwritev
#define pread seam_pread
#define fallocate seam_fallocate
#define fdatasync seam_fdatasync
#define close seam_close
#define renameat2 seam_renameat2
#define linkat seam_linkat
#define fsync seam_fsync
#define unlinkat seam_unlinkat
#define mkdirat seam_mkdirat
#endif
#endif
