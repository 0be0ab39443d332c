#pragma once

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verbena/c_api.h"
#include "verbena/outcome.h"

// Breaks fabrics of virtual hosts on purpose, to test programs.  `verbena fabric fault` does the
// same.
namespace verbena {

// Names a link of a fabric by its two ends, in any order.  In an InfiniBand subnet an end is NODE
// or NODE:PORT.  In other fabrics one end is HOST or HOST:DEVICE, and the other end is a network.
struct FabricLink {
  std::string a{};
  std::string b{};
};

// Represents a fabric that is up (`verbena fabric up`).  Each function changes one link or node, as
// `verbena fabric fault` does, and returns the new state as a line for people.
//
//     const verbena::Fabric lab("lab");
//     lab.lose({"a", "red"}, 2, 7).value();  // 2 % of the packets; the seed is 7
//     ...
//     lab.lose({"a", "red"}, 0).value();  // ends the loss
//
// Faults remain when this object is destroyed.  They end with the fabric.
//
// These are the errors:
//
//   invalid_argument          a value is wrong, or the fabric has no such link or node
//   no_such_device            no such fabric is up, or it does not answer
//   operation_not_supported   the program uses an adapter of this host
//
// Threads: any thread may call any function.  A call waits for the fabric for up to 10 seconds.  So
// do not call these functions in a thread whose Loop has other work.
class Fabric {
 public:
  using State = Outcome<std::string>;

  // Stores the name of the fabric.  An empty name stands for the fabric in VERBENA_FABRIC, or, if
  // that is not set, for the only fabric that is up.  The constructor does not check that the
  // fabric exists; the first fault does.
  explicit Fabric(std::string name = {}) : name_(std::move(name)) {}

  // ---- links
  State take_down(const FabricLink& link) const { return link_fault(link, {"down"}); }
  // Plugs a link in again, and ends its flapping.
  State bring_up(const FabricLink& link) const { return link_fault(link, {"up"}); }
  // Loses this many percent of the packets; 0 ends the loss.  The seed decides which packets.
  State lose(const FabricLink& link, double percent, std::uint64_t seed = 1) const {
    std::array<char, 64> text{};
    const auto end =
        std::to_chars(text.data(), text.data() + text.size(), percent, std::chars_format::fixed);
    if (end.ec != std::errc()) return failure(EINVAL, "this is not a percentage of packets");
    return link_fault(link, {"lossy", std::string(text.data(), end.ptr)}, seed);
  }
  // Delays each packet by this time; 0 ends the delay.  Packets keep their order.
  State slow_down(const FabricLink& link, std::chrono::nanoseconds delay) const {
    return link_fault(link, {"slow", text_of(delay)});
  }
  // Takes the link down and up, again and again.  With a seed, each period is random: between half
  // and one and a half times the given time.
  State flap(const FabricLink& link, std::chrono::nanoseconds down, std::chrono::nanoseconds up,
             std::optional<std::uint64_t> seed = {}) const {
    return link_fault(link, {"flapping", text_of(down), text_of(up)}, seed);
  }
  // Sets the MTU of a rail or a cable in bytes; without a value, restores the original one.
  State set_mtu(const FabricLink& link, std::optional<std::uint32_t> bytes) const {
    return link_fault(link, {"mtu", bytes ? std::to_string(*bytes) : "default"});
  }

  // ---- nodes
  State switch_off(const std::string& node) const { return node_fault(node, {"off"}); }
  // Switches a node on, or ends its pause.
  State switch_on(const std::string& node) const { return node_fault(node, {"on"}); }
  // Lets a node hang: it takes and sends no packets until it is switched on.
  State pause(const std::string& node) const { return node_fault(node, {"paused"}); }
  State remove_pkey(const std::string& node, std::uint16_t pkey) const {
    return node_fault(node, {"pkey", std::to_string(pkey), "removed"});
  }
  State add_pkey(const std::string& node, std::uint16_t pkey) const {
    return node_fault(node, {"pkey", std::to_string(pkey), "added"});
  }

  // Carries out any fault, in the words of the command: {"link", "a", "red", "down"}.
  State fault(const std::vector<std::string>& words, std::optional<std::uint64_t> seed = {}) const {
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    std::array<char, 512> text{};
    const int error =
        ::vb_fabric_fault(name_.empty() ? nullptr : name_.c_str(), pointers.data(), pointers.size(),
                          seed ? &*seed : nullptr, text.data(), text.size());
    if (error != 0) return failure(error, ::vb_last_error());
    return std::string(text.data());
  }

 private:
  static std::string text_of(std::chrono::nanoseconds time) {
    return std::to_string(time.count()) + "ns";
  }
  State link_fault(const FabricLink& link, std::vector<std::string> state,
                   std::optional<std::uint64_t> seed = {}) const {
    state.insert(state.begin(), {"link", link.a, link.b});
    return fault(state, seed);
  }
  State node_fault(const std::string& node, std::vector<std::string> state) const {
    state.insert(state.begin(), {"node", node});
    return fault(state);
  }

  std::string name_;
};

}  // namespace verbena
