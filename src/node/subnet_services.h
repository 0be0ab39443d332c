#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/port_id.h"
#include "base/time.h"
#include "ipc/subnet_messages.h"
#include "node/infiniband_port.h"
#include "node/lane_table.h"
#include "sa/services.h"

namespace verbena::node {

// Finds and registers services for the programs of a node, at the subnet administration (SA) of its
// InfiniBand ports (vol1 15.2.5.14).  The SA removes a service by its ID, GID and P_Key, so two
// programs cannot register the same service: the end of one program would end the other's service.
//
// Pure, and used by one thread.  The owner of the ports passes their ServiceEvents to on().
class SubnetServices {
 public:
  static constexpr std::size_t kPerClientMax = 1024;  // registrations and queries of a program
  static constexpr Duration kTimeoutMax = std::chrono::hours(1);

  // REQUIRES: the ports outlive this object.
  explicit SubnetServices(std::map<PortId, InfinibandPort>& ports) : ports_(ports) {}

  // Asks the SA for services.  A Reply to the request follows.  Fails with kInvalidArgument if the
  // port does not exist or the timeout is negative, and with kNoResources at kPerClientMax or at a
  // limit of the port.
  Result<void> find(ClientId client, std::uint64_t request, const ipc::FindServices& message,
                    Time now);
  // Registers a service.  A Reply to the request follows.  Fails with kAddressInUse if a program of
  // this node has registered the service.  Otherwise fails as find() does.
  Result<void> add(ClientId client, std::uint64_t request, const ipc::AddService& message,
                   Time now);
  // Ends a registration.  Fails with kInvalidArgument if the program has no such registration.
  Result<void> remove(ClientId client, std::uint64_t registration, Time now);
  // Ends the registrations and queries of a program that has ended.
  void remove_client(ClientId client, Time now);

  struct Reply {
    ClientId client = 0;
    ipc::Bytes message{};
  };
  // Returns the message about the event to a program; nothing if no message is needed.
  std::optional<Reply> on(const sa::ServiceEvent& event);

  std::uint64_t limit_refusals() const { return limit_refusals_; }

 private:
  struct Entry {
    ClientId client = 0;
    std::uint64_t request = 0;  // 0: the request was answered
    PortId port{};
    sa::ServiceTicket ticket{};
    std::optional<wire::ServiceRecord> record{};  // only of a registration
  };

  // Returns the port for a new request.  Fails with kInvalidArgument if the port does not exist,
  // and with kNoResources if the program has reached kPerClientMax.
  Result<InfinibandPort*> port_for_request(ClientId client, PortId port);
  bool is_registered(PortId port, const wire::ServiceRecord& record) const;

  std::map<PortId, InfinibandPort>& ports_;
  std::map<std::uint64_t, Entry> entries_{};  // by the number of the registration or query
  std::uint64_t last_number_ = 0;
  std::uint64_t limit_refusals_ = 0;
};

}  // namespace verbena::node
