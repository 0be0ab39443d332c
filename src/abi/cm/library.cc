#include "abi/library.h"

#include "verbena_build.h"

namespace verbena::abi {

int check_cm_library() { return check_library("librdmacm.so.1", verbena_build_id()); }

}  // namespace verbena::abi
