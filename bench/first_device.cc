// Gets the list of devices, like the smallest possible RDMA program.  With the argument "hold" it
// then prints the number of devices, and waits until its input ends.
#include <infiniband/verbs.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices != nullptr) ibv_free_device_list(devices);
  if (argc > 1 && std::strcmp(argv[1], "hold") == 0) {
    std::printf("holding %d\n", count);
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
  }
}
