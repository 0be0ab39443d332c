#include "abi/engine.h"
#include "verbena_build.h"

namespace verbena::abi {

int check_cm_engine() { return check_engine("librdmacm.so.1", VB_BUILD_ID); }

}  // namespace verbena::abi
