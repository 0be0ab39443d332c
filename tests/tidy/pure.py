"""Checks the object code of PURE layers, which may not use the operating system.

Arguments: nm, then the archives.  The object code may use memory and mutexes, and print a last message to stderr before
abort().  It may not use clocks, sources of random numbers, files, sockets, the environment, threads or sleep.
"""
import os
import re
import subprocess
import sys

C_FUNCTIONS = {
    "a clock": "clock_gettime clock_getres gettimeofday time times ftime localtime gmtime "
               "localtime_r gmtime_r mktime timer_create timerfd_create timerfd_settime",
    "a source of random numbers": "getrandom getentropy rand rand_r srand random srandom arc4random drand48",
    "a file": "open open64 openat openat64 creat fopen fopen64 freopen fdopen read pread pread64 "
              "readv write pwrite pwrite64 writev close fcntl fcntl64 ioctl stat lstat fstat "
              "access unlink rename mkdir opendir dup dup2 pipe pipe2 eventfd memfd_create "
              "shm_open mmap mmap64 munmap mprotect madvise",
    "a socket": "socket socketpair bind listen accept accept4 connect send sendto sendmsg sendmmsg "
                "recv recvfrom recvmsg recvmmsg setsockopt getsockopt shutdown getaddrinfo "
                "getifaddrs if_nametoindex if_indextoname select poll ppoll epoll_create1 "
                "epoll_ctl epoll_wait",
    "the environment": "getenv secure_getenv setenv putenv environ getpid getppid gettid getuid "
                       "geteuid gethostname uname sysconf getauxval",
    "a thread": "pthread_create pthread_join pthread_detach pthread_cond_wait "
                "pthread_cond_timedwait pthread_cond_clockwait sem_wait sem_timedwait fork vfork "
                "clone execve posix_spawn system popen kill signal sigaction",
    "sleep": "nanosleep clock_nanosleep usleep sleep sched_yield",
    "a system call": "syscall",
}
BANNED = {name: what for what, names in C_FUNCTIONS.items() for name in names.split()}
CXX = [
    (re.compile(r"^_ZNSt6chrono.*3nowEv$"), "a clock"),
    (re.compile(r"^_ZNSt13random_device"), "a source of random numbers"),
    (re.compile(r"^_ZN?K?St13?basic_.?fstream|^_ZNSt1[345]basic_[io]?f(ile|stream)|"
                r"^_ZNS?t?10filesystem|^_ZNSt10filesystem"), "a file"),
    (re.compile(r"^_ZNSt6thread|^_ZNSt18condition_variable|^_ZNSt22condition_variable_any"), "a thread"),
    (re.compile(r"^_ZSt(4cout|4cerr|4clog|3cin)$"), "a stream of the process"),
]


def why_banned(symbol):
    name = symbol.split("@")[0].removeprefix("__").removesuffix("_chk") if symbol.startswith("__") \
        else symbol.split("@")[0]
    if name in BANNED:
        return BANNED[name]
    return next((what for pattern, what in CXX if pattern.search(symbol)), None)


def main():
    nm, *archives = sys.argv[1:]
    faults = []
    objects = 0
    for archive in archives:
        if not os.path.exists(archive):
            faults.append(f"{archive} is not built")
            continue
        listing = subprocess.run([nm, "--undefined-only", archive], capture_output=True, text=True,
                                 check=True).stdout
        where = ""
        for line in listing.splitlines():
            if line.endswith(":"):
                where = f"{archive.rsplit('/', 1)[-1]}:{line[:-1]}"
                objects += 1
            elif line.strip() and (what := why_banned(line.split()[-1])):
                faults.append(f"{where}: {line.split()[-1]} is {what}")
    print("\n".join(faults) if faults else f"{objects} objects of {len(archives)} layers are pure")
    return bool(faults)


sys.exit(main())
