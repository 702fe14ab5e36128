/* Fails those calls of this process that touch one folder, from the n-th on or only the n-th.
 *
 * Preloaded by io_errors.py, which calls io_errors_arm through ctypes. What does not fail goes straight to
 * the kernel, so the functions of the C library need not be looked up. Files are known by absolute path:
 * a path relative to a folder's descriptor, as only shutil uses it, always passes.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, WRITE, SYNC, RENAME, LINK, UNLINK, TRUNCATE, MKDIR, READ, NUM_KINDS };

static char folder[PATH_MAX];
static int kinds, error_number, stays;
static long failing_call;
static atomic_long calls, failed[NUM_KINDS];
static _Thread_local long this_call; /* the number of the call under way, 0 if it is not one of ours */

/* Count, from now, the calls whose kinds are ones in wanted_kinds, and fail the n-th; 0 fails none. */
void io_errors_arm(const char *path, int wanted_kinds, long nth, int error, int stay) {
    strncpy(folder, path, sizeof folder - 1);
    kinds = wanted_kinds, failing_call = nth, error_number = error, stays = stay;
    calls = 0;
}

long io_errors_calls(void) { return calls; }
long io_errors_failed(int kind) { return failed[kind]; }

static int fails(enum kind kind, const char *path) {
    this_call = 0;
    if (!(kinds >> kind & 1) || strncmp(path, folder, strlen(folder))) return 0;
    this_call = ++calls;
    if (!failing_call || (stays ? this_call < failing_call : this_call != failing_call)) return 0;
    failed[kind]++;
    errno = error_number;
    return 1;
}

static int fails_at(enum kind kind, int fd) {
    char link[40], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = kinds >> kind & 1 ? readlink(link, path, sizeof path - 1) : 0;
    path[length > 0 ? length : 0] = 0;
    return fails(kind, path);
}

/* A disk that fills up takes a part of what is written before it refuses the rest. */
static size_t taken(size_t size) {
    int is_next = error_number == ENOSPC && this_call && this_call + 1 == failing_call;
    return is_next && size > 1 ? size / 2 : size;
}

static int open_at(int at, const char *path, int flags, va_list more) {
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    enum kind kind = (flags & O_ACCMODE) == O_RDONLY ? READ : OPEN;
    return fails(kind, path) ? -1 : (int)syscall(SYS_openat, at, path, flags, mode);
}

#define OPENS(declaration, at)                   \
    int declaration {                            \
        va_list more;                            \
        va_start(more, flags);                   \
        int fd = open_at(at, path, flags, more); \
        va_end(more);                            \
        return fd;                               \
    }

OPENS(open(const char *path, int flags, ...), AT_FDCWD)
OPENS(open64(const char *path, int flags, ...), AT_FDCWD)
OPENS(openat(int at, const char *path, int flags, ...), at)
OPENS(openat64(int at, const char *path, int flags, ...), at)

DIR *opendir(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? NULL : fdopendir(fd);
}

#define CALL(type, declaration, failure, ...) \
    type declaration { return failure ? -1 : (type)syscall(__VA_ARGS__); }

CALL(ssize_t, read(int fd, void *to, size_t n), fails_at(READ, fd), SYS_read, fd, to, n)
CALL(ssize_t, pread(int fd, void *to, size_t n, off_t at), fails_at(READ, fd), SYS_pread64, fd, to, n, at)
CALL(ssize_t, pread64(int fd, void *to, size_t n, off_t at), fails_at(READ, fd), SYS_pread64, fd, to, n, at)

CALL(ssize_t, write(int fd, const void *from, size_t n), fails_at(WRITE, fd), SYS_write, fd, from, taken(n))
CALL(ssize_t, pwrite(int fd, const void *from, size_t n, off_t at), fails_at(WRITE, fd), SYS_pwrite64, fd, from,
     taken(n), at)
CALL(ssize_t, pwrite64(int fd, const void *from, size_t n, off_t at), fails_at(WRITE, fd), SYS_pwrite64, fd, from,
     taken(n), at)
CALL(ssize_t, writev(int fd, const struct iovec *from, int n), fails_at(WRITE, fd), SYS_writev, fd, from, n)

CALL(int, fsync(int fd), fails_at(SYNC, fd), SYS_fsync, fd)
CALL(int, fdatasync(int fd), fails_at(SYNC, fd), SYS_fdatasync, fd)
CALL(int, ftruncate(int fd, off_t size), fails_at(TRUNCATE, fd), SYS_ftruncate, fd, size)
CALL(int, ftruncate64(int fd, off_t size), fails_at(TRUNCATE, fd), SYS_ftruncate, fd, size)

CALL(int, mkdir(const char *path, mode_t mode), fails(MKDIR, path), SYS_mkdirat, AT_FDCWD, path, mode)
CALL(int, unlink(const char *path), fails(UNLINK, path), SYS_unlinkat, AT_FDCWD, path, 0)
CALL(int, unlinkat(int at, const char *path, int flags), fails(UNLINK, path), SYS_unlinkat, at, path, flags)
CALL(int, link(const char *from, const char *to), fails(LINK, to), SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0)
CALL(int, linkat(int from_at, const char *from, int at, const char *to, int flags), fails(LINK, to), SYS_linkat,
     from_at, from, at, to, flags)
CALL(int, rename(const char *from, const char *to), fails(RENAME, to), SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)
CALL(int, renameat(int from_at, const char *from, int at, const char *to), fails(RENAME, to), SYS_renameat2, from_at,
     from, at, to, 0)
