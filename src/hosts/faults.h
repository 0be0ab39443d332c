#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/watch.h"
#include "base/strong.h"
#include "faults/fault.h"
#include "faults/flaps.h"
#include "faults/loss.h"
#include "ipc/fabric.h"

namespace verbena::hosts {

// Breaks and repairs the links and nodes of a fabric.  A number identifies each link and each node.
class Breakable {
 public:
  using Link = std::uint64_t;
  using Node = std::uint32_t;
  // Holds a value, or a line for the user.
  template <class T>
  using Answer = std::expected<T, std::string>;

  Breakable() = default;
  Breakable(const Breakable&) = delete;
  Breakable& operator=(const Breakable&) = delete;
  virtual ~Breakable() = default;

  // Returns the reason why this fabric cannot have the fault: a link or node does not exist, or a
  // value is wrong.  Returns nothing if the fabric can have the fault.
  virtual std::optional<std::string> problem_with(const faults::Fault& fault) const = 0;
  // find_link() and find_node() REQUIRE: problem_with() has returned nothing for a fault of this
  // link or node.
  virtual Link find_link(const std::string& a, const std::string& b) const = 0;
  virtual Node find_node(const std::string& name) const = 0;
  virtual std::string link_text(Link link) const = 0;
  virtual std::string node_name(Node node) const = 0;

  virtual void set_link(Link link, bool up) = 0;
  // Returns the state of a link whose cable is not pulled, as text: "is up".
  virtual std::string up_text(Link link) const = 0;
  virtual void set_loss(Link link, const faults::Loss& loss) = 0;
  // Delays each packet on the link; 0 ends the delay.
  virtual void set_delay(Link link, Duration delay) = 0;
  // Changes the MTU of the link; 0 restores the link's own MTU.
  virtual void set_mtu(Link link, std::uint32_t mtu_bytes) = 0;

  virtual void set_power(Node node, bool on) = 0;
  // Returns the state of a node that is off, as text: "is off".
  virtual std::string off_text() const = 0;
  virtual void set_paused(Node node, bool paused) = 0;
  // Adds a P_Key to the tables of the node's ports, or removes it.  Adding a P_Key that the table
  // has already succeeds.  Fails if all tables are full, or if none has the P_Key to remove.
  virtual Answer<void> set_pkey(Node node, Pkey pkey, bool present) = 0;
  // Returns true if at least one port of the node has exactly this P_Key.
  virtual bool has_pkey(Node node, Pkey pkey) const = 0;
};

// Carries out the faults of `verbena fabric fault` and of the files of fabrics, and records all
// faults that are active.  A timer of this object lets links flap.  Only one thread may use it.
class Faults {
 public:
  // REQUIRES: the fabric outlives this object.
  Faults(asio::io_context& loop, Breakable& fabric);

  // Carries out the fault, and returns the new state as a line for the user.  The error is a line
  // with the reason for a refusal.
  std::expected<std::string, std::string> set(const faults::Fault& fault);
  // Returns all faults that are active now.
  std::vector<ipc::FaultStatus> status() const;

 private:
  using SetResult = std::expected<std::string, std::string>;
  struct LinkState {
    bool cable_pulled = false;
    std::optional<faults::Flaps> flaps{};
    faults::Loss loss{};
    Duration delay{};
    std::uint32_t mtu_bytes = 0;
  };
  struct NodeState {
    bool off = false;
    bool paused = false;
    std::map<Pkey, bool> pkeys{};  // true: the last fault added it; false: removed it
  };

  std::string set_link(Breakable::Link link, const faults::Fault& fault);
  std::string set_cable(Breakable::Link link, bool plugged);
  std::string start_flapping(Breakable::Link link, const faults::Periods& periods);
  SetResult set_node(Breakable::Node node, const faults::Fault& fault);
  SetResult set_power(Breakable::Node node, faults::Kind kind);
  SetResult set_pkey(Breakable::Node node, Pkey pkey, bool present);
  void flap_due_links();
  void set_timer();

  Breakable& fabric_;
  std::map<Breakable::Link, LinkState> links_{};
  std::map<Breakable::Node, NodeState> nodes_{};
  agent::Timer flap_timer_;
};

}  // namespace verbena::hosts
