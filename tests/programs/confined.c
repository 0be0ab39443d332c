// confined COMMAND...: runs a command as in a usual container.  A filter refuses the system calls
// that container profiles refuse.  Receive buffers have the kernel's default size, which no call
// can change.  The limits of descriptors and of locked memory are low.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define RETURN_ERROR(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define REFUSE(number, error) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), RETURN_ERROR(error)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int install_filter(void) {
  struct sock_filter code[] = {
      LOAD(nr),
      REFUSE(SYS_unshare, EPERM),
      REFUSE(SYS_setns, EPERM),
      REFUSE(SYS_mount, EPERM),
      REFUSE(SYS_ptrace, EPERM),
      REFUSE(SYS_process_vm_readv, EPERM),
      REFUSE(SYS_process_vm_writev, EPERM),
      REFUSE(SYS_io_uring_setup, EPERM),
      REFUSE(SYS_io_uring_enter, EPERM),
      REFUSE(SYS_io_uring_register, EPERM),
      REFUSE(SYS_pidfd_getfd, EPERM),
      REFUSE(SYS_bpf, EPERM),
      REFUSE(SYS_perf_event_open, EPERM),
      REFUSE(SYS_userfaultfd, EPERM),
      REFUSE(SYS_kcmp, EPERM),
      REFUSE(SYS_clone3, ENOSYS),
      // A call that sets the size of the receive buffer fails, or returns 0 and has no effect.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 1, 0),
      ALLOW,
      LOAD(args[1]),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_SOCKET, 1, 0),
      ALLOW,
      LOAD(args[2]),
      REFUSE(SO_RCVBUFFORCE, EPERM),
      REFUSE(SO_SNDBUFFORCE, EPERM),
      REFUSE(SO_RCVBUF, 0),
      ALLOW,
  };
  const struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  struct rlimit files, memory = {8 << 20, 8 << 20};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = 1024;
  if (setrlimit(RLIMIT_NOFILE, &files) != 0 || setrlimit(RLIMIT_MEMLOCK, &memory) != 0 ||
      install_filter() != 0) {
    fprintf(stderr, "confined: %s\n", strerror(errno));
    return 125;
  }
  execvp(argv[1], argv + 1);
  fprintf(stderr, "confined: %s: %s\n", argv[1], strerror(errno));
  return 127;
}
