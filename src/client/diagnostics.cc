#include "client/diagnostics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/printable.h"
#include "os/address.h"
#include "os/fd.h"
#include "rdmacm/service_id.h"
#include "wire/cm_common.h"

namespace verbena::client {
namespace {

using rdmacm::EventKind;
using Step = process::Connection::Step;

std::string address_text(const Gid& gid) { return os::address_text(gid); }

std::string address_text(const rdmacm::SocketAddress& address) {
  std::string ip = os::address_text(address.ip);
  switch (rdmacm::named_by(address)) {
    case rdmacm::NamedBy::kPort: break;
    case rdmacm::NamedBy::kService:
      return fmt::format("{} service 0x{:x}", ip, address.service.value);
    case rdmacm::NamedBy::kNothing: return ip;
  }
  return address.family == 6 ? fmt::format("[{}]:{}", ip, address.port)
                             : fmt::format("{}:{}", ip, address.port);
}

const char* step_text(Step step) {
  switch (step) {
    case Step::kNone: break;
    case Step::kResolve: return "resolving";
    case Step::kRoute: return "finding the route to";
    case Step::kConnect: return "connect to";
    case Step::kAccept: return "accept of";
  }
  return "connection with";
}

// Returns true for events that may report a failure.  So text_of() does no formatting for other
// events, which are the most frequent.
bool may_report_failure(const rdmacm::Event& event) {
  switch (event.kind) {
    case EventKind::kRejected:
    case EventKind::kUnreachable:
    case EventKind::kAddrError:
    case EventKind::kRouteError:
    case EventKind::kConnectError:
    case EventKind::kMulticastError:
    case EventKind::kPathUnanswered: return true;
    case EventKind::kDisconnected: return event.status != 0;
    default: return false;
  }
}

// Describes a status.  Failures have a negative errno as their status.
std::string errno_text(std::int32_t status) {
  return status < 0 ? std::strerror(-status) : fmt::format("status {}", status);
}

const char* opcode_text(hca::WrOpcode opcode) {
  switch (opcode) {
    case hca::WrOpcode::kWrite:
    case hca::WrOpcode::kWriteImm: return "WRITE";
    case hca::WrOpcode::kRead: return "READ";
    case hca::WrOpcode::kCompareSwap:
    case hca::WrOpcode::kFetchAdd: return "atomic";
    case hca::WrOpcode::kAtomicWrite: return "ATOMIC WRITE";
    case hca::WrOpcode::kLocalInvalidate: return "local invalidate";
    case hca::WrOpcode::kBindWindow: return "bind of a memory window";
    default: return "SEND";
  }
}

}  // namespace

// ---- texts --------------------------------------------------------------------------------------

std::string duration_text(Duration spent) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(spent).count();
  return ms < 1000 ? fmt::format("{} ms", ms) : fmt::format("{}.{} s", ms / 1000, ms / 100 % 10);
}

std::optional<std::string> text_of(const rdmacm::Event& event, Step step, Duration spent) {
  if (!may_report_failure(event)) return std::nullopt;
  const std::string peer = address_text(event.destination);
  // If the connection is in no step, there is no start time.  Then the text names no duration.
  const std::string failed =
      step == Step::kNone
          ? fmt::format("{} {} failed: ", step_text(step), peer)
          : fmt::format("{} {} failed after {}: ", step_text(step), peer, duration_text(spent));
  switch (event.kind) {
    case EventKind::kRejected:
      return fmt::format("{}rejected, {} (REJ reason {})", failed,
                         wire::cm::to_string(static_cast<wire::cm::RejReason>(event.status)),
                         event.status);
    case EventKind::kUnreachable:
      if (event.status > 0) {
        return fmt::format("{}refused, {} (SIDR status {})", failed,
                           wire::cm::to_string(static_cast<wire::cm::SidrStatus>(event.status)),
                           event.status);
      }
      if (event.tries == 0)
        return failed + "too many other connections are pending, and the peer is silent or slow";
      return fmt::format(
          "{}unreachable, {} messages without an answer; is the peer running, and "
          "can UDP packets to port 4791 reach it?",
          failed, event.tries);
    case EventKind::kAddrError:
    case EventKind::kRouteError:
    case EventKind::kConnectError: return failed + errno_text(event.status);
    case EventKind::kMulticastError:
      return fmt::format("joining the group {} failed: {}",
                         address_text(event.path.address.destination), errno_text(event.status));
    case EventKind::kPathUnanswered:
      return fmt::format("offering an alternate path to {} failed: {} messages without an answer",
                         peer, event.tries);
    case EventKind::kDisconnected:
      return fmt::format("connection with {} ended: {}", peer,
                         event.status == -ETIMEDOUT ? "the peer does not answer"
                                                    : "the peer has no record of the connection");
    default: return std::nullopt;
  }
}

std::string text_of(const hca::RequestFailure& failure, Duration spent) {
  const std::string qps =
      fmt::format("QP 0x{:06x} to {} (QP 0x{:06x})", failure.qpn.value,
                  address_text(failure.destination), failure.destination_qpn.value);
  const char* status = hca::to_string(failure.status);
  if (failure.is_receive) return fmt::format("{}: RECEIVE failed: {}", qps, status);
  const std::string failed =
      fmt::format("{}: {} failed: {}", qps, opcode_text(failure.opcode), status);
  if (failure.tries == 0) return failed + ", before anything was sent";
  const std::string tries =
      fmt::format("{} {}", failure.tries, failure.tries == 1 ? "try" : "tries");
  switch (failure.status) {
    case hca::WcStatus::kRetryExceeded:
      return fmt::format("{}, no answer to {} in {}", failed, tries, duration_text(spent));
    case hca::WcStatus::kRnrRetryExceeded:
      return failure.rnr_retry == 0
                 ? failed + ", the peer had no receive posted and rnr_retry 0 asks for no retries"
                 : fmt::format("{}, the peer had no receive posted in {} in {}", failed, tries,
                               duration_text(spent));
    default: return fmt::format("{}, {} in {}", failed, tries, duration_text(spent));
  }
}

// ---- lines --------------------------------------------------------------------------------------

bool LineBudget::take(Time now) {
  if (remaining_ < kLinesMax && now > since_) {
    const auto refilled = static_cast<std::uint64_t>((now - since_) / kOneMoreEvery);
    if (refilled >= kLinesMax - remaining_) {
      remaining_ = kLinesMax;
    } else {
      remaining_ += static_cast<std::uint32_t>(refilled);
      since_ += kOneMoreEvery * static_cast<Duration::rep>(refilled);
    }
  }
  if (remaining_ == 0) return false;
  if (remaining_-- == kLinesMax) since_ = now;
  return true;
}

Diagnostics::Diagnostics() {
  const char* value = ::secure_getenv("VERBENA_VERBOSE");
  enabled_ = value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

std::optional<std::string> RepeatFilter::take(const std::string& text, Time now) {
  std::string kind;
  for (const char c : text) {
    if (c < '0' || c > '9') kind += c;
  }
  const auto entry = std::ranges::find(kinds_, kind, &Kind::text);
  if (entry != kinds_.end() && now - entry->written_at < kWindow) {
    ++entry->repeats;
    ++suppressed_;
    return std::nullopt;
  }
  // A new kind replaces the kind that was written longest ago.
  Kind& slot =
      entry != kinds_.end() ? *entry : *std::ranges::min_element(kinds_, {}, &Kind::written_at);
  const std::uint64_t repeats = entry != kinds_.end() ? slot.repeats : 0;
  slot = {.text = std::move(kind), .last_line = text, .written_at = now};
  return repeats == 0 ? text
                      : fmt::format("{} (and {} similar line{} since the last one)", text, repeats,
                                    repeats == 1 ? "" : "s");
}

std::string RepeatFilter::omitted_note() {
  std::string text;
  for (Kind& kind : kinds_) {
    if (kind.repeats == 0) continue;
    text += fmt::format(" ({} repeats of '{}' were left out)", std::exchange(kind.repeats, 0),
                        kind.last_line);
  }
  return text;
}

void Diagnostics::write(const std::string& text, Time now) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  write_line(text + repeats_.omitted_note(), now);
}

void Diagnostics::write_refusal(const std::string& text, Time now) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  if (const auto line = repeats_.take("refused: " + text, now)) write_line(*line, now);
}

void Diagnostics::write_line(const std::string& text, Time now) {
  const auto leave_out = [this] { ++omitted_, ++omitted_since_line_; };
  if (!budget_.take(now)) return leave_out();
  std::string line =
      fmt::format("verbena: {}[{}]: {}", printable_name(program_invocation_short_name), ::getpid(),
                  printable(text));
  if (omitted_since_line_ > 0)
    line += fmt::format(" ({} lines before this one were left out)", omitted_since_line_);
  line += '\n';
  if (!os::try_write(STDERR_FILENO, line)) return leave_out();
  ++written_;
  omitted_since_line_ = 0;
}

std::uint64_t Diagnostics::written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

std::uint64_t Diagnostics::suppressed() const {
  const std::lock_guard lock(mutex_);
  return repeats_.suppressed();
}

std::uint64_t Diagnostics::omitted() const {
  const std::lock_guard lock(mutex_);
  return omitted_;
}

}  // namespace verbena::client
