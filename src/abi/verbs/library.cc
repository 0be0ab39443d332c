#include "abi/library.h"

#include "verbena_build.h"

namespace verbena::abi {

int check_verbs_library() { return check_library("libibverbs.so.1", verbena_build_id()); }

}  // namespace verbena::abi
