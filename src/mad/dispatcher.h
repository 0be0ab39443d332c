#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/counter_names.h"
#include "mad/mad.h"
#include "wire/mad.h"

namespace verbena::mad {

// Holds a MAD that has passed the checks, for the state machine of its class.  `mad` refers to the
// caller's bytes.
struct Delivered {
  wire::MgmtClass mgmt_class{};
  Address from{};
  wire::MadHeader header{};
  std::span<const std::byte, wire::kMadBytes> mad;
  // This is false only for CM messages of another class version.  The CM rejects a REQ or REP with
  // reason 31, answers a SIDR_REQ with an error status, and ignores the other messages.
  bool class_version_known = true;

  std::span<const std::byte> data() const { return mad.subspan<wire::kMadHeaderBytes>(); }
};

struct Dropped {};

// receive() returns one of these: a MAD that was dropped (a counter shows why), one to deliver, or
// an answer to send at once.
using Received = std::variant<Dropped, Delivered, SendMad>;

// Checks a MAD that arrives at QP1 (except the MADs of other classes that the owner gives to a
// ManagementPort).
//
// The checks have this order, and each failure is counted (vol1 13.4.3, 13.5.3):
//    length, base version, class, class version, method
//
// A Get or Set with the right length and base version always gets an answer, since its sender
// waits: a Get of the CM class's ClassPortInfo gets the attribute, all others get an error status.
// All other MADs get no answer.  Only Sends of the communication management (CM) class are
// delivered.
class Dispatcher {
 public:
  // Each received MAD counts as exactly one of: delivered, wrong_length, wrong_base_version,
  // unknown_class, wrong_method, class_port_info, request_of_other_version.
  struct Counters {
    std::uint64_t received = 0;
    std::uint64_t delivered = 0;
    std::uint64_t answered = 0;
    std::uint64_t wrong_length = 0;
    std::uint64_t wrong_base_version = 0;
    std::uint64_t unknown_class = 0;
    std::uint64_t wrong_class_version = 0;  // Sends of the CM class are delivered nevertheless
    std::uint64_t wrong_method = 0;
    std::uint64_t class_port_info = 0;  // Gets that were answered with the attribute
    std::uint64_t request_of_other_version = 0;
    friend bool operator==(const Counters&, const Counters&) = default;
  };

  Received receive(const Address& from, std::span<const std::byte> mad);

  const Counters& counters() const { return counters_; }

 private:
  Received answer(const Address& from, const wire::MadHeader& request,
                  std::span<const std::byte, wire::kMadBytes> mad, std::uint16_t status);

  Counters counters_;
};

inline constexpr auto kCounterNames = std::to_array<MemberName<Dispatcher::Counters>>({
    {&Dispatcher::Counters::received, "mads_received"},
    {&Dispatcher::Counters::delivered, "mads_delivered"},
    {&Dispatcher::Counters::answered, "mads_answered"},
    {&Dispatcher::Counters::wrong_length, "mads_wrong_length"},
    {&Dispatcher::Counters::wrong_base_version, "mads_wrong_base_version"},
    {&Dispatcher::Counters::unknown_class, "mads_unknown_class"},
    {&Dispatcher::Counters::wrong_class_version, "mads_wrong_class_version"},
    {&Dispatcher::Counters::wrong_method, "mads_wrong_method"},
    {&Dispatcher::Counters::class_port_info, "mads_class_port_info"},
    {&Dispatcher::Counters::request_of_other_version, "mads_request_of_other_version"},
});
static_assert(names_every_counter(kCounterNames));

}  // namespace verbena::mad
