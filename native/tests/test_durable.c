/* Unit tests of durable.c, in a folder of their own below $TMPDIR or /tmp. Exit status 0 if all
 * hold; each failed check names its line. */
#define SEAM_REAL
#include "seam.h"

#include "durable.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int directory, failures, checks;
static const char *current;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        checks++;                                                                                  \
        if (!(condition)) {                                                                        \
            failures++;                                                                            \
            fprintf(stderr, "%s, line %d: not so: %s\n", current, __LINE__, #condition);           \
        }                                                                                          \
    } while (0)

static struct am_target target(const char *name, const char *text)
{
    struct am_target t = {directory, -1, "temporary", name, -1, AM_BY_RENAME, 1};
    struct iovec one = {(void *)text, strlen(text)};
    int64_t written = 0;

    CHECK(am_create(directory, t.temporary, &t.fd) == 0);
    CHECK(am_write(t.fd, &one, 1, 0, &written) == 0);
    t.size = written;
    return t;
}

static int holds(const char *name, const char *text)
{
    char data[256];
    int fd = openat(directory, name, O_RDONLY);
    ssize_t n;

    if (fd < 0)
        return 0;
    n = read(fd, data, sizeof data);
    close(fd);
    return n == (ssize_t)strlen(text) && memcmp(data, text, (size_t)n) == 0;
}

static int exists(const char *name)
{
    return faccessat(directory, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static int is_closed(int fd)
{
    return fcntl(fd, F_GETFD) < 0 && errno == EBADF;
}

static void remove_all(void)
{
    static const char *const names[] = {"temporary", "final", "link", "big", "fifo"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof *names; i++)
        unlinkat(directory, names[i], 0);
    unlinkat(directory, "made", AT_REMOVEDIR);
}

/* ---- the four stages ---- */

static void commit_in_order(void)
{
    enum am_stage failed;
    struct am_target t = target("final", "hello");
    int fd = t.fd;

    CHECK(!exists("final"));
    CHECK(am_commit(&t, &failed) == 0);
    CHECK(strcmp(seam_log, "owscnd") == 0);
    CHECK(t.fd == -1 && is_closed(fd));
    CHECK(t.manner == AM_BY_RENAME);
    CHECK(holds("final", "hello") && !exists("temporary"));
}

static void commit_without_directory_sync(void)
{
    enum am_stage failed;
    struct am_target t = target("final", "hello");

    t.sync_directory = 0;
    CHECK(am_commit(&t, &failed) == 0);
    CHECK(seam_count[SEAM_FSYNC] == 0 && holds("final", "hello"));
}

static void commit_by_link(void)
{
    static const int answers[] = {EINVAL, ENOSYS, EOPNOTSUPP};
    enum am_stage failed;
    size_t i;

    for (i = 0; i < 3; i++) {
        struct am_target t;
        seam_reset();
        t = target("final", "hello");
        seam[SEAM_RENAMEAT2] = (struct seam_plan){-1, answers[i], 0, -1};
        CHECK(am_commit(&t, &failed) == 0);
        CHECK(strcmp(seam_log, "owscnldu") == 0);
        CHECK(t.manner == AM_BY_LINK);
        CHECK(holds("final", "hello") && !exists("temporary"));
        remove_all();
    }
}

static void commit_by_link_at_once(void)
{
    enum am_stage failed;
    struct am_target t = target("final", "hello");

    t.manner = AM_BY_LINK;
    CHECK(am_commit(&t, &failed) == 0);
    CHECK(strcmp(seam_log, "owscldu") == 0 && holds("final", "hello"));
}

static void nothing_is_replaced(void)
{
    enum am_stage failed;
    struct am_target t = target("final", "first");
    enum am_manner manner;

    CHECK(am_commit(&t, &failed) == 0);
    for (manner = AM_BY_RENAME; manner <= AM_BY_LINK; manner++) {
        t = target("final", "second");
        t.manner = manner;
        CHECK(am_commit(&t, &failed) == EEXIST && failed == AM_RENAME);
        CHECK(holds("final", "first") && exists("temporary"));
        unlinkat(directory, "temporary", 0);
    }
}

/* The server did it and answered with an error: the name is ours. */
static void an_error_after_it_was_done(void)
{
    static const int answers[] = {EEXIST, EIO, EINTR};
    enum am_stage failed;
    size_t i;

    for (i = 0; i < 6; i++) {
        struct am_target t;
        seam_reset();
        t = target("final", "hello");
        t.manner = i % 2 ? AM_BY_LINK : AM_BY_RENAME;
        seam[i % 2 ? SEAM_LINKAT : SEAM_RENAMEAT2] = (struct seam_plan){1, answers[i / 2], 1, -1};
        CHECK(am_commit(&t, &failed) == 0);
        CHECK(holds("final", "hello") && !exists("temporary"));
        CHECK(seam_count[SEAM_FSYNC] == 1);
        remove_all();
    }
}

static void each_stage_is_named(void)
{
    static const struct {
        enum seam_call call;
        enum am_stage stage;
        const char *log;
    } cases[] = {
        {SEAM_FDATASYNC, AM_SYNC_DATA, "owsc"},
        {SEAM_CLOSE, AM_CLOSE, "owsc"},
        {SEAM_RENAMEAT2, AM_RENAME, "owscn"},
        {SEAM_FSYNC, AM_SYNC_DIRECTORY, "owscnd"},
    };
    static const int answers[] = {EIO, ENOSPC, EDQUOT};
    size_t i, k;

    for (i = 0; i < sizeof cases / sizeof *cases; i++)
        for (k = 0; k < 3; k++) {
            enum am_stage failed = AM_CREATE;
            struct am_target t;
            int fd;
            seam_reset();
            t = target("final", "hello");
            fd = t.fd;
            seam[cases[i].call] = (struct seam_plan){1, answers[k], 0, -1};
            CHECK(am_commit(&t, &failed) == answers[k]);
            CHECK(failed == cases[i].stage);
            /* Not tried again, and nothing done after it. */
            CHECK(strcmp(seam_log, cases[i].log) == 0);
            CHECK(is_closed(fd));
            CHECK(exists("final") == (failed == AM_SYNC_DIRECTORY));
            remove_all();
        }
}

static void only_eintr_is_tried_again(void)
{
    static const enum seam_call kinds[] = {SEAM_FDATASYNC, SEAM_RENAMEAT2, SEAM_FSYNC};
    enum am_stage failed;
    size_t i;

    for (i = 0; i < 3; i++) {
        struct am_target t;
        seam_reset();
        t = target("final", "hello");
        seam[kinds[i]] = (struct seam_plan){3, EINTR, 0, -1};
        CHECK(am_commit(&t, &failed) == 0);
        CHECK(seam_count[kinds[i]] == 4 && holds("final", "hello"));
        remove_all();
    }
    /* After close, EINTR or not, the descriptor is gone: closing again could close another's. */
    seam_reset();
    struct am_target t = target("final", "hello");
    seam[SEAM_CLOSE] = (struct seam_plan){1, EINTR, 0, -1};
    CHECK(am_commit(&t, &failed) == 0);
    CHECK(seam_count[SEAM_CLOSE] == 1 && holds("final", "hello"));
}

static void a_wrong_size_is_found(void)
{
    enum am_stage failed;
    struct am_target t = target("final", "hello");
    int fd = t.fd;

    t.size = 6;
    CHECK(am_commit(&t, &failed) == EIO && failed == AM_WRITE);
    CHECK(!exists("final") && is_closed(fd));
}

static void a_second_name_that_stays_is_no_failure(void)
{
    enum am_stage failed;
    struct am_target t = target("final", "hello");

    t.manner = AM_BY_LINK;
    seam[SEAM_UNLINKAT] = (struct seam_plan){1, EIO, 0, -1};
    CHECK(am_commit(&t, &failed) == 0);
    CHECK(holds("final", "hello") && exists("temporary"));
}

/* ---- bytes ---- */

static void many_buffers_and_short_writes(void)
{
    enum { COUNT = 3000, EACH = 700 };
    static unsigned char data[COUNT * EACH], back[COUNT * EACH + 1];
    static struct iovec buffers[COUNT];
    static const int limits[] = {-1, 1 << 16, 333};
    size_t i, k, got;
    int64_t written;
    int fd;

    for (i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (i = 0; i < COUNT; i++) { /* empty buffers in between */
        buffers[i].iov_base = data + i * EACH;
        buffers[i].iov_len = i % 3 == 1 ? 0 : i % 3 == 0 && i + 1 < COUNT ? 2 * EACH : EACH;
    }
    for (k = 0; k < 3; k++) {
        seam_reset();
        CHECK(am_create(directory, "big", &fd) == 0);
        seam[SEAM_PWRITEV] = (struct seam_plan){-1, 0, 0, limits[k]};
        written = 0;
        CHECK(am_write(fd, buffers, COUNT, 0, &written) == 0);
        CHECK(written == (int64_t)sizeof data);
        CHECK(am_read(fd, back, sizeof back, 0, &got) == 0);
        CHECK(got == sizeof data && memcmp(data, back, sizeof data) == 0);
        if (k == 0) /* batches of 256 buffers, steps of 1 MiB */
            CHECK(seam_count[SEAM_PWRITEV] <= COUNT / 256 + 3);
        close(fd);
        unlinkat(directory, "big", 0);
    }
}

static void a_large_buffer_goes_in_steps(void)
{
    static char data[5 << 20];
    struct iovec one = {data, sizeof data};
    int64_t written = 0;
    struct stat st;
    int fd;

    CHECK(am_create(directory, "big", &fd) == 0);
    CHECK(am_write(fd, &one, 1, 4096, &written) == 0);
    CHECK(written == (int64_t)sizeof data && seam_count[SEAM_PWRITEV] == 5);
    CHECK(fstat(fd, &st) == 0 && st.st_size == 4096 + (off_t)sizeof data);
    close(fd);
}

static void no_progress_ends_in_an_error(void)
{
    struct iovec one = {"hello", 5};
    int64_t written = 0;
    int fd;

    CHECK(am_create(directory, "big", &fd) == 0);
    seam[SEAM_PWRITEV] = (struct seam_plan){-1, 0, 0, 0};
    CHECK(am_write(fd, &one, 1, 0, &written) == EIO && written == 0);
    CHECK(seam_count[SEAM_PWRITEV] < 100);
    /* A few idle calls in a row are none. */
    seam[SEAM_PWRITEV] = (struct seam_plan){3, 0, 0, 0};
    CHECK(am_write(fd, &one, 1, 0, &written) == 0 && written == 5);
    seam[SEAM_PWRITEV] = (struct seam_plan){3, EINTR, 0, -1};
    CHECK(am_write(fd, &one, 1, 5, &written) == 0 && written == 10);
    seam[SEAM_PWRITEV] = (struct seam_plan){1, ENOSPC, 0, -1};
    CHECK(am_write(fd, &one, 1, 10, &written) == ENOSPC && written == 10);
    CHECK(am_write(fd, NULL, 0, 10, &written) == 0 && written == 10);
    close(fd);
}

static void reserving(void)
{
    struct stat st;
    int fd;

    CHECK(am_create(directory, "big", &fd) == 0);
    CHECK(am_preallocate(fd, 1 << 20) == 0);
    CHECK(fstat(fd, &st) == 0 && st.st_size == 0);
    CHECK(am_preallocate(fd, 0) == 0);
    seam[SEAM_FALLOCATE] = (struct seam_plan){1, EOPNOTSUPP, 0, -1};
    CHECK(am_preallocate(fd, 1 << 20) == 0);
    seam[SEAM_FALLOCATE] = (struct seam_plan){1, ENOSPC, 0, -1};
    CHECK(am_preallocate(fd, 1 << 20) == ENOSPC);
    close(fd);
}

static void reading(void)
{
    struct am_target t = target("final", "hello world");
    enum am_stage failed;
    char data[32];
    int64_t size;
    size_t got;
    int fd;

    CHECK(am_commit(&t, &failed) == 0);
    CHECK(am_open_file(directory, "final", &fd, &size) == 0 && size == 11);
    seam[SEAM_PREAD] = (struct seam_plan){-1, 0, 0, 2};
    CHECK(am_read(fd, data, 5, 6, &got) == 0 && got == 5 && memcmp(data, "world", 5) == 0);
    CHECK(am_read(fd, data, 32, 6, &got) == 0 && got == 5);
    CHECK(am_read(fd, data, 32, 100, &got) == 0 && got == 0);
    seam[SEAM_PREAD] = (struct seam_plan){2, EINTR, 0, -1};
    CHECK(am_read(fd, data, 11, 0, &got) == 0 && got == 11);
    seam[SEAM_PREAD] = (struct seam_plan){1, EIO, 0, -1};
    CHECK(am_read(fd, data, 11, 0, &got) == EIO);
    close(fd);
}

/* ---- names ---- */

static void only_regular_files_are_read(void)
{
    int64_t size;
    int fd;

    CHECK(mkfifoat(directory, "fifo", 0600) == 0);
    CHECK(symlinkat("fifo", directory, "link") == 0);
    CHECK(am_open_file(directory, "fifo", &fd, &size) == 0 && fd == -1 && size == -1);
    CHECK(am_open_file(directory, "link", &fd, &size) == 0 && fd == -1 && size == -1);
    CHECK(am_open_file(directory, ".", &fd, &size) == 0 && fd == -1 && size == -1);
    CHECK(am_open_file(directory, "missing", &fd, &size) == ENOENT);
}

static void no_link_is_followed(void)
{
    int fd, made;

    CHECK(symlinkat("elsewhere", directory, "link") == 0);
    CHECK(am_create(directory, "link", &fd) == EEXIST);
    CHECK(!exists("elsewhere"));
    CHECK(am_make_directory(directory, "link", &made) == 0 && !made);
    unlinkat(directory, "link", 0);
    CHECK(symlinkat(".", directory, "link") == 0);
    CHECK(am_open_directory(directory, "link", &fd) != 0);
}

static void directories(void)
{
    int fd, made;

    CHECK(am_make_directory(directory, "made", &made) == 0 && made);
    CHECK(am_make_directory(directory, "made", &made) == 0 && !made);
    CHECK(am_open_directory(directory, "made", &fd) == 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK(am_sync_directory(fd) == 0);
    close(fd);
    seam[SEAM_MKDIRAT] = (struct seam_plan){1, ENOSPC, 0, -1};
    CHECK(am_make_directory(directory, "other", &made) == ENOSPC);
    CHECK(am_create(directory, "temporary", &fd) == 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    CHECK(am_create(directory, "temporary", &fd) == EEXIST);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
#define TEST(name) {#name, name}
        TEST(commit_in_order),
        TEST(commit_without_directory_sync),
        TEST(commit_by_link),
        TEST(commit_by_link_at_once),
        TEST(nothing_is_replaced),
        TEST(an_error_after_it_was_done),
        TEST(each_stage_is_named),
        TEST(only_eintr_is_tried_again),
        TEST(a_wrong_size_is_found),
        TEST(a_second_name_that_stays_is_no_failure),
        TEST(many_buffers_and_short_writes),
        TEST(a_large_buffer_goes_in_steps),
        TEST(no_progress_ends_in_an_error),
        TEST(reserving),
        TEST(reading),
        TEST(only_regular_files_are_read),
        TEST(no_link_is_followed),
        TEST(directories),
    };
    const char *base = getenv("TMPDIR");
    char folder[PATH_MAX];
    size_t i;

    snprintf(folder, sizeof folder, "%s/am-ctest-XXXXXX", base ? base : "/tmp");
    if (mkdtemp(folder) == NULL || (directory = open(folder, O_RDONLY | O_DIRECTORY)) < 0) {
        perror(folder);
        return 2;
    }
    for (i = 0; i < sizeof tests / sizeof *tests; i++) {
        int before = failures;
        current = tests[i].name;
        seam_reset();
        tests[i].run();
        remove_all();
        printf("%s %s\n", failures == before ? "ok    " : "NOT OK", current);
    }
    rmdir(folder);
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
