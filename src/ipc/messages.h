#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "ipc/archive.h"
#include "ipc/device.h"
#include "ipc/values.h"
#include "rdmacm/types.h"
#include "wire/ip.h"

// Defines the messages between a program and the agent of its host, over one SOCK_SEQPACKET
// connection.
//
// A request has a number, and its one reply has the same number.  An event has number 0.  If the
// program does not wait for the reply to a request, the request also has number 0 and gets no
// reply.  If such a request is about an id and fails, a Refused message reports the failure.  A
// datagram carries one or more messages, one after the other; only the last one may expect a reply.
// A message with descriptors is alone in its datagram.
//
// A connection begins with Hello.  Both sides must come from the same build, which they check in
// Hello and Welcome.  So archive.h encodes the messages without version numbers.  The fields that
// this check needs must have the same offsets in all builds: a message's length, type and number,
// and the build in Hello and Welcome.  Neither side trusts the numbers that the other side sends.
namespace verbena::ipc {

enum class Type : std::uint16_t {
  // A program sends these to the agent.  The comment after each type names its reply.
  // lane_messages.h defines the messages about lanes.
  kHello = 1,     // Welcome
  kLease = 2,     // Leased
  kCreateId = 3,  // Done; all requests below without a comment get Done, too
  kDestroyId = 4,
  kBind = 5,  // Bound
  kResolveAddress = 6,
  kListen = 7,
  kConnect = 8,
  kAccept = 9,
  kReject = 10,
  kEstablish = 11,
  kDisconnect = 12,
  kNotify = 13,
  kSetOption = 14,
  kReturnRange = 15,
  kHandOver = 16,
  kJoinGroup = 17,
  kLeaveGroup = 18,
  kLoadPath = 19,
  kAnswerPath = 20,
  kMigrated = 21,
  kAttachLane = 22,
  kCloseLane = 23,
  kJoinMulticast = 24,  // MulticastJoined
  kLeaveMulticast = 25,
  kSetPath = 26,
  kFindServices = 27,  // ServicesFound
  kAddService = 28,    // ServiceAdded
  kRemoveService = 29,
  kFlushCapture = 30,
  // The command line tool sends these to the agent (tool_messages.h).
  kStatus = 32,           // StatusReply
  kProcesses = 33,        // ProcessesReply
  kStop = 34,             // Done
  kCapture = 35,          // CaptureStarted
  kUpdatePortFiles = 36,  // Done
  kShowSa = 41,           // SaReply (sa_messages.h)
  kFlushSa = 42,          // SaFlushed
  // The command line tool sends these to the process of a fabric (fabric.h).
  kShowFabric = 37,      // FabricReply
  kAwaitSubnet = 38,     // SubnetState
  kShowLog = 39,         // LogReply
  kSetFault = 40,        // FaultReply
  kShowInterfaces = 43,  // InterfacesReply
  // The agent sends these to programs and tools.
  kWelcome = 64,
  kLeased = 65,
  kBound = 67,
  kDone = 68,
  kCmEvent = 69,
  kDevicesChanged = 70,
  kStatusReply = 71,
  kProcessesReply = 72,
  kCaptureStarted = 73,
  kRefused = 74,
  kLane = 75,
  kLaneRange = 76,
  kLaneClosed = 77,
  kNoLane = 78,
  kUserNotice = 79,
  kFabricReply = 80,
  kSubnetState = 81,
  kLogReply = 82,
  kFaultReply = 83,
  kMulticastJoined = 84,
  kMulticastLost = 85,
  kSaReply = 86,
  kSaFlushed = 87,
  kServicesFound = 88,
  kServiceAdded = 89,
  kInterfacesReply = 90,
};

// Returns true for requests that the node handles (node/node.h).  The agent itself handles the
// others.
constexpr bool is_for_node(Type type) {
  return type >= Type::kLease && type <= Type::kRemoveService;
}
// Returns true for requests that may have number 0, because their reply contains nothing but
// success or an error.
constexpr bool needs_no_reply(Type type) {
  return is_for_node(type) && type != Type::kLease && type != Type::kBind &&
         type != Type::kJoinGroup && type != Type::kJoinMulticast && type != Type::kFindServices &&
         type != Type::kAddService;
}

inline constexpr std::size_t kMessageBytesMax = 65536;
// Senders join messages into datagrams of at most this size.  A longer message is sent alone.
inline constexpr std::size_t kJoinedBytesMax = 16384;
// A lease has this number of QPNs.
inline constexpr std::uint32_t kLeaseQpns = 4096;

// ---- requests -----------------------------------------------------------------------------------

// Begins a connection.  Carries the program's pidfd, if the program could make one.
struct Hello {
  static constexpr Type kType = Type::kHello;
  std::string build{};
  std::uint32_t pid = 0;
  std::uint64_t capture = 0;  // the number of the program's capture, from its environment; 0: none
  // The sender is the command line tool.  It uses no device, and does not keep the agent running.
  bool tool = false;
  bool lanes = false;  // the program may use lanes
  void fields(auto& a) { a(build, pid, capture, tool, lanes); }
};

// Describes how other programs of the user access the memory of a program (link/peer_memory.h).
struct DirectAccess {
  std::uint32_t pid = 0;  // the pid in the agent's namespace; 0: the memory is not accessible
  std::uint64_t mark_address = 0;
  std::uint64_t mark_value = 0;
  void fields(auto& a) { a(pid, mark_address, mark_value); }
  friend bool operator==(const DirectAccess&, const DirectAccess&) = default;
};

// Asks for a range of QPNs.  Carries the memfd of the program's QP table (qp_table.h), and the
// memfd of its access table (link/access_table.h) if `direct` has a mark.
struct Lease {
  static constexpr Type kType = Type::kLease;
  bool sockets = true;    // false: packets do not use port 4791, so the range needs no sockets
  DirectAccess direct{};  // the agent sets the pid
  void fields(auto& a) { a(sockets, direct); }
};

// Marks the name of an id.  A program chooses names for the ids that it creates, so that it need
// not wait for the agent's handle.  An id for a connection request to a listener has the agent's
// handle, in which this bit is 0.
//
//   generation (32 bits) | kNameBit | index + 1      as in the program's own handles
inline constexpr std::uint64_t kNameBit = 0x80000000;
constexpr bool is_name(rdmacm::IdHandle id) { return (id.value & kNameBit) != 0; }
constexpr std::uint32_t index_of_name(rdmacm::IdHandle name) {
  return static_cast<std::uint32_t>(name.value & ~kNameBit) - 1;
}

struct CreateId {
  static constexpr Type kType = Type::kCreateId;
  rdmacm::IdHandle id{};         // the id's name, which all later messages of both sides use
  std::uint32_t port_space = 0;  // enum rdma_port_space
  std::uint32_t qp_type = 0;
  void fields(auto& a) { a(id, port_space, qp_type); }
};

struct DestroyId {
  static constexpr Type kType = Type::kDestroyId;
  rdmacm::IdHandle id{};
  void fields(auto& a) { a(id); }
};

struct Bind {
  static constexpr Type kType = Type::kBind;
  rdmacm::IdHandle id{};
  rdmacm::SocketAddress address{};
  void fields(auto& a) { a(id, address); }
};

struct ResolveAddress {
  static constexpr Type kType = Type::kResolveAddress;
  rdmacm::IdHandle id{};
  rdmacm::SocketAddress source{};  // family 0: the program has given no source
  rdmacm::SocketAddress destination{};
  Duration timeout{};
  void fields(auto& a) { a(id, source, destination, timeout); }
};

struct Listen {
  static constexpr Type kType = Type::kListen;
  rdmacm::IdHandle id{};
  std::int32_t backlog = 0;
  rdmacm::Filter filter{};  // for ids without a port space
  void fields(auto& a) { a(id, backlog, filter); }
};

struct Connect {
  static constexpr Type kType = Type::kConnect;
  rdmacm::IdHandle id{};
  rdmacm::ConnParam param{};
  std::uint8_t traffic_class = 0;  // the traffic class of the route
  void fields(auto& a) { a(id, param, traffic_class); }
};

struct Accept {
  static constexpr Type kType = Type::kAccept;
  rdmacm::IdHandle id{};
  rdmacm::ConnParam param{};
  void fields(auto& a) { a(id, param); }
};

struct Reject {
  static constexpr Type kType = Type::kReject;
  rdmacm::IdHandle id{};
  std::uint16_t reason = 28;  // the REJ reason; 28: rejected by the consumer
  std::vector<std::byte> additional_info{};
  std::vector<std::byte> private_data{};
  void fields(auto& a) { a(id, reason, additional_info, private_data); }
};

// Answers CONNECT_RESPONSE.  The QP is ready, so the agent may send the RTU.
struct Establish {
  static constexpr Type kType = Type::kEstablish;
  rdmacm::IdHandle id{};
  std::vector<std::byte> private_data{};
  void fields(auto& a) { a(id, private_data); }
};

struct Disconnect {
  static constexpr Type kType = Type::kDisconnect;
  rdmacm::IdHandle id{};
  std::vector<std::byte> private_data{};
  void fields(auto& a) { a(id, private_data); }
};

// Offers the peer an alternate path for the QP, by LAP.  A CmEvent reports the peer's answer.
struct LoadPath {
  static constexpr Type kType = Type::kLoadPath;
  rdmacm::IdHandle id{};
  rdmacm::PathInfo path{};
  std::vector<std::byte> private_data{};
  void fields(auto& a) { a(id, path, private_data); }
};

// Answers the peer's offer of an alternate path, by APR.
struct AnswerPath {
  static constexpr Type kType = Type::kAnswerPath;
  rdmacm::IdHandle id{};
  std::uint16_t status = 0;
  std::vector<std::byte> additional_info{};
  std::vector<std::byte> private_data{};
  void fields(auto& a) { a(id, status, additional_info, private_data); }
};

// Reports that the QP has migrated to its alternate path.
struct Migrated {
  static constexpr Type kType = Type::kMigrated;
  Qpn qpn{};
  void fields(auto& a) { a(qpn); }
};

// Reports that the peer's first packet has arrived, or that the program has said so by
// rdma_notify().  That packet may arrive before the RTU, and the RTU may be lost.  This message
// ensures that ESTABLISHED always comes.
struct Notify {
  static constexpr Type kType = Type::kNotify;
  Qpn qpn{};
  void fields(auto& a) { a(qpn); }
};

struct SetOption {
  static constexpr Type kType = Type::kSetOption;
  rdmacm::IdHandle id{};
  std::uint32_t level = 0;
  std::uint32_t option = 0;
  std::uint64_t value = 0;
  void fields(auto& a) { a(id, level, option, value); }
};

// Returns a range.  The program could not receive the sockets of the range, because it had no free
// descriptor.
struct ReturnRange {
  static constexpr Type kType = Type::kReturnRange;
  std::uint16_t range = 0;
  void fields(auto& a) { a(range); }
};

// Passes the unfinished work of an earlier, dead agent to a new agent: connections that have ended
// but whose peers must still get a DREQ, and ranges whose QPNs are still in use.
struct UnfinishedWork {
  static constexpr Type kType = Type::kHandOver;
  static constexpr std::size_t kDisconnectsMax = 512;  // in one message; each has 70 bytes
  static constexpr std::size_t kRangesMax = 512;       // all leases of an agent
  std::vector<std::uint16_t> ranges{};
  std::vector<rdmacm::PendingDisconnect> disconnects{};
  void fields(auto& a) { a(ranges, disconnects); }
};

// Makes the sockets of one of the program's ranges members of a multicast group.
struct JoinGroup {
  static constexpr Type kType = Type::kJoinGroup;
  std::uint16_t range = 0;
  Gid group{};
  // 0: all interfaces that the host has, now and later.  On InfiniBand: the number of a port.
  std::uint32_t interface = 0;
  void fields(auto& a) { a(range, group, interface); }
};

// Undoes a JoinGroup with the same values.
struct LeaveGroup {
  static constexpr Type kType = Type::kLeaveGroup;
  std::uint16_t range = 0;
  Gid group{};
  std::uint32_t interface = 0;
  void fields(auto& a) { a(range, group, interface); }
};

// Asks the agent to write all packets that this program has captured so far to the capture's file.
// The reply comes after that.
struct FlushCapture {
  static constexpr Type kType = Type::kFlushCapture;
  void fields(auto&) {}
};

// ---- replies ------------------------------------------------------------------------------------

// Carries the descriptor of the capture's ring (link/capture.h) if there is a capture.
struct Welcome {
  static constexpr Type kType = Type::kWelcome;
  std::uint32_t agent_pid = 0;
  std::string build{};
  std::string refusal{};      // the reason of a refusal; empty if the agent serves the program
  bool should_retry = false;  // with a refusal: this agent exits, so connect to the next agent
  bool capture = false;
  std::vector<Device> devices{};  // empty with a refusal
  void fields(auto& a) { a(agent_pid, build, refusal, should_retry, capture, devices); }
};

// Carries the descriptors of the data sockets, one for each IP version that the agent's port has: a
// host may lack a version, and VERBENA_BIND may name an address.  A program with an uplink gets
// none.
struct Leased {
  static constexpr Type kType = Type::kLeased;
  std::uint16_t range = 0;  // the upper 12 bits of the QPNs
  void fields(auto& a) { a(range); }
};

// Carries the address to which the id is bound now.
struct Bound {
  static constexpr Type kType = Type::kBound;
  rdmacm::SocketAddress source{};  // contains the chosen port
  bool on_device = false;  // the address is not a wildcard, so the source of the path is known
  rdmacm::PathInfo path{};
  void fields(auto& a) { a(source, on_device, path); }
};

// Replies to a request that failed, or that returns nothing but success.
struct Done {
  static constexpr Type kType = Type::kDone;
  bool failed = false;
  Errc code{};
  std::uint16_t detail = 0;
  std::string text{};
  void fields(auto& a) { a(failed, code, detail, text); }
};

inline Done refusal(const Error& error) {
  return {.failed = true, .code = error.code, .detail = error.detail, .text = error.context};
}

// ---- events -------------------------------------------------------------------------------------

// Carries an event of an id.
struct CmEvent {
  static constexpr Type kType = Type::kCmEvent;
  rdmacm::Event event{};
  void fields(auto& a) { a(event); }
};

// Reports that a request with number 0 about an id has failed.
struct Refused {
  static constexpr Type kType = Type::kRefused;
  Type request{};
  rdmacm::IdHandle id{};
  Errc code{};
  std::uint16_t detail = 0;
  std::string text{};
  void fields(auto& a) { a(request, id, code, detail, text); }
};

// Carries the new list of devices after a change.
struct DevicesChanged {
  static constexpr Type kType = Type::kDevicesChanged;
  std::vector<Device> devices{};
  void fields(auto& a) { a(devices); }
};

// Carries a line for the program's user about the reason of a failure.  The program itself gets
// the failure in another way.
struct UserNotice {
  static constexpr Type kType = Type::kUserNotice;
  std::string text{};
  void fields(auto& a) { a(text); }
};

// ---- encoding -----------------------------------------------------------------------------------

using Bytes = std::vector<std::byte>;

template <class Message>
Bytes encode(std::uint64_t request, Message message) {
  std::uint32_t size = 0;
  auto type = Message::kType;
  Writer writer(sizeof(size) + sizeof(type) + sizeof(request) + sizeof(Message));
  writer(size, type, request);
  message.fields(writer);
  Bytes bytes = writer.take();
  size = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes;
}

// Holds a message's type, its number, and its encoded fields.
struct Envelope {
  Type type{};
  std::uint64_t request = 0;
  std::span<const std::byte> body{};
};

// Reads the header of one complete message.
Result<Envelope> open(std::span<const std::byte> message);
// Removes the first message from a datagram, and returns it.  kMalformed: the message is not
// complete.  REQUIRES: the datagram is not empty.
Result<std::span<const std::byte>> take_message(std::span<const std::byte>& datagram);

template <class Message>
Result<Message> decode(const Envelope& envelope) {
  if (envelope.type != Message::kType)
    return fail(Errc::kMalformed, "ipc: a message of an unexpected type");
  Reader reader(envelope.body);
  Message message{};
  message.fields(reader);
  if (!reader.complete()) return fail(Errc::kMalformed, "ipc: a message of a wrong length");
  return message;
}

}  // namespace verbena::ipc
