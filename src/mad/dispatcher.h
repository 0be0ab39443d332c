#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "mad/mad.h"
#include "wire/mad.h"

namespace verbena::mad {

// A MAD that has passed the checks, for the machine of its class.  The bytes are the caller's.
struct Delivered {
  wire::MgmtClass mgmt_class{};
  Address from{};
  wire::MadHeader header{};
  std::span<const std::byte, wire::kMadBytes> mad;
  // False only for CM messages of another class version: the CM rejects those (reason 31).
  bool class_version_known = true;

  std::span<const std::byte> data() const { return mad.subspan<wire::kMadHeaderBytes>(); }
};

struct Dropped {};

// What became of a MAD: nothing (and a counter says why), a delivery, or an answer to send at once.
using Received = std::variant<Dropped, Delivered, SendMad>;

// The front door of QP1: every MAD that arrives comes here first.
//
// Checks, in this order, each with a counter (vol1 13.4.3, 13.5.3):
//   length, base version, class, class version, method
// A Get or Set that passes the first three is always answered, since its sender waits:
// ClassPortInfo of the CM class with what it asks for, all else with a status.  Responses and Sends
// never are. Only communication management has a machine behind it so far.
class Dispatcher {
 public:
  // What is received has one end: delivered, wrong_length, wrong_base_version, unknown_class,
  // wrong_method, class_port_info or question_of_other_version.
  struct Counters {
    std::uint64_t received = 0;
    std::uint64_t delivered = 0;
    std::uint64_t answered = 0;
    std::uint64_t wrong_length = 0;
    std::uint64_t wrong_base_version = 0;
    std::uint64_t unknown_class = 0;
    std::uint64_t wrong_class_version = 0;  // of CM messages: delivered all the same
    std::uint64_t wrong_method = 0;
    std::uint64_t class_port_info = 0;  // the one question with an answer
    std::uint64_t question_of_other_version = 0;
    friend bool operator==(const Counters&, const Counters&) = default;
  };

  Received receive(const Address& from, std::span<const std::byte> mad);

  const Counters& counters() const { return counters_; }

 private:
  Received answer(const Address& from, const wire::MadHeader& request,
                  std::span<const std::byte, wire::kMadBytes> mad, std::uint16_t status);

  Counters counters_;
};

}  // namespace verbena::mad
