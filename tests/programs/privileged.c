// privileged LIBRARIES: loads the drop-in libraries in the directory LIBRARIES, opens their device,
// and waits for the end of its input.  First prints "privileged" if the kernel has started the
// program with more rights than its caller (AT_SECURE), or else "ordinary".  Loads the libraries by
// path, because a privileged program ignores LD_LIBRARY_PATH.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

static void* load_library(const char* directory, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  return library;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts(getauxval(AT_SECURE) != 0 ? "privileged" : "ordinary");
  load_library(argv[1], "libverbena.so.0");
  void* verbs = load_library(argv[1], "libibverbs.so.1");
  struct ibv_device** (*get_device_list)(int*) =
      (struct ibv_device * *(*)(int*)) dlsym(verbs, "ibv_get_device_list");
  struct ibv_context* (*open_device)(struct ibv_device*) =
      (struct ibv_context * (*)(struct ibv_device*)) dlsym(verbs, "ibv_open_device");
  int count = 0;
  struct ibv_device** devices = get_device_list(&count);
  if (devices == NULL || count < 1 || open_device(devices[0]) == NULL) {
    puts("no device");
    return 1;
  }
  puts("open");
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
