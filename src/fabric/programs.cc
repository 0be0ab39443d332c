#include "fabric/programs.h"

namespace verbena::fabric {

Verbs::Verbs(Seat& seat) : seat_(seat) {}

void Verbs::open() {
  constexpr std::uint32_t kEntries = 1024;
  pd = seat_.sure("create_pd", seat_.engine().create_pd());
  cq = seat_.sure("create_cq", seat_.engine().create_cq(kEntries, 0));
  seat_.sure("arm_cq", seat_.engine().arm_cq(cq, false));
}

// Nothing stands on them any more: kBusy would name what does.
void Verbs::close() {
  if (!is_open()) return;
  seat_.sure("destroy_cq", seat_.engine().destroy_cq(cq));
  seat_.sure("destroy_pd", seat_.engine().destroy_pd(pd));
  pd = {};
  cq = {};
}

void Story::count(const rdmacm::Event& event) {
  using rdmacm::EventKind;
  switch (event.kind) {
    case EventKind::kEstablished: ++established; break;
    case EventKind::kDisconnected: ++disconnected; break;
    case EventKind::kRejected: ++rejected; break;
    case EventKind::kUnreachable: ++unreachable; break;
    case EventKind::kDeviceRemoval: ++device_removed; break;
    default: return;
  }
  status = event.status;
}

}  // namespace verbena::fabric
