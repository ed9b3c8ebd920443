/* See durable.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define _FILE_OFFSET_BITS 64

#include "durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

/* One system call moves at most this much: larger ones fall out of the cache and cost up to three
 * times the processor time. */
#define STEP ((size_t)1 << 20)
/* Buffers handed to one system call. */
#define BATCH (IOV_MAX < 256 ? IOV_MAX : 256)
/* Calls in a row that may move nothing before that is an error. */
#define PATIENCE 8

const char *am_stage_name(enum am_stage stage)
{
    static const char *const names[] = {
        "create", "write",  "preallocate",    "sync-data",
        "close",  "rename", "sync-directory", "make-directory",
    };
    return names[stage];
}

int am_create(int directory, const char *temporary, int *fd)
{
    do
        *fd = openat(directory, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? errno : 0;
}

int am_preallocate(int fd, int64_t size)
{
    int result;

    if (size <= 0)
        return 0;
    do
        result = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size);
    while (result < 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
        return 0;
    return errno;
}

int am_write(int fd, const struct iovec *buffers, size_t count, int64_t offset, int64_t *written)
{
    struct iovec batch[BATCH];
    size_t index = 0, done = 0; /* buffers done, bytes done of buffers[index] */
    int idle = 0;

    for (;;) {
        size_t at = index, from = done, total = 0;
        int used = 0;
        ssize_t moved;

        while (at < count && used < BATCH && total < STEP) {
            size_t length = buffers[at].iov_len - from;
            if (length > STEP - total)
                length = STEP - total;
            if (length > 0) {
                batch[used].iov_base = (char *)buffers[at].iov_base + from;
                batch[used].iov_len = length;
                used++;
                total += length;
            }
            from += length;
            if (from == buffers[at].iov_len) {
                at++;
                from = 0;
            }
        }
        if (used == 0)
            return 0;

        moved = pwritev(fd, batch, used, (off_t)offset);
        if (moved < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (moved == 0) {
            if (++idle >= PATIENCE)
                return EIO;
            continue;
        }
        idle = 0;
        offset += moved;
        *written += moved;
        while (moved > 0) {
            size_t rest = buffers[index].iov_len - done;
            if ((size_t)moved < rest) {
                done += (size_t)moved;
                break;
            }
            moved -= (ssize_t)rest;
            index++;
            done = 0;
        }
    }
}

int am_sync_directory(int directory)
{
    int result;

    do
        result = fsync(directory);
    while (result < 0 && errno == EINTR);
    return result < 0 ? errno : 0;
}

#ifdef AM_NO_RENAMEAT2
/* The C library has no such call: as if the file system had no such flag. */
static int renameat2(int from, const char *name, int to, const char *other, unsigned int flags)
{
    (void)from, (void)name, (void)to, (void)other, (void)flags;
    errno = ENOSYS;
    return -1;
}
#endif

/* Whether `name` is the file that `mine` describes. */
static int is_ours(int directory, const char *name, const struct stat *mine)
{
    struct stat there;

    return fstatat(directory, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(there.st_mode) &&
           there.st_dev == mine->st_dev && there.st_ino == mine->st_ino;
}

static int no_such_flag(int error)
{
    return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ENOTSUP;
}

/* Give the file its final name, unless somebody has it. A server may answer "exists", or an error,
 * to a request that it has carried out (an answer lost and asked for again): if the name is our own
 * file, the name was taken by us. */
static int take_by_rename(const struct am_target *t, const struct stat *mine)
{
    for (;;) {
        int error;
        if (renameat2(t->directory, t->temporary, t->directory, t->name, RENAME_NOREPLACE) == 0)
            return 0;
        error = errno;
        if (no_such_flag(error))
            return error;
        if (is_ours(t->directory, t->name, mine))
            return 0;
        if (error != EINTR)
            return error;
    }
}

static int take_by_link(const struct am_target *t, const struct stat *mine)
{
    for (;;) {
        int error;
        if (linkat(t->directory, t->temporary, t->directory, t->name, 0) == 0)
            return 0;
        error = errno;
        if (is_ours(t->directory, t->name, mine))
            return 0;
        if (error != EINTR)
            return error;
    }
}

int am_commit(struct am_target *t, enum am_stage *failed)
{
    struct stat mine;
    int result, error;

    /* Data first: a name must never lead to bytes that a power cut can lose. */
    *failed = AM_SYNC_DATA;
    do
        result = fdatasync(t->fd);
    while (result < 0 && errno == EINTR);
    error = result < 0 ? errno : 0;
    if (error == 0 && fstat(t->fd, &mine) < 0)
        error = errno;
    if (error == 0 && t->size >= 0 && mine.st_size != t->size) {
        *failed = AM_WRITE;
        error = EIO;
    }
    if (error) {
        close(t->fd);
        t->fd = -1;
        return error;
    }

    /* A network file system may report here what the sync did not. EINTR is no such report: the
     * data is synced and the descriptor is gone. */
    *failed = AM_CLOSE;
    result = close(t->fd);
    t->fd = -1;
    if (result < 0 && errno != EINTR)
        return errno;

    *failed = AM_RENAME;
    if (t->manner == AM_BY_RENAME) {
        error = take_by_rename(t, &mine);
        if (no_such_flag(error))
            t->manner = AM_BY_LINK;
        else if (error)
            return error;
    }
    if (t->manner == AM_BY_LINK) {
        error = take_by_link(t, &mine);
        if (error)
            return error;
    }

    *failed = AM_SYNC_DIRECTORY;
    if (t->sync_directory) {
        error = am_sync_directory(t->directory);
        if (error)
            return error;
    }

    /* The second name goes last: at every moment before, one of the two leads to the file. It is
     * published already; a temporary name that stays is a leftover, not a failure. */
    if (t->manner == AM_BY_LINK)
        (void)unlinkat(t->directory, t->temporary, 0);
    return 0;
}

int am_make_directory(int directory, const char *name, int *made)
{
    *made = 0;
    for (;;) {
        if (mkdirat(directory, name, 0777) == 0) {
            *made = 1;
            return 0;
        }
        if (errno == EEXIST)
            return 0;
        if (errno != EINTR)
            return errno;
    }
}

int am_open_directory(int directory, const char *name, int *fd)
{
    do
        *fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? errno : 0;
}

int am_open_file(int directory, const char *name, int *fd, int64_t *size)
{
    struct stat st;
    int error;

    *size = -1;
    do
        *fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0) {
        error = errno;
        /* ELOOP: a symbolic link; ENXIO: a socket. Neither is a regular file. */
        return error == ELOOP || error == ENXIO ? 0 : error;
    }
    error = fstat(*fd, &st) < 0 ? errno : 0;
    if (error || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return error;
    }
    *size = st.st_size;
    return 0;
}

int am_read(int fd, void *buffer, size_t length, int64_t offset, size_t *got)
{
    *got = 0;
    while (*got < length) {
        size_t want = length - *got;
        ssize_t moved;
        if (want > ((size_t)1 << 30))
            want = (size_t)1 << 30;
        moved = pread(fd, (char *)buffer + *got, want, (off_t)(offset + (int64_t)*got));
        if (moved < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (moved == 0)
            return 0;
        *got += (size_t)moved;
    }
    return 0;
}
