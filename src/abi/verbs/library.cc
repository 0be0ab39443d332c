#include "abi/library.h"

#include "verbena_build.h"

namespace verbena::abi {

int check_verbs_library() { return check_library("libibverbs.so.1", VB_BUILD_ID); }

}  // namespace verbena::abi
