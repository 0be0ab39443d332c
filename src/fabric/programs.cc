#include "fabric/programs.h"

namespace verbena::fabric {

Verbs::Verbs(SimProcess& sim_process) : sim_process_(sim_process) {}

void Verbs::open() {
  constexpr std::uint32_t kEntries = 1024;
  pd = sim_process_.require("create_pd", sim_process_.engine().create_pd());
  cq = sim_process_.require("create_cq", sim_process_.engine().create_cq(kEntries, 0));
  sim_process_.require("arm_cq", sim_process_.engine().arm_cq(cq, false));
}

// The calls fail with kBusy if an object still uses the CQ or the PD.
void Verbs::close() {
  if (!is_open()) return;
  sim_process_.require("destroy_cq", sim_process_.engine().destroy_cq(cq));
  sim_process_.require("destroy_pd", sim_process_.engine().destroy_pd(pd));
  pd = {};
  cq = {};
}

void Outcome::count(const rdmacm::Event& event) {
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
