/*
 * A preloaded library between a program and its file system: traces, kills, fails, delays and cuts
 * short the calls on paths below AM_SHIM_ROOT. Built and described by tests/shim/__init__.py.
 *
 * What it injects is given by variables of the environment, and may be changed at run time by the
 * program itself (am_shim_clear, am_shim_set), between two calls on its file system.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 4096
#define RULES 16

enum what { FAIL, FAIL_AFTER, PRETEND, DELAY };

struct rule {
    enum what what;
    char op[24];
    long nth; /* 0: every call */
    int error;
    double seconds;
    char part[256]; /* the path must contain this, unless empty */
    atomic_long seen;
};

static char root[PATH_SIZE];
static size_t root_length;
static char *arm, *kill_ops;
static int trace_fd = -1, rank = -1, chosen = 1;
static const char *bytes_name;
static pthread_mutex_t bytes_lock = PTHREAD_MUTEX_INITIALIZER;
static long kill_at, kill_pid, short_limit = -1, room = -1;
static double mkdir_lie;
static struct rule rules[RULES];
static struct rule full = {.what = FAIL, .error = ENOSPC};
static int rule_count;
static atomic_long calls;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t hidden_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char path[PATH_SIZE];
    double until;
} hidden[64];
static int hidden_count;

static const struct {
    const char *name;
    int value;
} errors[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EINVAL", EINVAL}, {"EINTR", EINTR},
    {"EROFS", EROFS},   {"EEXIST", EEXIST}, {"EDQUOT", EDQUOT}, {"ENOSYS", ENOSYS},
    {"ENOENT", ENOENT}, {"EACCES", EACCES}, {"EPERM", EPERM},   {"EOPNOTSUPP", EOPNOTSUPP},
    {"ESTALE", ESTALE}, {"EMFILE", EMFILE}, {"EFBIG", EFBIG},   {"ENOTDIR", ENOTDIR},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *text, const char *what)
{
    char line[512];
    int n = snprintf(line, sizeof line, "shim: %s: %s\n", text, what);
    syscall(SYS_write, 2, line, (size_t)n);
    _exit(119);
}

/* "op:N:argument[:part]", several separated by ';'. */
static void parse(const char *rules_text, int delay)
{
    char *text = strdup(rules_text), *save = NULL, *one;

    for (one = strtok_r(text, ";", &save); one; one = strtok_r(NULL, ";", &save)) {
        struct rule *r = &rules[rule_count];
        char argument[32];
        const char *name = argument;
        size_t i;

        if (rule_count == RULES)
            die("too many rules", one);
        memset(r, 0, sizeof *r);
        if (sscanf(one, "%23[^:]:%ld:%31[^:]:%255[^\n]", r->op, &r->nth, argument, r->part) < 3)
            die("cannot parse a rule", one);
        if (delay) {
            r->what = DELAY;
            r->seconds = atof(argument);
        } else if (strcmp(argument, "OK") == 0) {
            r->what = PRETEND;
        } else {
            r->what = FAIL;
            if (*name == '+') {
                r->what = FAIL_AFTER;
                name++;
            }
            for (i = 0; i < sizeof errors / sizeof *errors; i++)
                if (strcmp(errors[i].name, name) == 0)
                    r->error = errors[i].value;
            if (r->error == 0)
                die("unknown error", name);
        }
        rule_count++;
    }
    free(text);
}

static void set(const char *name, const char *text)
{
    if (strcmp(name, "KILL") == 0)
        kill_at = atol(text);
    else if (strcmp(name, "KILL_PID") == 0)
        kill_pid = atol(text);
    else if (strcmp(name, "KILL_OPS") == 0)
        kill_ops = strdup(text);
    else if (strcmp(name, "SHORT") == 0)
        short_limit = atol(text);
    else if (strcmp(name, "ROOM") == 0)
        room = atol(text);
    else if (strcmp(name, "MKDIR_LIES") == 0)
        mkdir_lie = atof(text);
    else if (strcmp(name, "FAIL") == 0)
        parse(text, 0);
    else if (strcmp(name, "DELAY") == 0)
        parse(text, 1);
    else
        die("unknown option", name);
}

static void start(void)
{
    static const char *const ranks[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
    static const char *const options[] = {
        "KILL", "KILL_PID", "KILL_OPS", "SHORT", "ROOM", "MKDIR_LIES", "FAIL", "DELAY",
    };
    char *text, variable[64];
    size_t i;

    for (i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if ((text = getenv(ranks[i])) != NULL) {
            rank = atoi(text);
            break;
        }
    text = getenv("AM_SHIM_ROOT");
    if (text == NULL || *text == 0)
        return;
    snprintf(root, sizeof root, "%s", text);
    arm = getenv("AM_SHIM_ARM");
    if ((text = getenv("AM_SHIM_RANK")) != NULL && *text)
        chosen = rank == atoi(text);
    for (i = 0; i < sizeof options / sizeof *options; i++) {
        snprintf(variable, sizeof variable, "AM_SHIM_%s", options[i]);
        if ((text = getenv(variable)) != NULL && *text)
            set(options[i], text);
    }
    if ((text = getenv("AM_SHIM_TRACE")) != NULL && *text) {
        trace_fd = (int)syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (trace_fd < 0)
            die("cannot open the trace", text);
        /* Out of the way of programs that expect their descriptors to be small. */
        int high = (int)syscall(SYS_fcntl, trace_fd, F_DUPFD_CLOEXEC, 900);
        if (high >= 0) {
            syscall(SYS_close, trace_fd);
            trace_fd = high;
        }
    }
    if ((text = getenv("AM_SHIM_BYTES")) != NULL && *text)
        bytes_name = text;
    root_length = strlen(root);
}

/* ---- for the program itself, while none of its threads is in a call below the root ---- */

/* Inject nothing any more, and count calls from 0. */
void am_shim_clear(void)
{
    pthread_once(&once, start);
    kill_at = kill_pid = 0;
    kill_ops = NULL;
    short_limit = room = -1;
    mkdir_lie = 0;
    rule_count = 0;
    hidden_count = 0;
    atomic_store(&calls, 0);
}

/* As the variable AM_SHIM_<name> would. */
void am_shim_set(const char *name, const char *text)
{
    pthread_once(&once, start);
    set(name, text);
}

static int below(const char *path)
{
    return root_length && strncmp(path, root, root_length) == 0 &&
           (path[root_length] == '/' || path[root_length] == 0);
}

static int fd_path(int fd, char *path)
{
    char link[64];
    ssize_t n;
    int saved = errno;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, PATH_SIZE - 1);
    path[n < 0 ? 0 : n] = 0;
    errno = saved;
    return n > 0;
}

static void name_path(int directory, const char *name, char *path)
{
    char base[PATH_SIZE];
    int saved = errno;

    if (name == NULL || *name == '/') {
        snprintf(path, PATH_SIZE, "%s", name ? name : "");
        return;
    }
    if (directory == AT_FDCWD) {
        if (getcwd(base, sizeof base) == NULL)
            base[0] = 0;
    } else
        fd_path(directory, base);
    if (snprintf(path, PATH_SIZE, "%s/%s", base, name) >= PATH_SIZE)
        path[0] = 0;
    errno = saved;
}

static int listed(const char *list, const char *op)
{
    size_t n = strlen(op);
    const char *at = list;

    while ((at = strstr(at, op)) != NULL) {
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == 0))
            return 1;
        at += n;
    }
    return 0;
}

struct call {
    int in;      /* below the root */
    int acts;    /* injections apply */
    double begin;
    void *from; /* where the caller goes on */
    const char *op, *note;
    char path[PATH_SIZE], other[PATH_SIZE];
    struct rule *rule; /* a failure to inject */
    const struct iovec *data; /* what is written, if bytes are kept */
    int fd;
    long offset; /* -1: where the descriptor stands */
};

/* Keep what a write wrote, in a file of each process; `other` becomes "offset position". */
static void keep(struct call *c, long written)
{
    static int fd = -1;
    static pid_t of;
    static long end;
    char name[PATH_SIZE + 32];
    long left = written;
    int i;

    pthread_mutex_lock(&bytes_lock);
    if (fd < 0 || of != getpid()) {
        of = getpid();
        snprintf(name, sizeof name, "%s.%d", bytes_name, (int)of);
        fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            die("cannot keep bytes", name);
        end = (long)syscall(SYS_lseek, fd, 0L, SEEK_END);
    }
    if (c->offset < 0)
        c->offset = (long)syscall(SYS_lseek, c->fd, 0L, SEEK_CUR) - written;
    snprintf(c->other, sizeof c->other, "%ld %ld", c->offset, end);
    for (i = 0; left > 0; i++) {
        long n = (long)c->data[i].iov_len < left ? (long)c->data[i].iov_len : left;
        if (n > 0 && syscall(SYS_pwrite64, fd, c->data[i].iov_base, (size_t)n, end) != n)
            die("cannot keep bytes", bytes_name);
        end += n;
        left -= n;
    }
    pthread_mutex_unlock(&bytes_lock);
}

static void record(struct call *c, long result, int error, long extra)
{
    char line[2 * PATH_SIZE + 512];
    const char *from = "-";
    Dl_info info;
    int n, saved = errno;

    if (trace_fd < 0)
        return;
    if (c->data && bytes_name && result > 0)
        keep(c, result);
    if (c->from && dladdr(c->from, &info) && info.dli_fname) {
        from = strrchr(info.dli_fname, '/');
        from = from ? from + 1 : info.dli_fname;
    }
    n = snprintf(line, sizeof line, "%d\t%d\t%ld\t%.9f\t%.9f\t%s\t%s\t%s\t%ld\t%d\t%ld\t%s\t%.200s\n", rank,
                 (int)getpid(), (long)syscall(SYS_gettid), c->begin, now(), c->op, c->path, c->other, result,
                 result < 0 ? error : 0, extra, c->note, from);
    syscall(SYS_write, trace_fd, line, (size_t)n);
    errno = saved;
}

/* A line in the trace, for what the program wants to say: op "note", the text as path. */
void am_shim_note(const char *text)
{
    struct call c = {.begin = now(), .op = "note", .note = "-"};

    pthread_once(&once, start);
    snprintf(c.path, sizeof c.path, "%s", text);
    record(&c, 0, 0, 0);
}

/* Before a call whose paths are in `c`: kill, delay, find a failure to inject. */
static void before(struct call *c, const char *op)
{
    int i, saved = errno;

    c->op = op;
    c->note = "-";
    c->rule = NULL;
    c->data = NULL;
    c->acts = 0;
    if (!c->in)
        return;
    c->begin = now();
    if (!chosen || (arm && *arm && syscall(SYS_faccessat, AT_FDCWD, arm, F_OK) != 0)) {
        errno = saved;
        return;
    }
    c->acts = 1;
    if (kill_at > 0 && (!kill_ops || !*kill_ops || listed(kill_ops, op))) {
        if (atomic_fetch_add(&calls, 1) + 1 == kill_at) {
            c->note = kill_pid ? "killed-other" : "killed";
            record(c, -1, 0, 0);
            syscall(SYS_kill, kill_pid ? (pid_t)kill_pid : getpid(), SIGKILL);
            c->note = "-";
        }
    }
    for (i = 0; i < rule_count; i++) {
        struct rule *r = &rules[i];
        if (strcmp(r->op, op) != 0 || (r->part[0] && !strstr(c->path, r->part) && !strstr(c->other, r->part)))
            continue;
        long seen = atomic_fetch_add(&r->seen, 1) + 1;
        if (r->nth != 0 && r->nth != seen)
            continue;
        if (r->what == DELAY) {
            struct timespec t = {(time_t)r->seconds, (long)(1e9 * (r->seconds - (double)(time_t)r->seconds))};
            c->note = "delayed";
            nanosleep(&t, NULL);
        } else if (c->rule == NULL)
            c->rule = r;
    }
    errno = saved;
}

/* One interposed call: REAL is an expression that does it. */
#define DO(type, REAL, EXTRA)                                                                      \
    do {                                                                                           \
        type result_;                                                                              \
        int error_;                                                                                \
        if (c.rule && c.rule->what == FAIL) {                                                      \
            result_ = (type)-1;                                                                    \
            errno = c.rule->error;                                                                 \
            c.note = "injected";                                                                   \
        } else if (c.rule && c.rule->what == PRETEND) {                                            \
            result_ = 0;                                                                           \
            c.note = "pretended";                                                                  \
        } else {                                                                                   \
            result_ = (REAL);                                                                      \
            if (c.rule && result_ >= 0) {                                                          \
                result_ = (type)-1;                                                                \
                errno = c.rule->error;                                                             \
                c.note = "done-and-injected";                                                      \
            }                                                                                      \
        }                                                                                          \
        error_ = errno;                                                                            \
        if (c.in)                                                                                  \
            record(&c, (long)result_, error_, (long)(EXTRA));                                      \
        errno = error_;                                                                            \
        return result_;                                                                            \
    } while (0)

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (real == NULL)                                                                              \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);                                       \
    pthread_once(&once, start)

#define ON_FD(OP)                                                                                  \
    struct call c;                                                                                 \
    c.from = __builtin_return_address(0);                                                          \
    c.other[0] = 0;                                                                                \
    c.in = root_length && fd != trace_fd && fd_path(fd, c.path) && below(c.path);                  \
    before(&c, OP)

#define ON_NAME(OP, DIRECTORY, NAME)                                                               \
    struct call c;                                                                                 \
    c.from = __builtin_return_address(0);                                                          \
    c.other[0] = 0;                                                                                \
    c.in = 0;                                                                                      \
    if (root_length) {                                                                             \
        name_path(DIRECTORY, NAME, c.path);                                                        \
        c.in = below(c.path);                                                                      \
    }                                                                                              \
    before(&c, OP)

#define ON_NAMES(OP, DIRECTORY, NAME, OTHER, NEW)                                                  \
    struct call c;                                                                                 \
    c.from = __builtin_return_address(0);                                                          \
    c.in = 0;                                                                                      \
    if (root_length) {                                                                             \
        name_path(DIRECTORY, NAME, c.path);                                                        \
        name_path(OTHER, NEW, c.other);                                                            \
        c.in = below(c.path) || below(c.other);                                                    \
    }                                                                                              \
    before(&c, OP)

static int is_hidden(const char *path)
{
    int i, found = 0;

    pthread_mutex_lock(&hidden_lock);
    for (i = 0; i < hidden_count; i++)
        if (strcmp(hidden[i].path, path) == 0 && now() < hidden[i].until)
            found = 1;
    pthread_mutex_unlock(&hidden_lock);
    return found;
}

static void hide(const char *path)
{
    int i;

    pthread_mutex_lock(&hidden_lock);
    for (i = 0; i < hidden_count; i++)
        if (strcmp(hidden[i].path, path) == 0)
            break;
    if (i == hidden_count && hidden_count < (int)(sizeof hidden / sizeof *hidden)) {
        snprintf(hidden[i].path, sizeof hidden[i].path, "%s", path);
        hidden[i].until = now() + mkdir_lie;
        hidden_count++;
    }
    pthread_mutex_unlock(&hidden_lock);
}

static int gone(struct call *c)
{
    if (mkdir_lie > 0 && c->in && c->acts && is_hidden(c->path)) {
        errno = ENOENT;
        return 1;
    }
    return 0;
}

/* ---- open ---- */

#define MODE                                                                                       \
    mode_t mode = 0;                                                                               \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                           \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode = va_arg(list, mode_t);                                                               \
        va_end(list);                                                                              \
    }

#define OPENAT(SYMBOL)                                                                             \
    int SYMBOL(int directory, const char *name, int flags, ...)                                    \
    {                                                                                              \
        MODE                                                                                       \
        REAL(int, #SYMBOL, int, const char *, int, ...);                                           \
        ON_NAME("openat", directory, name);                                                        \
        DO(int, gone(&c) ? -1 : real(directory, name, flags, mode), flags);                        \
    }
#define OPEN(SYMBOL)                                                                               \
    int SYMBOL(const char *name, int flags, ...)                                                   \
    {                                                                                              \
        MODE                                                                                       \
        REAL(int, #SYMBOL, const char *, int, ...);                                                \
        ON_NAME("openat", AT_FDCWD, name);                                                         \
        DO(int, gone(&c) ? -1 : real(name, flags, mode), flags);                                   \
    }
OPENAT(openat)
OPENAT(openat64)
OPEN(open)
OPEN(open64)

#define OPENAT_2(SYMBOL)                                                                           \
    int SYMBOL(int directory, const char *name, int flags)                                         \
    {                                                                                              \
        REAL(int, #SYMBOL, int, const char *, int);                                                \
        ON_NAME("openat", directory, name);                                                        \
        DO(int, gone(&c) ? -1 : real(directory, name, flags), flags);                              \
    }
#define OPEN_2(SYMBOL)                                                                             \
    int SYMBOL(const char *name, int flags)                                                        \
    {                                                                                              \
        REAL(int, #SYMBOL, const char *, int);                                                     \
        ON_NAME("openat", AT_FDCWD, name);                                                         \
        DO(int, gone(&c) ? -1 : real(name, flags), flags);                                         \
    }
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)
OPEN_2(__open_2)
OPEN_2(__open64_2)

#define FSTATAT(SYMBOL, STRUCT)                                                                    \
    int SYMBOL(int directory, const char *name, STRUCT *restrict st, int flags)                    \
    {                                                                                              \
        REAL(int, #SYMBOL, int, const char *, STRUCT *, int);                                      \
        if (mkdir_lie > 0) {                                                                       \
            struct call c;                                                                         \
            name_path(directory, name, c.path);                                                    \
            c.in = c.acts = below(c.path);                                                         \
            if (gone(&c))                                                                          \
                return -1;                                                                         \
        }                                                                                          \
        return real(directory, name, st, flags);                                                   \
    }
FSTATAT(fstatat, struct stat)
FSTATAT(fstatat64, struct stat64)

/* ---- names ---- */

static int lie(struct call *c, int result)
{
    if (mkdir_lie > 0 && c->in && c->acts) {
        hide(c->path);
        c->note = "lied";
        errno = EEXIST;
        return -1;
    }
    return result;
}

int mkdirat(int directory, const char *name, mode_t mode)
{
    REAL(int, "mkdirat", int, const char *, mode_t);
    ON_NAME("mkdirat", directory, name);
    DO(int, lie(&c, real(directory, name, mode)), mode);
}

int mkdir(const char *name, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    ON_NAME("mkdirat", AT_FDCWD, name);
    DO(int, lie(&c, real(name, mode)), mode);
}

int renameat2(int from, const char *name, int to, const char *new, unsigned int flags)
{
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned int);
    ON_NAMES("renameat2", from, name, to, new);
    DO(int, real(from, name, to, new, flags), flags);
}

int renameat(int from, const char *name, int to, const char *new)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    ON_NAMES("renameat", from, name, to, new);
    DO(int, real(from, name, to, new), 0);
}

int rename(const char *name, const char *new)
{
    REAL(int, "rename", const char *, const char *);
    ON_NAMES("renameat", AT_FDCWD, name, AT_FDCWD, new);
    DO(int, real(name, new), 0);
}

int linkat(int from, const char *name, int to, const char *new, int flags)
{
    REAL(int, "linkat", int, const char *, int, const char *, int);
    ON_NAMES("linkat", from, name, to, new);
    DO(int, real(from, name, to, new, flags), flags);
}

int link(const char *name, const char *new)
{
    REAL(int, "link", const char *, const char *);
    ON_NAMES("linkat", AT_FDCWD, name, AT_FDCWD, new);
    DO(int, real(name, new), 0);
}

int unlinkat(int directory, const char *name, int flags)
{
    REAL(int, "unlinkat", int, const char *, int);
    ON_NAME("unlinkat", directory, name);
    DO(int, real(directory, name, flags), flags);
}

int unlink(const char *name)
{
    REAL(int, "unlink", const char *);
    ON_NAME("unlinkat", AT_FDCWD, name);
    DO(int, real(name), 0);
}

int rmdir(const char *name)
{
    REAL(int, "rmdir", const char *);
    ON_NAME("unlinkat", AT_FDCWD, name);
    DO(int, real(name), AT_REMOVEDIR);
}

/* ---- bytes ---- */

#define WRITES(DATA, FD, OFFSET)                                                                   \
    c.data = (DATA);                                                                               \
    c.fd = (FD);                                                                                   \
    c.offset = (long)(OFFSET)

static size_t cut(struct call *c, size_t n)
{
    static _Thread_local unsigned int state = 12345;

    if (!c->in || !c->acts || n == 0)
        return n;
    if (room >= 0) {
        if (room == 0 && c->rule == NULL)
            c->rule = &full;
        if ((long)n > room)
            n = (size_t)room;
        room -= (long)n;
    }
    if (short_limit < 0)
        return n;
    c->note = "short";
    if (short_limit == 0)
        return 0;
    state = state * 1103515245u + 12345u;
    size_t limit = 1 + (state >> 8) % (size_t)short_limit;
    return n < limit ? n : limit;
}

static size_t length_of(const struct iovec *v, int count)
{
    size_t total = 0;
    int i;

    for (i = 0; i < count; i++)
        total += v[i].iov_len;
    return total;
}

ssize_t write(int fd, const void *data, size_t n)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    ON_FD("write");
    size_t part = cut(&c, n);
    struct iovec one = {(void *)(uintptr_t)data, n};
    WRITES(&one, fd, -1);
    DO(ssize_t, n && !part ? 0 : real(fd, data, part), n);
}

#define PWRITE(SYMBOL, OFFSET)                                                                     \
    ssize_t SYMBOL(int fd, const void *data, size_t n, OFFSET offset)                              \
    {                                                                                              \
        REAL(ssize_t, #SYMBOL, int, const void *, size_t, OFFSET);                                 \
        ON_FD("pwrite");                                                                           \
        size_t part = cut(&c, n);                                                                  \
        struct iovec one = {(void *)(uintptr_t)data, n};                                           \
        WRITES(&one, fd, offset);                                                                  \
        DO(ssize_t, n && !part ? 0 : real(fd, data, part, offset), n);                             \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* The first buffers that hold `part` bytes together. */
static int trim(const struct iovec *from, int count, struct iovec *to, size_t part)
{
    int used = 0;

    while (used < count && used < IOV_MAX && part > 0) {
        to[used] = from[used];
        if (to[used].iov_len > part)
            to[used].iov_len = part;
        part -= to[used].iov_len;
        used++;
    }
    return used;
}

ssize_t writev(int fd, const struct iovec *v, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    ON_FD("writev");
    size_t n = length_of(v, count), part = cut(&c, n);
    WRITES(v, fd, -1);
    struct iovec trimmed[IOV_MAX];
    if (part < n)
        count = trim(v, count, trimmed, part);
    DO(ssize_t, n && !part ? 0 : real(fd, part < n ? trimmed : v, count), n);
}

#define PWRITEV(SYMBOL, OFFSET)                                                                    \
    ssize_t SYMBOL(int fd, const struct iovec *v, int count, OFFSET offset)                        \
    {                                                                                              \
        REAL(ssize_t, #SYMBOL, int, const struct iovec *, int, OFFSET);                            \
        ON_FD("pwritev");                                                                          \
        size_t n = length_of(v, count), part = cut(&c, n);                                         \
        WRITES(v, fd, offset);                                                                     \
        struct iovec trimmed[IOV_MAX];                                                             \
        if (part < n)                                                                              \
            count = trim(v, count, trimmed, part);                                                 \
        DO(ssize_t, n && !part ? 0 : real(fd, part < n ? trimmed : v, count, offset), n);          \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define FALLOCATE(SYMBOL, OFFSET)                                                                  \
    int SYMBOL(int fd, int mode, OFFSET offset, OFFSET length)                                     \
    {                                                                                              \
        REAL(int, #SYMBOL, int, int, OFFSET, OFFSET);                                              \
        ON_FD("fallocate");                                                                        \
        DO(int, real(fd, mode, offset, length), length);                                           \
    }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)

#define FTRUNCATE(SYMBOL, OFFSET)                                                                  \
    int SYMBOL(int fd, OFFSET length)                                                              \
    {                                                                                              \
        REAL(int, #SYMBOL, int, OFFSET);                                                           \
        ON_FD("ftruncate");                                                                        \
        DO(int, real(fd, length), length);                                                         \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

/* ---- durability ---- */

int fdatasync(int fd)
{
    REAL(int, "fdatasync", int);
    ON_FD("fdatasync");
    DO(int, real(fd), 0);
}

int fsync(int fd)
{
    REAL(int, "fsync", int);
    ON_FD("fsync");
    DO(int, real(fd), 0);
}

int close(int fd)
{
    REAL(int, "close", int);
    if (fd == trace_fd && fd >= 0)
        return 0;
    ON_FD("close");
    DO(int, real(fd), 0);
}
