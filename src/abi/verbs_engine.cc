#include "abi/engine.h"
#include "verbena_build.h"

namespace verbena::abi {

int check_verbs_engine() { return check_engine("libibverbs.so.1", VB_BUILD_ID); }

}  // namespace verbena::abi
