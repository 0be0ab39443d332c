#pragma once

#include <aio.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <type_traits>

// Finds the original functions that this library wraps.  They are those of the C library, or of
// another preloaded library after this one.
namespace verbena::preload {

// Lists the functions with their types.  The types of the checked functions (__read_chk and others)
// are written out, because the C library's headers declare these functions only to programs that
// are compiled with checks.
#define VB_NEXT_FUNCTIONS(F)                                                        \
  F(read, ssize_t(int, void*, size_t))                                              \
  F(read_chk, ssize_t(int, void*, size_t, size_t))                                  \
  F(readv, ssize_t(int, const iovec*, int))                                         \
  F(recv, ssize_t(int, void*, size_t, int))                                         \
  F(recv_chk, ssize_t(int, void*, size_t, size_t, int))                             \
  F(recvfrom, ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*))              \
  F(recvfrom_chk, ssize_t(int, void*, size_t, size_t, int, sockaddr*, socklen_t*))  \
  F(recvmsg, ssize_t(int, msghdr*, int))                                            \
  F(recvmmsg, int(int, mmsghdr*, unsigned, int, timespec*))                         \
  F(preadv2, ssize_t(int, const iovec*, int, off_t, int))                           \
  F(write, ssize_t(int, const void*, size_t))                                       \
  F(writev, ssize_t(int, const iovec*, int))                                        \
  F(pwritev2, ssize_t(int, const iovec*, int, off_t, int))                          \
  F(send, ssize_t(int, const void*, size_t, int))                                   \
  F(sendto, ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t))     \
  F(sendmsg, ssize_t(int, const msghdr*, int))                                      \
  F(sendmmsg, int(int, mmsghdr*, unsigned, int))                                    \
  F(sendfile, ssize_t(int, int, off_t*, size_t))                                    \
  F(aio_read, int(aiocb*))                                                          \
  F(aio_write, int(aiocb*))                                                         \
  F(lio_listio, int(int, aiocb* const*, int, sigevent*))                            \
  F(splice, ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned))                \
  F(connect, int(int, const sockaddr*, socklen_t))                                  \
  F(accept, int(int, sockaddr*, socklen_t*))                                        \
  F(accept4, int(int, sockaddr*, socklen_t*, int))                                  \
  F(close, int(int))                                                                \
  F(shutdown, int(int, int))                                                        \
  F(dup, int(int))                                                                  \
  F(dup2, int(int, int))                                                            \
  F(dup3, int(int, int, int))                                                       \
  F(fcntl, int(int, int, ...))                                                      \
  F(fcntl64, int(int, int, ...))                                                    \
  F(ioctl, int(int, unsigned long, ...))                                            \
  F(close_range, int(unsigned, unsigned, int))                                      \
  F(fdopen, FILE*(int, const char*))                                                \
  F(vdprintf, int(int, const char*, va_list))                                       \
  F(vdprintf_chk, int(int, int, const char*, va_list))                              \
  F(vasprintf_chk, int(char**, int, const char*, va_list))                          \
  F(fclose, int(FILE*))                                                             \
  F(freopen, FILE*(const char*, const char*, FILE*))                                \
  F(getsockopt, int(int, int, int, void*, socklen_t*))                              \
  F(setsockopt, int(int, int, int, const void*, socklen_t))                         \
  F(poll, int(pollfd*, nfds_t, int))                                                \
  F(ppoll, int(pollfd*, nfds_t, const timespec*, const sigset_t*))                  \
  F(select, int(int, fd_set*, fd_set*, fd_set*, timeval*))                          \
  F(pselect, int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)) \
  F(epoll_create, int(int))                                                         \
  F(epoll_create1, int(int))                                                        \
  F(epoll_ctl, int(int, int, int, epoll_event*))                                    \
  F(epoll_wait, int(int, epoll_event*, int, int))                                   \
  F(epoll_pwait, int(int, epoll_event*, int, int, const sigset_t*))                 \
  F(epoll_pwait2, int(int, epoll_event*, int, const timespec*, const sigset_t*))    \
  F(fork, pid_t())                                                                  \
  F(execve, int(const char*, char* const*, char* const*))                           \
  F(execvpe, int(const char*, char* const*, char* const*))                          \
  F(fexecve, int(int, char* const*, char* const*))                                  \
  F(execveat, int(int, const char*, char* const*, char* const*, int))               \
  F(posix_spawn, int(pid_t*, const char*, const posix_spawn_file_actions_t*,        \
                     const posix_spawnattr_t*, char* const*, char* const*))         \
  F(posix_spawnp, int(pid_t*, const char*, const posix_spawn_file_actions_t*,       \
                      const posix_spawnattr_t*, char* const*, char* const*))        \
  F(posix_spawn_file_actions_init, int(posix_spawn_file_actions_t*))                \
  F(posix_spawn_file_actions_adddup2, int(posix_spawn_file_actions_t*, int, int))   \
  F(system, int(const char*))                                                       \
  F(popen, FILE*(const char*, const char*))                                         \
  F(prctl, int(int, ...))                                                           \
  F(syscall, long(long, ...))

struct NextFunctions {
#define VB_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name;
  VB_NEXT_FUNCTIONS(VB_MEMBER)
#undef VB_MEMBER
};

// Returns the functions.  The first call looks them up, which may allocate memory.  This library's
// constructor makes the first call, unless another library's constructor uses a socket earlier.
const NextFunctions& next();

}  // namespace verbena::preload
