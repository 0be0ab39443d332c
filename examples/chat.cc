// Runs a chat over multicast:  chat GROUP ADDRESS NAME
//
// The program sends each line of its standard input to all members of GROUP (such as 239.1.2.3), on
// the network of the interface with ADDRESS.  It shows how a program can wait for the loop in its
// own poll(), and how it can wait until its send queue has space.
#include <poll.h>
#include <unistd.h>
#include <verbena/verbena.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using namespace verbena;

namespace {

constexpr std::uint32_t kQkey = 0x63686174;  // datagrams with another Q_Key are dropped
constexpr std::size_t kLineBytes = 512;
constexpr std::size_t kSlotBytes = kDatagramHeaderBytes + kLineBytes;
constexpr std::size_t kSlots = 64;         // number of posted receive requests
constexpr std::uint64_t kSendId = kSlots;  // the id of all send requests
// One of this many sends has a completion.  The completion also frees the send queue's entries of
// the sends before it.
constexpr std::size_t kSendsPerCompletion = kSlots / 2;

// Holds the queue pair of the chat, and its receive buffers.
struct Room {
  std::vector<std::byte> memory = std::vector<std::byte>(kSlots * kSlotBytes);
  Device device;
  ProtectionDomain pd;
  CompletionQueue cq;
  MemoryRegion region;
  QueuePair qp;
  std::size_t sent_count = 0;
  std::size_t queued_sends = 0;  // sends whose entries of the send queue may be in use

  explicit Room(Loop& loop)
      : device(value_of(Device::open(loop).wait())),
        pd(value_of(device.create_pd().wait())),
        cq(value_of(device.create_cq(2 * kSlots).wait())),
        region(value_of(pd.register_memory(memory, Access::kLocalWrite).wait())),
        qp(value_of(QueuePair::create(pd, cq, cq, queue_pair_options()).wait())) {
    value_of(qp.start_datagrams(kQkey));
    for (std::size_t slot = 0; slot < kSlots; ++slot) receive(slot);
  }
  static QueuePairOptions queue_pair_options() {
    QueuePairOptions options;
    options.transport = Transport::kUd;
    options.send_requests = options.receive_requests = kSlots;
    options.inline_bytes = kLineBytes;
    return options;
  }
  void receive(std::size_t slot) {
    value_of(qp.post_receive(slot, region.segment(slot * kSlotBytes, kSlotBytes)));
  }
  bool can_send() const { return queued_sends < kSlots; }
  // Sends the line inline, so it need not live after the call.  REQUIRES: can_send().
  void send(const AddressHandle& everybody, std::string line) {
    line.resize(std::min(line.size(), kLineBytes));
    const Segment bytes{reinterpret_cast<std::byte*>(line.data()),
                        static_cast<std::uint32_t>(line.size()), 0};
    const bool is_signaled = ++sent_count % kSendsPerCompletion == 0;
    ++queued_sends;
    value_of(qp.post(
        {.id = kSendId,
         .flags = is_signaled ? SendFlags::kInline | SendFlags::kSignaled : SendFlags::kInline,
         .segments = bytes,
         .to = &everybody,
         .queue_pair = kAllMembers,
         .qkey = kQkey}));
  }
};

Task<> print_lines(Room& room) {
  std::array<Completion, 16> buffer{};
  for (;;) {
    for (const Completion& done : co_await room.cq.next(buffer)) {
      if (done.status != 0) throw std::runtime_error(status_text(done));
      if (done.wr_id == kSendId) {
        room.queued_sends -= kSendsPerCompletion;
        continue;
      }
      const std::byte* const datagram = room.memory.data() + done.wr_id * kSlotBytes;
      std::printf("%.*s\n", static_cast<int>(done.byte_len - kDatagramHeaderBytes),
                  reinterpret_cast<const char*>(datagram + kDatagramHeaderBytes));
      std::fflush(stdout);
      room.receive(done.wr_id);
    }
  }
}

// Finds the entry of the address in the device's GID table.
GidEntry gid_entry_of(const Device& device, const std::string& address) {
  const Gid gid = value_of(Address::find(address, 0)).gid();
  const std::vector<GidEntry> all = device.gids();
  const auto found = std::ranges::find(all, gid, &GidEntry::gid);
  if (found == all.end()) throw std::runtime_error(address + " is no address of this host");
  return *found;
}

// Removes the first line from the text and returns it, or nothing if the text has no complete line.
std::optional<std::string> take_line(std::string& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

void chat(const std::string& group_name, const std::string& address, const std::string& name) {
  const auto loop = value_of(Loop::create());
  Room room(*loop);
  const GidEntry source = gid_entry_of(room.device, address);
  const Gid group = value_of(Address::find(group_name, 0)).gid();
  const AddressHandle everybody = value_of(AddressHandle::create(room.pd, source, group, 1).wait());
  const GroupMembership membership = value_of(room.qp.attach(group, source.interface).wait());
  loop->spawn(print_lines(room));
  std::printf("%s is here\n", name.c_str());
  std::fflush(stdout);

  std::string input;
  std::array<char, 256> buffer{};
  for (;;) {
    while (loop->run_ready()) {
    }
    while (room.can_send()) {
      const auto line = take_line(input);
      if (!line) break;
      room.send(everybody, name + ": " + *line);
    }
    // While the send queue is full, poll() ignores standard input, and waits for completions only.
    std::array<pollfd, 2> fds{
        {{room.can_send() ? STDIN_FILENO : -1, POLLIN, 0}, {loop->fd(), POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), -1);
    if (fds[0].revents == 0) continue;
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count <= 0) break;
    input.append(buffer.data(), static_cast<std::size_t>(count));
  }
  if (!input.empty()) room.send(everybody, name + ": " + input);  // the last line has no newline
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: chat GROUP ADDRESS NAME\n");
    return 2;
  }
  try {
    chat(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "chat: %s\n", problem.what());
    return 1;
  }
}
