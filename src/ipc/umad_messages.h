#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/archive.h"
#include "wire/mad.h"

// Defines the messages between libibumad in a program and the MAD service (madservice).  The
// service runs for the node of an InfiniBand fabric on which the program runs.
//
// A connection (SOCK_SEQPACKET) begins with Hello, which contains its purpose.  The program sends
// one request at a time, and the answer to each is a Reply or a Devices.  Both sides must come from
// the same build, which Hello checks.  So the type, the build and the Reply must have the same
// format in all builds.
//
// Each open port has a second connection for the MADs that arrive.  The program polls the
// descriptor of this connection, so nothing else may arrive there.  Each datagram contains what a
// read of Linux's /dev/infiniband/umadN returns: a UserMad and the MAD.  A message of more than
// kInlineBytesMax bytes is in a sealed memfd that comes with the datagram.  The datagram then has
// only the first kMadBytes of the message.
namespace verbena::ipc::umad {

inline constexpr std::size_t kMessageBytesMax = 65536;
inline constexpr std::size_t kInlineBytesMax = 32768;
inline constexpr std::size_t kDevicesMax = 32;  // UMAD_MAX_DEVICES
// Limits a message that a program sends or receives, with all its segments.
inline constexpr std::size_t kMadBytesMax = std::size_t{64} << 20;

// Equals struct ib_user_mad of <infiniband/umad.h>.  Members whose names end in _be are in network
// byte order.
struct UserMad {
  std::uint32_t agent_id{};
  std::uint32_t status{};
  std::uint32_t timeout_ms{};
  std::uint32_t retries{};
  std::uint32_t length{};
  std::uint32_t qpn_be{};
  std::uint32_t qkey_be{};
  std::uint16_t lid_be{};
  std::uint8_t sl{};
  std::uint8_t path_bits{};
  std::uint8_t grh_present{};
  std::uint8_t gid_index{};
  std::uint8_t hop_limit{};
  std::uint8_t traffic_class{};
  std::array<std::byte, 16> gid{};
  std::uint32_t flow_label_be{};
  std::uint16_t pkey_index{};
  std::array<std::uint8_t, 6> reserved{};

  friend bool operator==(const UserMad&, const UserMad&) = default;
};
inline constexpr std::size_t kUserMadBytes = sizeof(UserMad);
static_assert(kUserMadBytes == 64);

enum class Type : std::uint16_t {
  // The comment after each request names its answer.
  kHello = 1,       // Reply, with a descriptor unless the purpose is kQuery
  kQuery = 2,       // Devices
  kRegister = 3,    // Reply; its value is the agent id
  kUnregister = 4,  // Reply
  kSend = 5,        // Reply
  kReply = 16,
  kDevices = 17,
};

struct Hello {
  static constexpr Type kType = Type::kHello;
  enum class Purpose : std::uint8_t {
    kQuery,    // asks for the devices
    kMads,     // opens a port for MADs; the Reply carries the connection on which MADs arrive
    kManager,  // asks for the file (a memfd) that a subnet manager must keep open
  };
  std::string build{};
  Purpose purpose = Purpose::kQuery;
  std::string device{};
  std::uint8_t port = 1;
  void fields(auto& a) { a(build, purpose, device, port); }
};

struct Query {
  static constexpr Type kType = Type::kQuery;
  void fields(auto&) {}
};

struct Register {
  static constexpr Type kType = Type::kRegister;
  std::uint32_t qpn = 0;
  std::uint8_t mgmt_class = 0;
  std::uint8_t class_version = 0;
  std::uint8_t rmpp_version = 0;
  bool rmpp_by_agent = false;  // UMAD_USER_RMPP
  std::uint32_t oui = 0;
  std::array<std::uint64_t, 2> methods{};
  void fields(auto& a) {
    a(qpn, mgmt_class, class_version, rmpp_version, rmpp_by_agent, oui, methods[0], methods[1]);
  }
};

struct Unregister {
  static constexpr Type kType = Type::kUnregister;
  std::uint32_t agent = 0;
  void fields(auto& a) { a(agent); }
};

// Precedes a UserMad and the MAD.  If `in_memory` is set, the MAD is in the memfd that comes with
// the datagram.
struct Send {
  static constexpr Type kType = Type::kSend;
  bool in_memory = false;
  void fields(auto& a) { a(in_memory); }
};

struct Reply {
  static constexpr Type kType = Type::kReply;
  std::int32_t error = 0;  // errno
  std::uint32_t value = 0;
  std::string text{};  // describes the error
  void fields(auto& a) { a(error, value, text); }
};

struct Port {
  std::uint8_t number = 1;
  bool infiniband = true;
  std::uint16_t lid = 0;
  std::uint8_t lmc = 0;
  std::uint16_t sm_lid = 0;
  std::uint8_t sm_sl = 0;
  std::uint8_t state = 0;  // the numbers of PortInfo
  std::uint8_t physical_state = 0;
  std::uint32_t rate = 0;  // Gbit/s
  std::uint32_t capability_mask = 0;
  std::uint64_t gid_prefix = 0;
  std::uint64_t guid = 0;
  std::vector<std::uint16_t> pkeys{};
  void fields(auto& a) {
    a(number, infiniband, lid, lmc, sm_lid, sm_sl, state, physical_state, rate, capability_mask,
      gid_prefix, guid, pkeys);
  }
};

struct Device {
  std::string name{};
  std::uint8_t node_type = 1;
  std::string firmware{};
  std::string hardware{};
  std::string type{};
  std::uint64_t node_guid = 0;
  std::uint64_t system_guid = 0;
  std::vector<Port> ports{};
  void fields(auto& a) {
    a(name, node_type, firmware, hardware, type, node_guid, system_guid, ports);
  }
};

struct Devices {
  static constexpr Type kType = Type::kDevices;
  std::vector<Device> devices{};
  void fields(auto& a) { a(devices); }
};

template <class Message>
std::vector<std::byte> encode(Message message) {
  Writer writer(sizeof(Type) + sizeof(Message));
  auto type = Message::kType;
  writer(type);
  message.fields(writer);
  return writer.take();
}

// Returns the type of a message.  kMalformed: the message is too short.
inline Result<Type> type_of(std::span<const std::byte> message) {
  if (message.size() < sizeof(Type))
    return fail(Errc::kMalformed, "umad: a message without a type");
  Type type{};
  std::memcpy(&type, message.data(), sizeof(type));
  return type;
}

// Decodes a message.  kMalformed: the message is of another type, too short, or longer than its
// fields.
template <class Message>
Result<Message> decode(std::span<const std::byte> message) {
  if (VB_TRY(type_of(message)) != Message::kType) {
    return fail(Errc::kMalformed, "umad: a message of an unexpected type");
  }
  Reader reader(message.subspan(sizeof(Type)));
  Message decoded{};
  decoded.fields(reader);
  if (!reader.complete()) return fail(Errc::kMalformed, "umad: a message of a wrong length");
  return decoded;
}

// Holds the parts of a decoded Send message.  `mad` points into the message, and is empty if the
// MAD is in the memfd.
struct ReceivedSend {
  bool in_memory = false;
  UserMad header{};
  std::span<const std::byte> mad{};
};

inline constexpr std::size_t kSendPrefixBytes = sizeof(Type) + 1;

// Decodes a Send, a UserMad and a MAD.  kMalformed: the message does not consist of these.
inline Result<ReceivedSend> decode_send(std::span<const std::byte> message) {
  if (message.size() < kSendPrefixBytes + kUserMadBytes ||
      VB_TRY(type_of(message)) != Type::kSend) {
    return fail(Errc::kMalformed, "umad: not a valid Send message");
  }
  ReceivedSend send{.in_memory = message[sizeof(Type)] != std::byte{0}};
  std::memcpy(&send.header, message.data() + kSendPrefixBytes, kUserMadBytes);
  send.mad = message.subspan(kSendPrefixBytes + kUserMadBytes);
  if (send.in_memory && !send.mad.empty())
    return fail(Errc::kMalformed, "umad: a MAD both in the message and in memory");
  return send;
}

}  // namespace verbena::ipc::umad
