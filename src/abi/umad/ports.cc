#include "abi/umad/ports.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <utility>

#include "os/clock.h"
#include "os/shared_memory.h"
#include "os/system_call.h"
#include "wire/mad.h"

// Implements the calls of an open port.

namespace verbena::abi::umad {

namespace um = ipc::umad;

namespace {

// Lists the open ports of this process by their descriptors.  The list is never destroyed, since
// other threads may use it while the process ends.
struct OpenPorts {
  std::mutex lock;
  std::map<int, std::shared_ptr<OpenPort>> by_fd;
};

OpenPorts& open_ports() {
  static auto& all = *new OpenPorts();
  return all;
}

}  // namespace

int OpenPort::open(const char* name, int number, bool enforce_smi) {
  const auto choice = choose_port(name, number, true, enforce_smi);
  if (!choice) return -ENODEV;
  if (choice->port < 0 || choice->port > UINT8_MAX) return -EINVAL;
  if (!has_node()) {
    // A host's own device has no QP0, and its QP1 belongs to the agent.
    explain("MADs need a node of an InfiniBand fabric: verbena run --node NAME -- PROGRAM");
    const auto devices = query_devices();
    return !devices                                           ? -EOPNOTSUPP
           : find_device(*devices, choice->device) == nullptr ? -EINVAL
                                                              : -EIO;
  }
  int error = 0;
  os::Fd mads;
  auto requests = ServiceConnection::open({.purpose = um::Hello::Purpose::kMads,
                                           .device = choice->device,
                                           .port = static_cast<std::uint8_t>(choice->port)},
                                          error, &mads);
  if (!requests) return error == ENODEV ? -EOPNOTSUPP : error == EINVAL ? -EINVAL : -EIO;
  std::shared_ptr<OpenPort> old_port;  // it is destroyed after the lock is released
  const std::lock_guard guard(open_ports().lock);
  // A program may have closed the descriptor of an older port with close(), so that the new port
  // got the same descriptor.  Destroying the older port closes that descriptor once more.  So the
  // new port takes another descriptor.
  while (const auto old = open_ports().by_fd.extract(mads.get())) {
    old_port = old.mapped();
    auto duplicate = mads.duplicate();
    (void)mads.release();  // the older port closes this descriptor
    if (!duplicate) return -EIO;
    mads = std::move(*duplicate);
  }
  const int fd = mads.get();
  open_ports().by_fd[fd] =
      std::shared_ptr<OpenPort>(new OpenPort(std::move(*requests), std::move(mads)));
  return fd;
}

std::shared_ptr<OpenPort> OpenPort::find(int fd) {
  const std::lock_guard guard(open_ports().lock);
  const auto found = open_ports().by_fd.find(fd);
  return found == open_ports().by_fd.end() ? nullptr : found->second;
}

void OpenPort::close(int fd) {
  std::shared_ptr<OpenPort> port;  // its destructor closes the port after the lock is released
  const std::lock_guard guard(open_ports().lock);
  const auto found = open_ports().by_fd.find(fd);
  if (found == open_ports().by_fd.end()) return;
  port = std::move(found->second);
  open_ports().by_fd.erase(found);
}

um::Reply OpenPort::ask(std::span<const std::byte> request, std::span<const int> fds_to_pass) {
  const std::lock_guard guard(ask_lock_);
  return requests_.ask_reply(request, fds_to_pass);
}

OpenPort::ReceiveResult OpenPort::receive(ib_user_mad& buffer, std::size_t capacity,
                                          std::size_t& mad_bytes) {
  const std::lock_guard guard(receive_lock_);
  std::array<std::byte, um::kUserMadBytes + wire::kMadBytes> first{};
  const long received_bytes =
      os::repeat_call(SYS_recvfrom, mads_.fd(), first.data(), first.size(),
                      MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC, nullptr, nullptr);
  if (received_bytes < 0)
    return errno == EAGAIN ? ReceiveResult::kNothing : ReceiveResult::kDisconnected;
  if (received_bytes < static_cast<long>(um::kUserMadBytes)) return ReceiveResult::kDisconnected;
  um::UserMad header{};
  std::memcpy(&header, first.data(), um::kUserMadBytes);
  mad_bytes = header.length - um::kUserMadBytes;
  const std::size_t message_bytes = header.length;
  if (capacity < std::min(message_bytes, first.size())) return ReceiveResult::kInvalid;
  auto* out = reinterpret_cast<std::byte*>(&buffer);
  if (capacity < message_bytes) {
    std::ranges::copy(first, out);
    return ReceiveResult::kTooShort;
  }
  if (message_bytes > static_cast<std::size_t>(received_bytes))
    return receive_in_shared_memory(out, mad_bytes);
  const long result =
      os::repeat_call(SYS_recvfrom, mads_.fd(), out, message_bytes, MSG_DONTWAIT, nullptr, nullptr);
  return result == received_bytes ? ReceiveResult::kMad : ReceiveResult::kDisconnected;
}

OpenPort::ReceiveResult OpenPort::receive_in_shared_memory(std::byte* buffer,
                                                           std::size_t mad_bytes) {
  std::vector<os::Fd> fds;
  std::array<std::byte, um::kUserMadBytes + wire::kMadBytes> first{};
  bool fds_lost = false;
  if (!mads_.receive(first, fds, os::kNoWait, &fds_lost)) return ReceiveResult::kDisconnected;
  if (fds_lost) return ReceiveResult::kLost;
  if (fds.empty()) return ReceiveResult::kDisconnected;
  const auto memory = os::map_shared(fds.front().get(), mad_bytes, mad_bytes, false);
  if (!memory) return ReceiveResult::kDisconnected;
  std::copy_n(first.begin(), um::kUserMadBytes, buffer);
  std::ranges::copy(memory->bytes(), buffer + um::kUserMadBytes);
  return ReceiveResult::kMad;
}

namespace {

int send(int fd, ib_user_mad& mad, std::size_t bytes) {
  const auto port = OpenPort::find(fd);
  if (!port) return EBADF;
  if (bytes > um::kMadBytesMax) return EINVAL;
  const bool in_memory = bytes > um::kInlineBytesMax;
  std::vector<std::byte> request = um::encode(um::Send{.in_memory = in_memory});
  const auto* from = reinterpret_cast<const std::byte*>(&mad);
  const std::size_t inline_bytes = um::kUserMadBytes + (in_memory ? 0 : bytes);
  request.insert(request.end(), from, from + inline_bytes);
  if (!in_memory) return port->ask(request).error;
  const auto memory = os::create_shared_memory("verbena-mad", bytes);
  if (!memory) return ENOMEM;
  std::copy_n(from + um::kUserMadBytes, bytes, memory->mapping.bytes().begin());
  const int memory_fd = memory->fd.get();
  return port->ask(request, std::span(&memory_fd, 1)).error;
}

// Waits for a MAD, as libibumad does.  Returns 0 or a negative errno.  This function is a
// cancellation point.
int wait_for_mad(int fd, int timeout_ms) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&one, 1, timeout_ms);
  if (ready == 1) return 0;
  return ready == 0 ? -ETIMEDOUT : -EIO;
}

// Waits until the timeout, as a call on a removed device does.  An immediate error would let a
// program that receives in a loop use a whole processor.
int wait_for_nothing(int timeout_ms) {
  explain("the fabric has ended: no more MADs arrive");
  if (timeout_ms != 0) ::poll(nullptr, 0, timeout_ms);
  errno = timeout_ms == 0 ? EAGAIN : ETIMEDOUT;
  return -errno;
}

int receive(int fd, ib_user_mad& mad, int& length, int timeout_ms) {
  if (timeout_ms != 0) {
    if (const int error = wait_for_mad(fd, timeout_ms); error < 0) {
      if (errno == 0) errno = -error;
      return error;
    }
  }
  const auto port = OpenPort::find(fd);
  if (!port) {
    errno = EBADF;
    return -EBADF;
  }
  std::size_t mad_bytes = 0;
  const std::size_t capacity = um::kUserMadBytes + static_cast<std::size_t>(std::max(length, 0));
  OpenPort::ReceiveResult result{};
  if (guarded([&] {
        result = port->receive(mad, capacity, mad_bytes);
        return 0;
      }) != 0) {
    errno = ENOMEM;
    return -ENOMEM;
  }
  switch (result) {
    case OpenPort::ReceiveResult::kMad:
      length = static_cast<int>(mad_bytes);
      return static_cast<int>(mad.agent_id);
    case OpenPort::ReceiveResult::kNothing: errno = EAGAIN; break;
    case OpenPort::ReceiveResult::kTooShort:
      length = static_cast<int>(mad_bytes);
      errno = ENOSPC;
      break;
    case OpenPort::ReceiveResult::kInvalid: errno = EINVAL; break;
    case OpenPort::ReceiveResult::kLost: errno = EMFILE; break;
    case OpenPort::ReceiveResult::kDisconnected: return wait_for_nothing(timeout_ms);
  }
  return -errno;
}

// Registers a MAD agent.  Returns its number, or a negative errno; prints the reason if
// umad_debug() is set.
int add_agent(int fd, const um::Register& request) {
  const auto port = OpenPort::find(fd);
  if (!port) {
    errno = EBADF;
    return -EBADF;
  }
  const um::Reply reply = port->ask(um::encode(request));
  if (reply.error == 0) return static_cast<int>(reply.value);
  if (debug_level() > 0) explain("a MAD agent was refused: " + reply.text);
  errno = reply.error;
  return -reply.error;
}

std::uint32_t qpn_of(unsigned mgmt_class) {
  return mgmt_class == 0x01 || mgmt_class == 0x81 ? 0 : 1;
}

um::Register registration(unsigned mgmt_class, unsigned version, unsigned rmpp_version,
                          const void* methods) {
  um::Register request{.qpn = qpn_of(mgmt_class),
                       .mgmt_class = static_cast<std::uint8_t>(mgmt_class),
                       .class_version = static_cast<std::uint8_t>(version),
                       .rmpp_version = static_cast<std::uint8_t>(rmpp_version)};
  if (methods != nullptr) std::memcpy(request.methods.data(), methods, sizeof request.methods);
  return request;
}

constexpr std::uint32_t kOpenIbOui = 0x001405;

}  // namespace
}  // namespace verbena::abi::umad

using namespace verbena::abi;
using namespace verbena::abi::umad;

VB_EXPORT int umad_open_port(const char* ca_name, int portnum) {
  int result = 0;
  if (guarded([&] {
        result = OpenPort::open(ca_name, portnum, false);
        return 0;
      }) != 0) {
    return -ENOMEM;
  }
  return result;
}

VB_EXPORT int umad_open_smi_port(const char* ca_name, int portnum) {
  int result = 0;
  if (guarded([&] {
        result = OpenPort::open(ca_name, portnum, true);
        return 0;
      }) != 0) {
    return -ENOMEM;
  }
  return result;
}

VB_EXPORT int umad_close_port(int portid) {
  OpenPort::close(portid);
  return 0;
}

VB_EXPORT int umad_get_fd(int portid) { return portid; }

VB_EXPORT int umad_send(int portid, int agentid, void* umad, int length, int timeout_ms,
                        int retries) {
  auto& mad = *static_cast<ib_user_mad*>(umad);
  mad.timeout_ms = static_cast<std::uint32_t>(timeout_ms);
  mad.retries = static_cast<std::uint32_t>(retries);
  mad.agent_id = static_cast<std::uint32_t>(agentid);
  if (debug_level() > 1) umad_dump(umad);
  const int error =
      length < 0 ? EINVAL
                 : guarded([&] { return send(portid, mad, static_cast<std::size_t>(length)); });
  errno = error;
  return error == 0 ? 0 : -EIO;
}

// A thread can be cancelled here only in poll(), which is outside guarded().
VB_EXPORT int umad_recv(int portid, void* umad, int* length, int timeout_ms) {
  errno = 0;
  if (umad == nullptr || length == nullptr) return -(errno = EINVAL);
  return receive(portid, *static_cast<ib_user_mad*>(umad), *length, timeout_ms);
}

VB_EXPORT int umad_poll(int portid, int timeout_ms) { return wait_for_mad(portid, timeout_ms); }

VB_EXPORT int umad_register(int portid, int mgmt_class, int mgmt_version, std::uint8_t rmpp_version,
                            long method_mask[16 / sizeof(long)]) {
  int id = -ENOMEM;
  guarded([&] {
    um::Register request =
        registration(static_cast<unsigned>(mgmt_class), static_cast<unsigned>(mgmt_version),
                     rmpp_version, method_mask);
    request.oui = kOpenIbOui;
    id = add_agent(portid, request);
    return 0;
  });
  return id < 0 ? -EPERM : id;
}

VB_EXPORT int umad_register_oui(int portid, int mgmt_class, std::uint8_t rmpp_version,
                                std::uint8_t oui[3], long method_mask[16 / sizeof(long)]) {
  if (mgmt_class < 0x30 || mgmt_class > 0x4f) return -EINVAL;
  int id = -ENOMEM;
  guarded([&] {
    um::Register request =
        registration(static_cast<unsigned>(mgmt_class), 1, rmpp_version, method_mask);
    request.oui = std::uint32_t{oui[0]} << 16 | std::uint32_t{oui[1]} << 8 | oui[2];
    id = add_agent(portid, request);
    return 0;
  });
  return id < 0 ? -EPERM : id;
}

VB_EXPORT int umad_register2(int port_fd, umad_reg_attr* attr, std::uint32_t* agent_id) {
  if (attr == nullptr || agent_id == nullptr) return EINVAL;
  const bool vendor = attr->mgmt_class >= 0x30 && attr->mgmt_class <= 0x4f;
  if (vendor && ((attr->oui & 0xffffff) == 0 || (attr->oui & 0xff000000) != 0)) return EINVAL;
  if ((attr->flags & ~std::uint32_t{UMAD_USER_RMPP}) != 0) {
    attr->flags = 0;  // the original libibumad also clears the flags when it refuses them
    return errno = EINVAL;
  }
  int id = -ENOMEM;
  guarded([&] {
    um::Register request = registration(attr->mgmt_class, attr->mgmt_class_version,
                                        attr->rmpp_version, attr->method_mask);
    request.oui = attr->oui;
    request.rmpp_by_agent = (attr->flags & UMAD_USER_RMPP) != 0;
    id = add_agent(port_fd, request);
    return 0;
  });
  if (id < 0) return -id;
  *agent_id = static_cast<std::uint32_t>(id);
  return 0;
}

VB_EXPORT int umad_unregister(int portid, int agentid) {
  const int error = guarded([&] {
    const auto port = OpenPort::find(portid);
    if (!port) return EBADF;
    return port->ask(um::encode(um::Unregister{.agent = static_cast<std::uint32_t>(agentid)}))
        .error;
  });
  return error == 0 ? 0 : failed(error);
}
