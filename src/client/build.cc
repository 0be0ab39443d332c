#include "client/build.h"

#include "verbena_build.h"

namespace verbena::client {

const char* build_id() { return VB_BUILD_ID; }

}  // namespace verbena::client
