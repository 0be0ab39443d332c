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
//   program A --> report(): the socket of one end, by its cookie, and its connection
//   program B --> report(): the socket of the other end, and the mirrored connection
//   MakeMemory --> owner makes the memory of the pair --> memory_made()
//   SendMemory, for each holder of one of the ends
//
// A holder is a process that has reported a socket, until its Forget or its end.  A socket may have
// several holders, after fork() or a passed descriptor; each gets the same memory and the same
// side.  A process that reports an end of an existing pair (after exec, or a forked child) gets the
// memory at once.  When an end of a pair has lost its last holder, the socket may still exist in
// a process that has not reported yet.  So the broker asks the owner to check the socket
// (CheckSocket) until the socket does not exist any more.
//
// Then the broker removes the end, and also the pair if both of its ends are removed.  An end
// without a pair is removed as soon as it has no holder.  Processes that have mapped the memory of
// the pair keep it.
//
// Before report(), the owner checks that the kernel has a socket with this cookie and connection.
// Only one thread may use the broker.  After each call, the owner calls poll() until it returns
// nothing.
class Broker {
 public:
  struct Limits {
    std::size_t ends_per_program = 65536;
    std::size_t pairs = 16384;
  };
  // The broker asks once in this interval whether a socket without a holder still exists.
  static constexpr Duration kCheckInterval = std::chrono::seconds(1);

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
  // Asks the owner to tell the program that its report continues an unknown stream, or that the
  // program has reported too many ends to get the stream's memory.
  struct SendUnknown {
    ProgramId program = 0;
    Unknown message{};
  };
  // Asks the owner to release the pair's memory.
  struct Release {
    PairId pair = 0;
  };
  // Asks whether the socket still exists; answer with socket_checked().
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
    std::uint64_t limit_refusals = 0;
  };

  Broker() : Broker(Limits()) {}
  explicit Broker(const Limits& limits) : limits_(limits) {}

  void report(ProgramId program, const Report& report);
  void forget(ProgramId program, const Forget& forget, Time now);
  // Call this when the program's connection to the service has ended.
  void program_ended(ProgramId program, Time now);
  // Reports whether the owner could make the memory of a pair.  Without memory both ends continue
  // to use TCP.
  void memory_made(PairId pair, bool success);
  // Reports whether the socket of a CheckSocket exists.
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
  bool is_idle() const { return ends_.empty(); }

 private:
  struct Socket {
    Connection connection{};
    std::map<ProgramId, std::uint32_t> holders{};  // with the Report::number of each
    std::optional<PairId> pair{};
    std::uint32_t side = 0;
  };
  enum class Memory : std::uint8_t { kRequested, kMade, kFailed };
  struct PairOfEnds {
    std::array<std::uint64_t, 2> cookies{};
    Memory memory = Memory::kRequested;
  };

  bool has_memory(std::uint64_t cookie) const;
  static End describe(std::uint64_t cookie, const Socket& socket);
  void detach(std::uint64_t cookie);
  void leave_pair(PairId id, std::uint64_t cookie);
  void introduce(std::uint64_t cookie, std::uint64_t peer);
  void send_memory(ProgramId program, std::uint32_t number, std::uint64_t cookie,
                   const Socket& socket);
  void send_unknown(ProgramId program, const Report& report);
  void remove_holder(ProgramId program, std::uint64_t cookie, Time now);
  void erase(std::uint64_t cookie);

  Limits limits_;
  std::map<std::uint64_t, Socket> ends_{};  // by cookie
  // The next three members hold cookies: of ends without a pair, of the ends that each program has
  // reported, and of ends without a holder.
  std::map<Connection, std::uint64_t> without_pair_{};
  std::map<ProgramId, std::set<std::uint64_t>> cookies_of_{};
  std::set<std::uint64_t> without_holder_{};
  std::map<PairId, PairOfEnds> pairs_{};
  std::deque<Output> outputs_{};
  PairId next_pair_ = 1;
  Time next_check_ = kNever;
  Counters counters_{};
};

}  // namespace verbena::broker
