#include "os/entropy.h"

#include "base/error.h"
#include "os/system_call.h"

namespace verbena::os {

Random::Key random_key() {
  Random::Key key{};
  // Once its pool is ready, the kernel never returns fewer bytes than requested, up to 256.
  VB_CHECK(repeat_call(SYS_getrandom, key.data(), sizeof(key), 0u) ==
           static_cast<long>(sizeof(key)));
  return key;
}

}  // namespace verbena::os
