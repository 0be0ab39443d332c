#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "os/fd.h"
#include "port.h"

namespace verbena::wire_bench {
namespace {

constexpr std::size_t kLengthBytes = 4;  // a big-endian length precedes each frame
constexpr std::size_t kFrameBytesMax = 65'536;
// Drops frames while more bytes than this wait for the guest, as the queue of a switch does.
constexpr std::size_t kOutputBytesMax = 1 << 20;

class Guest final : public Port {
 public:
  explicit Guest(os::Fd listener) : listener_(std::move(listener)) {}

  int fd() const override { return stream_ ? stream_.get() : listener_.get(); }
  bool wants_output() const override { return stream_ && !output_.empty(); }
  bool has_input() const override { return frame_bytes().has_value(); }

  std::span<const std::byte> read(std::span<std::byte> buffer) override {
    if (!stream_ && !accept()) return {};
    flush();
    auto frame = take_frame(buffer);
    if (!frame.empty() || !stream_) return frame;
    std::array<std::byte, kFrameBytesMax> received;
    const ssize_t bytes = ::recv(stream_.get(), received.data(), received.size(), MSG_DONTWAIT);
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR)) return disconnect();
    if (bytes < 0) return {};
    input_.insert(input_.end(), received.begin(), received.begin() + bytes);
    return take_frame(buffer);
  }

  bool write(std::span<const std::byte> frame) override {
    if (!stream_ || output_.size() + frame.size() > kOutputBytesMax) return false;
    const auto length = static_cast<std::uint32_t>(frame.size());
    for (int shift = 24; shift >= 0; shift -= 8) {
      output_.push_back(static_cast<std::byte>(length >> shift));
    }
    output_.insert(output_.end(), frame.begin(), frame.end());
    flush();
    return true;
  }

 private:
  bool accept() {
    stream_ = os::Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return static_cast<bool>(stream_);
  }

  std::span<const std::byte> disconnect() {
    stream_ = os::Fd();
    input_.clear();
    output_.clear();
    return {};
  }

  // Returns the length of the next frame, or nothing if a part of the frame is missing.  Also
  // returns a length above kFrameBytesMax, which take_frame() refuses.
  std::optional<std::size_t> frame_bytes() const {
    if (input_.size() < kLengthBytes) return std::nullopt;
    std::size_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length = (length << 8) | std::to_integer<std::size_t>(input_[i]);
    }
    if (input_.size() < kLengthBytes + std::min(length, kFrameBytesMax)) return std::nullopt;
    return length;
  }

  std::span<const std::byte> take_frame(std::span<std::byte> buffer) {
    const auto length = frame_bytes();
    if (!length) return {};
    if (*length > buffer.size()) return disconnect();  // QEMU sends no such frame
    const auto begin = input_.begin() + kLengthBytes;
    const auto end = begin + static_cast<std::ptrdiff_t>(*length);
    std::copy(begin, end, buffer.begin());
    input_.erase(input_.begin(), end);
    return buffer.first(*length);
  }

  void flush() {
    if (output_.empty()) return;
    const ssize_t bytes =
        ::send(stream_.get(), output_.data(), output_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes > 0) output_.erase(output_.begin(), output_.begin() + bytes);
  }

  os::Fd listener_;
  os::Fd stream_;  // open while a guest is connected
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
};

}  // namespace

std::unique_ptr<Port> open_guest(const std::string& path, std::string& problem) {
  const auto failed = [&](const std::string& step) {
    problem = step + ": " + std::strerror(errno);
    return nullptr;
  };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    problem = path + ": too long for a socket";
    return nullptr;
  }
  path.copy(address.sun_path, path.size());
  os::Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    return failed("listening on " + path);
  }
  return std::make_unique<Guest>(std::move(listener));
}

}  // namespace verbena::wire_bench
