// Copies a file with RDMA READ: one program offers the file, and the other one reads it.
//     rcopy offer FILE PORT           rcopy fetch SERVER PORT FILE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <verbena/verbena.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

using namespace verbena;

namespace {

constexpr std::uint64_t kPartBytes = 1 << 20;
constexpr unsigned kPendingReadsMax = 8;

// Maps a file into memory.
class MappedFile {
 public:
  MappedFile(const std::string& path, bool create, std::uint64_t bytes) {
    const int fd = ::open(path.c_str(), create ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0644);
    struct stat status {};
    if (fd < 0 || (create && ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) ||
        ::fstat(fd, &status) != 0) {
      throw std::runtime_error(path + ": " + std::strerror(errno));
    }
    bytes_ = static_cast<std::size_t>(status.st_size);
    if (bytes_ == 0) throw std::runtime_error(path + " is empty");
    // A file that is only read is mapped as private, because adapters need pinned pages, and Linux
    // does not pin shared pages of a file that the program cannot write to.
    memory_ = create ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    ::close(fd);
    if (memory_ == MAP_FAILED) throw std::runtime_error(path + ": " + std::strerror(errno));
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() { ::munmap(memory_, bytes_); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

Task<> offer(Loop& loop, std::string path, std::uint16_t port) {
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  CompletionQueue cq = value_of(co_await device.create_cq(16));
  const MappedFile file(path, false, 0);
  const MemoryRegion region =
      value_of(co_await pd.register_memory(file.bytes(), Access::kRemoteRead));
  Listener listener = value_of(co_await Listener::create(loop, value_of(Address::find("", port))));
  std::printf("offering %s, %zu bytes\n", path.c_str(), file.bytes().size());
  std::fflush(stdout);

  // The answer to the connection request carries the address and key of the memory.  From then on
  // the other side reads by itself, and this program only waits.
  const auto remote_memory =
      std::bit_cast<std::array<std::byte, sizeof(RemoteMemory)>>(region.remote());
  Listener::IncomingRequest request = co_await listener.next();
  ConnectOptions options;
  options.private_data.assign(remote_memory.begin(), remote_memory.end());
  Connection peer = value_of(co_await Listener::accept(pd, cq, std::move(request), options));
  co_await disconnected(peer.id);
}

Task<> fetch(Loop& loop, std::string server, std::uint16_t port, std::string path) {
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  CompletionQueue cq = value_of(co_await device.create_cq(16));
  Connection peer = value_of(co_await connect(pd, cq, value_of(Address::find(server, port))));
  RemoteMemory remote;
  if (peer.private_data.size() < sizeof remote) {
    throw std::runtime_error("the server is not an rcopy");
  }
  std::memcpy(&remote, peer.private_data.data(), sizeof remote);
  const MappedFile file(path, true, remote.bytes);
  const MemoryRegion region =
      value_of(co_await pd.register_memory(file.bytes(), Access::kLocalWrite));

  std::array<Completion, kPendingReadsMax> completions{};
  unsigned pending_reads = 0;
  for (std::uint64_t next_offset = 0; next_offset < remote.bytes || pending_reads > 0;) {
    while (next_offset < remote.bytes && pending_reads < kPendingReadsMax) {
      const std::uint64_t bytes = std::min(kPartBytes, remote.bytes - next_offset);
      value_of(peer.qp.post({.opcode = Opcode::kRead,
                             .segments = region.segment(next_offset, bytes),
                             .remote = remote,
                             .remote_offset = next_offset}));
      next_offset += bytes;
      ++pending_reads;
    }
    for (const Completion& done : co_await cq.next(completions)) {
      if (done.status != 0) throw std::runtime_error(std::string("READ: ") + status_text(done));
      --pending_reads;
    }
  }
  std::printf("fetched %s, %zu bytes\n", path.c_str(), file.bytes().size());
  value_of(co_await peer.id.disconnect());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto loop = value_of(Loop::create());
    const auto port = [](const char* text) { return static_cast<std::uint16_t>(std::atoi(text)); };
    if (argc == 4 && std::strcmp(argv[1], "offer") == 0) {
      loop->run(offer(*loop, argv[2], port(argv[3])));
    } else if (argc == 5 && std::strcmp(argv[1], "fetch") == 0) {
      loop->run(fetch(*loop, argv[2], port(argv[3]), argv[4]));
    } else {
      std::fprintf(stderr, "usage: rcopy offer FILE PORT | rcopy fetch SERVER PORT FILE\n");
      return 2;
    }
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "rcopy: %s\n", problem.what());
    return 1;
  }
}
