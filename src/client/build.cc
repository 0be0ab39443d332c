#include "client/build.h"

#include "verbena_build.h"

namespace verbena::client {

const char* build_id() { return verbena_build_id(); }

}  // namespace verbena::client
