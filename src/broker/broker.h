#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "base/time.h"
#include "broker/messages.h"

namespace verbena::broker {

using ProgramId = std::uint64_t;
using PairId = std::uint64_t;

// Introduces the two ends of TCP connections within one host to each other.
//
//   program A --> report(): "I hold the end with this cookie, from here to there"
//   program B --> report(): the mirrored connection
//   MakeMemory --> owner makes the memory of the pair --> memory_made()
//   SendMemory, for each process that holds one of the ends
//
// A socket may have several holders, after fork() or a passed descriptor; each gets the same memory
// and the same side.  A process that reports an end of an existing pair (after exec, or a forked
// child) gets the memory at once.  When the last holder of an end has ended without a report, the
// socket may still exist in a process that has not reported yet.  So the broker asks the owner to
// look (CheckSocket) until the socket is gone.
//
// The broker forgets an end that nobody holds, and a pair when nobody holds any of its ends.  The
// memory stays in the processes that have mapped it.
//
// The owner checks claims before report(): the kernel must know a socket with this cookie and
// connection.  Only one thread may use the broker.  The owner calls poll() after each call, until
// it returns nothing.
class Broker {
 public:
  struct Limits {
    std::size_t ends_per_program = 65536;
    std::size_t pairs = 16384;
  };
  // The broker asks the owner this often whether a socket without holder still exists.
  static constexpr Duration kCheckEvery = std::chrono::seconds(1);

  // Asks for the memory of a pair; answer with memory_made().
  struct MakeMemory {
    PairId pair = 0;
  };
  // Asks the owner to send the message with the pair's memory to the program.
  struct SendMemory {
    ProgramId program = 0;
    PairId pair = 0;
    Pair message{};
  };
  // Asks the owner to tell the program that its report continues an unknown stream.
  struct SendUnknown {
    ProgramId program = 0;
    Unknown message{};
  };
  // Asks the owner to release the pair's memory.
  struct Release {
    PairId pair = 0;
  };
  // Asks whether the socket still exists; answer with looked().
  struct CheckSocket {
    std::uint64_t cookie = 0;
    Connection connection{};
  };
  using Output = std::variant<MakeMemory, SendMemory, SendUnknown, Release, CheckSocket>;

  // Describes an end for listings.
  struct End {
    std::uint64_t cookie = 0;
    Connection connection{};
    std::vector<ProgramId> holders{};
    std::optional<PairId> pair{};
    std::uint32_t side = 0;
  };
  struct Counters {
    std::uint64_t reports = 0;
    std::uint64_t pairs_made = 0;
    std::uint64_t limits_met = 0;
  };

  Broker() : Broker(Limits()) {}
  explicit Broker(const Limits& limits) : limits_(limits) {}

  void report(ProgramId program, const Report& report);
  void forget(ProgramId program, const Forget& forget, Time now);
  // Call this when the program's connection to the service has ended.
  void program_ended(ProgramId program, Time now);
  // Reports whether the owner could make the memory of a pair.  Without memory both ends stay on
  // TCP.
  void memory_made(PairId pair, bool success);
  // Answers CheckSocket.
  void socket_checked(std::uint64_t cookie, bool exists, Time now);

  Time deadline() const { return next_check_; }
  void on_timer(Time now);

  std::optional<Output> poll();

  std::vector<End> ends() const;
  std::optional<End> end(std::uint64_t cookie) const;
  // Returns the cookies of a pair's ends, in the order of their sides; nothing if there is no such
  // pair.
  std::vector<std::uint64_t> cookies_of_pair(PairId pair) const;
  std::vector<std::uint64_t> cookies_of_program(ProgramId program) const;
  std::size_t pairs() const { return pairs_.size(); }
  const Counters& counters() const { return counters_; }
  bool idle() const { return ends_.empty(); }

 private:
  struct Socket {
    Connection connection{};
    std::map<ProgramId, std::uint32_t> holders{};  // with the Report::number of each
    std::optional<PairId> pair{};
    std::uint32_t side = 0;
  };
  enum class Memory : std::uint8_t { kWanted, kMade, kNone };
  struct PairOfEnds {
    std::array<std::uint64_t, 2> cookies{};
    Memory memory = Memory::kWanted;
  };

  bool has_memory(std::uint64_t cookie) const;
  static End describe(std::uint64_t cookie, const Socket& socket);
  void detach(std::uint64_t cookie);
  void leave_pair(PairId id, std::uint64_t cookie);
  void introduce(std::uint64_t cookie, std::uint64_t peer);
  void send_memory(ProgramId program, std::uint32_t number, std::uint64_t cookie,
                   const Socket& socket);
  void remove_holder(ProgramId program, std::uint64_t cookie, Time now);
  void erase(std::uint64_t cookie);

  Limits limits_;
  std::map<std::uint64_t, Socket> ends_{};              // by cookie
  std::map<Connection, std::uint64_t> without_pair_{};  // cookies of ends without a pair
  std::map<PairId, PairOfEnds> pairs_{};
  std::map<ProgramId, std::set<std::uint64_t>> cookies_of_{};  // cookies of each program
  std::set<std::uint64_t> without_holder_{};
  std::deque<Output> outputs_{};
  PairId next_pair_ = 1;
  Time next_check_ = kNever;
  Counters counters_{};
};

}  // namespace verbena::broker
