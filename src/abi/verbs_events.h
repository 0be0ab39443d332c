#pragma once

#include "abi/cookies.h"
#include "abi/objects.h"

// The objects of libibverbs that events name, found by the cookie that the engine carries.
namespace verbena::abi {

Cookies<Cq>& cqs();
Cookies<Qp>& qps();
Cookies<Srq>& srqs();

}  // namespace verbena::abi
