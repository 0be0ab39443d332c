// Creates two UCX contexts with a worker each.  Some MPI libraries do the same, because several of
// their parts have contexts of their own.  Prints the devices and transports of the workers.
#include <stdio.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

static void need(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  fprintf(stderr, "ucx_contexts: %s: %s\n", what, ucs_status_string(status));
  exit(1);
}

struct instance {
  ucp_context_h context;
  ucp_worker_h worker;
};

static void open_instance(struct instance* instance) {
  const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                               .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA};
  ucp_config_t* config = NULL;
  need(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
  need(ucp_init(&params, config, &instance->context), "ucp_init");
  ucp_config_release(config);
  const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                      .thread_mode = UCS_THREAD_MODE_SINGLE};
  need(ucp_worker_create(instance->context, &worker, &instance->worker), "ucp_worker_create");
}

static void close_instance(const struct instance* instance) {
  ucp_worker_destroy(instance->worker);
  ucp_cleanup(instance->context);
}

int main(void) {
  struct instance one, other;
  open_instance(&one);
  open_instance(&other);
  puts("one:");
  ucp_context_print_info(one.context, stdout);
  ucp_worker_print_info(one.worker, stdout);
  puts("other:");
  ucp_context_print_info(other.context, stdout);
  ucp_worker_print_info(other.worker, stdout);
  close_instance(&other);
  close_instance(&one);
  return 0;
}
