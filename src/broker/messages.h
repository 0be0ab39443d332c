#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

// Defines the messages between a program under `verbena run --sockets`, the socket service of its
// host and the command line tool, over one SOCK_SEQPACKET connection.
//
// A message is one structure of fixed size, and its bytes are sent as they are.  So the library in
// the program can send and receive messages without allocations and locks, even in a signal
// handler.  Both sides come from one build, which they check in Hello, so the structures have no
// version.  The offsets of the type, and of the build in Hello and Welcome, must never change.
// Neither side trusts the other's numbers.
namespace verbena::broker {

enum class Type : std::uint32_t {
  // Programs send these to the service.
  kHello = 1,
  kReport = 2,
  kForget = 3,
  // The command line tool sends these to the service; the comments name the replies.
  kList = 16,   // a Row for each known end, then EndOfRows
  kStop = 17,   // no reply; the service closes the connection
  kTrace = 18,  // an Event for each change, until the tool closes the connection
  // The service sends these.
  kWelcome = 32,
  kPair = 33,
  kRow = 34,
  kEndOfRows = 35,
  kEvent = 36,
  kUnknown = 37,
};

inline constexpr std::size_t kBuildBytes = 72;
inline constexpr std::size_t kNameBytes = 16;  // the size of the kernel's "comm"

// Holds an IP address and a port in host order.  IPv4 addresses are IPv4-mapped (::ffff:a.b.c.d),
// so that the two ends of a dual-stack connection compare as equal.
struct SocketName {
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port = 0;
  std::uint16_t reserved = 0;
  friend auto operator<=>(const SocketName&, const SocketName&) = default;
};

// Names a TCP connection as one of its ends sees it.
struct Connection {
  SocketName local{};
  SocketName peer{};
  Connection mirrored() const { return {.local = peer, .peer = local}; }
  friend auto operator<=>(const Connection&, const Connection&) = default;
};

template <std::size_t kBytes>
std::array<char, kBytes> text_field(std::string_view text) {
  std::array<char, kBytes> field{};
  std::copy_n(text.begin(), std::min(text.size(), kBytes), field.begin());
  return field;
}
template <std::size_t kBytes>
std::string_view text_of(const std::array<char, kBytes>& field) {
  return {field.data(),
          static_cast<std::size_t>(std::find(field.begin(), field.end(), '\0') - field.begin())};
}

// Begins a connection.  A program's Hello carries the memfd of its mailbox: a MailboxMemory.
struct Hello {
  Type type = Type::kHello;
  std::array<char, kBuildBytes> build{};
  std::uint32_t pid = 0;
  std::uint32_t is_tool = 0;
  std::array<char, kNameBytes> program{};
};

// Answers Hello.  If `refused` is not 0, the builds differ and the connection ends.
struct Welcome {
  Type type = Type::kWelcome;
  std::array<char, kBuildBytes> build{};
  std::uint32_t refused = 0;
};

// Reports that the sender has a socket of a connection, and may use a ring for it.
struct Report {
  Type type = Type::kReport;
  std::uint32_t number = 0;  // the sender's name for this socket; replies repeat it
  std::uint64_t cookie = 0;  // SO_COOKIE, the kernel's name for the socket in all processes
  Connection connection{};
  // 1: the sender continues a stream that another process has begun.  If the service has no memory
  // for this socket, or refuses the report, it answers with Unknown, and ignores the report.
  std::uint32_t continues = 0;
  std::uint32_t reserved = 0;
};

// Reports that the sender has closed the socket, or will not use a ring for it.
struct Forget {
  Type type = Type::kForget;
  std::uint32_t reason = 0;  // why the socket uses TCP only (stream::Reason); 0: it is closed
  std::uint64_t cookie = 0;
};

// Tells the program that both ends of the connection can use a ring.  Carries two memfds: one with
// the streams of both directions, and one with the EndState of the program's end (stream/memory.h).
struct Pair {
  Type type = Type::kPair;
  std::uint32_t number = 0;
  std::uint64_t cookie = 0;
  std::uint32_t side = 0;  // 0 or 1; the peer has the other side
  std::uint32_t reserved = 0;
};

// Answers a Report that continues a stream, if the service does not provide the stream's memory.
struct Unknown {
  Type type = Type::kUnknown;
  std::uint32_t number = 0;
  std::uint64_t cookie = 0;
};

struct List {
  Type type = Type::kList;
};

struct Stop {
  Type type = Type::kStop;
};

struct Trace {
  Type type = Type::kTrace;
};

// Counts the bytes of one direction of a stream, and its changes between ring and TCP.  The
// programs write these numbers.  The service limits them to what a program can reach
// (ReportedCount).
struct Traffic {
  std::uint64_t by_ring = 0;         // bytes
  std::uint64_t by_tcp = 0;          // bytes since the connection began
  std::uint64_t wakes = 0;           // times that bytes went by TCP because the reader might sleep
  std::uint64_t overflows = 0;       // times that bytes went by TCP because the ring was full
  std::uint64_t returns_to_tcp = 0;  // times that the direction went from the ring to TCP
  std::uint32_t return_reason = 0;   // the last reason (stream::Reason)
  std::uint32_t implausible = 0;     // counts that no program can reach, and that were not added
};

// Describes one end of a connection for the tool.
struct Row {
  Type type = Type::kRow;
  std::uint32_t pid = 0;  // PID of one holder; 0: no process holds the end now
  std::array<char, kNameBytes> program{};
  std::uint32_t holders = 0;   // processes that have reported this end
  std::uint32_t has_ring = 0;  // 1 if the two ends have memory for a ring
  std::uint64_t cookie = 0;
  Connection connection{};
  Traffic out{};
  Traffic in{};
};

// Ends a list of rows, and has the totals of the service.
struct EndOfRows {
  Type type = Type::kEndOfRows;
  std::uint32_t pid = 0;  // PID of the service
  std::uint64_t pairs_now = 0;
  std::uint64_t pairs_made = 0;
  std::uint64_t reports = 0;
  std::uint64_t claims_refused = 0;  // reports that fit no socket of the host
  std::uint64_t limit_refusals = 0;  // reports or pairs that got no ring because of a limit
  std::uint64_t memory_bytes = 0;    // memory that all current pairs can occupy at most
  std::uint64_t resident_bytes = 0;  // memory that all current pairs occupy
  std::uint64_t released_bytes = 0;  // memory of idle rings that was released so far
  Traffic total{};                   // all pairs so far, in both directions
};

// Says what has happened.  In the comments, "the program" is Event::program.
enum class EventKind : std::uint32_t {
  kOffered = 1,          // the program has reported its end
  kPeerNotReported = 2,  // the peer's program has not reported its end for a while
  kRefused = 3,          // the report fits no socket of this host
  kLimit = 4,            // there is no ring because of a limit
  kPaired = 5,           // both ends have got the memory
  kChangedOver = 6,      // the program checks the ring in each call
  kRing = 7,             // the program's first byte in the ring has this `offset`
  kSendsByTcp = 8,       // the program sends by TCP forever, from `offset` on, because of `reason`
  kReadsFromTcp = 9,     // the program reads from TCP forever, because of `reason`
  kWithdrawn = 10,       // the program has withdrawn its report, because of `reason`
  kClosed = 11,          // the program has closed its end; `out` counts the bytes that it has sent
  kProgramEnded = 12,    // the program has ended, or has replaced itself by exec
};

// Tells a tool what has happened to one end of a connection.
struct Event {
  Type type = Type::kEvent;
  EventKind kind = EventKind::kOffered;
  std::uint64_t wall_ns = 0;  // when the service noticed the event, in nanoseconds since 1970
  std::uint64_t cookie = 0;
  Connection connection{};
  std::uint32_t pid = 0;  // PID of the program; 0: no process holds the end now
  std::array<char, kNameBytes> program{};
  std::uint32_t peer_pid = 0;  // PID of one process at the other end; 0: not known
  std::array<char, kNameBytes> peer_program{};
  std::uint64_t offset = 0;      // offset of a byte from the connection's first byte
  std::uint32_t reason = 0;      // a stream::Reason
  std::uint32_t is_earlier = 0;  // 1: the event happened before the trace began
  std::uint32_t has_ring = 0;    // for kClosed and kProgramEnded: 1 if `out` is valid
  std::uint32_t reserved = 0;
  Traffic out{};
};

// Counts the messages for a program, in memory that the program shares with the service.  So the
// program can check without a system call whether a message has arrived.
struct MailboxMemory {
  static constexpr std::size_t kBytes = 4096;
  std::uint64_t sent;  // counts the messages after Welcome that the service has sent
};

inline constexpr std::size_t kMessageBytesMax = 256;

template <class Message>
std::span<const std::byte> bytes_of(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) <= kMessageBytesMax);
  return std::as_bytes(std::span(&message, 1));
}

inline std::optional<Type> type_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Type)) return std::nullopt;
  Type type{};
  std::memcpy(&type, bytes.data(), sizeof(type));
  return type;
}

// Returns nothing if the bytes are not a message of this type.
template <class Message>
std::optional<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(Message) || type_of(bytes) != Message{}.type) return std::nullopt;
  Message message;
  std::memcpy(&message, bytes.data(), sizeof(message));
  return message;
}

}  // namespace verbena::broker
