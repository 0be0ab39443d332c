// misuse: passes freed memory to the library, which writes to it, so that a sanitizer or valgrind
// reports the error.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_context* context = list != NULL ? ibv_open_device(list[0]) : NULL;
  struct ibv_device_attr* attr = malloc(sizeof *attr);
  if (context == NULL || attr == NULL) return 2;
  free(attr);
#pragma GCC diagnostic ignored "-Wuse-after-free"
  const int error = ibv_query_device(context, attr);
  printf("nobody has noticed (%d)\n", error);
  return 0;
}
