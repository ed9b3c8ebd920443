/*
 * The least that a durable and verified save or restore can cost, for benchmarks/save_restore.py.
 *
 * Save: per owner one file of all arrays and one file of their digests, written under temporary names
 * (1 MiB steps, each digested while it is in cache; small arrays gathered), data synced, closed,
 * renamed, directory synced. Restore: read into the caller's arrays and compare every digest.
 * No manifest, no agreement among owners, no other layout: a bound, not a product.
 *
 * Every function returns 0, or the number of the step that failed (errno tells why).
 */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define STEP ((size_t)1 << 20)
#define LIST 1024

enum { CREATE = 1, WRITE, SYNC, CLOSE, RENAME, SYNC_DIRECTORY, OPEN, READ, DIGEST, MEMORY };

static int write_all(int fd, const char *data, size_t n, off_t at)
{
    while (n) {
        ssize_t k = pwrite(fd, data, n, at);
        if (k <= 0)
            return WRITE;
        data += k;
        n -= (size_t)k;
        at += k;
    }
    return 0;
}

static int read_all(int fd, char *data, size_t n, off_t at)
{
    while (n) {
        ssize_t k = pread(fd, data, n, at);
        if (k <= 0)
            return READ;
        data += k;
        n -= (size_t)k;
        at += k;
    }
    return 0;
}

/* How many arrays from `first` fit one gathered call: small ones only, 1 MiB together. */
static int gather(int first, int n, void **data, const size_t *size, struct iovec *list, size_t *total)
{
    int m = 0;
    *total = 0;
    while (first + m < n && m < LIST && size[first + m] < STEP && *total + size[first + m] <= STEP) {
        list[m].iov_base = data[first + m];
        list[m].iov_len = size[first + m];
        *total += size[first + m];
        m++;
    }
    return m;
}

static int save_arrays(int fd, int n, void **data, const size_t *size, XXH128_hash_t *sums)
{
    struct iovec list[LIST];
    XXH3_state_t *state = XXH3_createState();
    off_t at = 0;
    int failed = state ? 0 : MEMORY;

    for (int i = 0; i < n && !failed;) {
        size_t total;
        int m = gather(i, n, data, size, list, &total);
        if (m) {
            for (int k = 0; k < m; k++)
                sums[i + k] = XXH3_128bits(data[i + k], size[i + k]);
            if (pwritev(fd, list, m, at) != (ssize_t)total)
                failed = WRITE;
            at += (off_t)total;
            i += m;
            continue;
        }
        XXH3_128bits_reset(state);
        for (size_t done = 0; done < size[i] && !failed; done += STEP) {
            const char *from = (const char *)data[i] + done;
            size_t k = size[i] - done < STEP ? size[i] - done : STEP;
            XXH3_128bits_update(state, from, k);
            failed = write_all(fd, from, k, at + (off_t)done);
        }
        sums[i] = XXH3_128bits_digest(state);
        at += (off_t)size[i];
        i++;
    }
    XXH3_freeState(state);
    return failed;
}

static int commit(int fd, const char *temporary, const char *final)
{
    if (fdatasync(fd))
        return SYNC;
    if (close(fd))
        return CLOSE;
    return rename(temporary, final) ? RENAME : 0;
}

int floor_save(const char *directory, int owner, int n, void **data, const size_t *size)
{
    char temporary[2][4096], final[2][4096];
    const char *kind[2] = {"data", "sums"};
    int fd[2] = {-1, -1}, failed;
    XXH128_hash_t *sums = calloc((size_t)n, sizeof *sums);

    if (!sums)
        return MEMORY;
    for (int k = 0; k < 2; k++) {
        snprintf(temporary[k], sizeof temporary[k], "%s/.%d.%s", directory, owner, kind[k]);
        snprintf(final[k], sizeof final[k], "%s/%d.%s", directory, owner, kind[k]);
        fd[k] = open(temporary[k], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
        if (fd[k] < 0)
            return CREATE;
    }
    failed = save_arrays(fd[0], n, data, size, sums);
    if (!failed)
        failed = write_all(fd[1], (const char *)sums, (size_t)n * sizeof *sums, 0);
    free(sums);
    for (int k = 0; k < 2 && !failed; k++)
        failed = commit(fd[k], temporary[k], final[k]);
    if (failed)
        return failed;
    int here = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (here < 0 || fsync(here))
        return SYNC_DIRECTORY;
    return close(here) ? CLOSE : 0;
}

static int restore_arrays(int fd, int n, void **data, const size_t *size, const XXH128_hash_t *sums)
{
    struct iovec list[LIST];
    XXH3_state_t *state = XXH3_createState();
    off_t at = 0;
    int failed = state ? 0 : MEMORY;

    for (int i = 0; i < n && !failed;) {
        size_t total;
        int m = gather(i, n, data, size, list, &total);
        if (m) {
            if (preadv(fd, list, m, at) != (ssize_t)total)
                failed = READ;
            for (int k = 0; k < m && !failed; k++)
                if (!XXH128_isEqual(XXH3_128bits(data[i + k], size[i + k]), sums[i + k]))
                    failed = DIGEST;
            at += (off_t)total;
            i += m;
            continue;
        }
        XXH3_128bits_reset(state);
        for (size_t done = 0; done < size[i] && !failed; done += STEP) {
            char *to = (char *)data[i] + done;
            size_t k = size[i] - done < STEP ? size[i] - done : STEP;
            failed = read_all(fd, to, k, at + (off_t)done);
            XXH3_128bits_update(state, to, k);
        }
        if (!failed && !XXH128_isEqual(XXH3_128bits_digest(state), sums[i]))
            failed = DIGEST;
        at += (off_t)size[i];
        i++;
    }
    XXH3_freeState(state);
    return failed;
}

int floor_restore(const char *directory, int owner, int n, void **data, const size_t *size)
{
    char path[4096];
    XXH128_hash_t *sums = calloc((size_t)n, sizeof *sums);
    int failed;

    if (!sums)
        return MEMORY;
    snprintf(path, sizeof path, "%s/%d.sums", directory, owner);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    failed = fd < 0 ? OPEN : read_all(fd, (char *)sums, (size_t)n * sizeof *sums, 0);
    if (fd >= 0)
        close(fd);
    snprintf(path, sizeof path, "%s/%d.data", directory, owner);
    fd = failed ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (!failed)
        failed = fd < 0 ? OPEN : restore_arrays(fd, n, data, size, sums);
    if (fd >= 0)
        close(fd);
    free(sums);
    return failed;
}
