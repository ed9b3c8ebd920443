/*
 * Durable files: the one place where bytes become durable and visible. Knows no Python, no policy
 * and no file format.
 *
 * A *target* is a file that is being written under a temporary name. It becomes visible under its
 * final name by am_commit alone, in four stages: sync data, close, rename with no-replace, sync
 * directory. All names are single path components, relative to an open directory; no symbolic
 * link is followed; every descriptor is closed on exec.
 *
 * Every function returns 0 or an errno value. Only EINTR is ever tried again: after a failed sync
 * the page cache lies, so a target whose sync failed is dead.
 */
#ifndef AM_DURABLE_H
#define AM_DURABLE_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Where a commit, or a step before it, failed. */
enum am_stage {
    AM_CREATE,
    AM_WRITE,
    AM_PREALLOCATE,
    AM_SYNC_DATA,
    AM_CLOSE,
    AM_RENAME,
    AM_SYNC_DIRECTORY,
    AM_MAKE_DIRECTORY
};

/* How a final name was taken. */
enum am_manner { AM_BY_RENAME, AM_BY_LINK };

struct am_target {
    int directory;         /* open directory that holds both names */
    int fd;                /* open file; -1 once it is closed */
    const char *temporary; /* its name now */
    const char *name;      /* its name after the commit */
    int64_t size;          /* bytes it must have at the commit, or -1 */
    enum am_manner manner; /* in: first choice; out: what was used */
    int sync_directory;    /* 0: the caller syncs the directory once, after several commits */
};

/* The stage's name, as it stands in errors: "sync-data". */
const char *am_stage_name(enum am_stage stage);

/* Create the file `temporary`, which must not exist, for writing and reading back. */
int am_create(int directory, const char *temporary, int *fd);

/* Ask for `size` bytes now, so that a full disk is found before the work. A file system that
 * cannot reserve is no error. The file's visible size does not change. */
int am_preallocate(int fd, int64_t size);

/* Write all buffers from `offset` on. `*written` grows with every byte that the kernel took, also
 * when the call fails in the end. The array of buffers is not changed. */
int am_write(int fd, const struct iovec *buffers, size_t count, int64_t offset, int64_t *written);

/* The four stages. The descriptor is closed in any case. On success the file is visible under its
 * final name and (with sync_directory) will be after a power cut. On failure `*failed` says where:
 * before AM_RENAME nothing is visible; at AM_RENAME another file has the name (EEXIST) or nothing
 * was renamed; at AM_SYNC_DIRECTORY the file is visible, durable or not. */
int am_commit(struct am_target *target, enum am_stage *failed);

/* Make the entries of a directory durable. */
int am_sync_directory(int directory);

/* Make a directory; `*made` is 0 if the name existed. */
int am_make_directory(int directory, const char *name, int *made);

/* Open a directory inside a directory. */
int am_open_directory(int directory, const char *name, int *fd);

/* Open a regular file for reading, never waiting for a writer (a FIFO). `*size` is its size, or -1
 * if it is not a regular file; then `*fd` is -1. */
int am_open_file(int directory, const char *name, int *fd, int64_t *size);

/* Read `length` bytes at `offset`, fewer only at the end of the file. */
int am_read(int fd, void *buffer, size_t length, int64_t offset, size_t *got);

#endif
