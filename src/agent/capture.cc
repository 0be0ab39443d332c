#include "agent/capture.h"

#include <algorithm>
#include <utility>

#include "verbena_build.h"

namespace verbena::agent {

void CaptureMerge::add(link::CaptureRecord record) {
  waiting_bytes_ += record.frame.size();
  const Time time = record.time;
  waiting_.emplace(time, std::move(record));
}

std::vector<link::CaptureRecord> CaptureMerge::take(Time until) {
  std::vector<link::CaptureRecord> records;
  const auto end = waiting_.upper_bound(until);
  for (auto at = waiting_.begin(); at != end; ++at) {
    waiting_bytes_ -= at->second.frame.size();
    records.push_back(std::move(at->second));
  }
  waiting_.erase(waiting_.begin(), end);
  return records;
}

CaptureFile::CaptureFile(os::Fd file, std::uint64_t wall_clock_offset_ns, Time start)
    : file_(std::move(file)), wall_clock_offset_ns_(wall_clock_offset_ns), start_(start) {
  pcapng::section_header(buffer_, "Verbena " VB_BUILD_ID,
                         "RoCEv2 packets recorded by Verbena in the programs themselves; the "
                         "Ethernet addresses are made up from the IP addresses");
  pcapng::interface_description(buffer_, "verbena0");
}

std::uint64_t CaptureFile::wall_clock(Time time) const {
  return static_cast<std::uint64_t>(time.time_since_epoch().count()) + wall_clock_offset_ns_;
}

void CaptureFile::write(const link::CaptureRecord& record) {
  const bool infiniband = record.link_layer == LinkLayer::kInfiniband;
  if (infiniband && infiniband_packets_ == 0) {
    pcapng::interface_description(buffer_, "infiniband", LinkLayer::kInfiniband);
  }
  ++(infiniband ? infiniband_packets_ : packets_);
  const std::uint64_t time = wall_clock(record.time);
  if (infiniband) {
    pcapng::enhanced_packet(buffer_, time, record.direction,
                            pcapng::erf_infiniband(time, record.frame), kInfinibandInterface);
  } else {
    pcapng::enhanced_packet(buffer_, time, record.direction, record.frame, kEthernetInterface);
  }
  if (buffer_.size() >= kBufferBytes) flush();
}

void CaptureFile::flush() {
  if (!failure_ && !buffer_.empty()) {
    if (const auto written = os::write_all(file_.get(), buffer_); !written) {
      failure_ = written.error();
    }
  }
  buffer_.clear();
}

void CaptureFile::finish(Time end, std::uint64_t dropped) {
  if (infiniband_packets_ != 0) {
    pcapng::interface_statistics(buffer_, {.interface = kInfinibandInterface,
                                           .start_ns = wall_clock(start_),
                                           .end_ns = wall_clock(end),
                                           .received = infiniband_packets_});
  }
  pcapng::interface_statistics(buffer_, {.interface = kEthernetInterface,
                                         .start_ns = wall_clock(start_),
                                         .end_ns = wall_clock(end),
                                         .received = packets_ + dropped,
                                         .dropped = dropped});
  flush();
  file_.reset();
}

Capture::Capture(os::Fd file, std::uint64_t wall_clock_offset_ns, Time now)
    : start_(now), file_(std::move(file), wall_clock_offset_ns, now) {
  file_.flush();
}

Result<int> Capture::join(Program program, Time now) {
  if (rings_.size() >= kRingsMax)
    return fail(Errc::kNoResources, "too many programs in one capture (kRingsMax)");
  os::SharedMemory memory =
      VB_TRY(os::create_shared_memory("verbena-capture", link::CaptureRing::kBytes));
  const int fd = memory.fd.get();
  const link::CaptureRing ring(memory.mapping.bytes());
  rings_.insert_or_assign(program, Ring{std::move(memory), ring, ReportedCount(now)});
  return fd;
}

void Capture::leave(Program program, Time now) {
  const auto found = rings_.find(program);
  if (found == rings_.end()) return;
  read_ring(found->second, now);
  dropped_by_ended_programs_ += found->second.dropped.value();
  rings_.erase(found);
}

void Capture::add(link::CaptureRecord record, Time now) {
  // A program may give a record any time stamp.  Without the limits, a record with a time in the
  // future would never be written.
  record.time = std::clamp(record.time, start_, std::max(start_, now));
  merge_.add(std::move(record));
  if (merge_.waiting_bytes() > kWaitingBytesMax) write(kNever);
}

bool Capture::read_ring(Ring& ring, Time now) {
  const bool filling = ring.ring.is_filling_up();
  for (std::size_t i = 0; i < kRecordsPerRead && !ring.broken; ++i) {
    auto record = ring.ring.read();
    if (!record) {
      ring.broken = true;  // only the ring's own program can damage it; other rings still work
    } else if (!*record) {
      break;
    } else {
      add(std::move(**record), now);
    }
  }
  ring.dropped.update(ring.ring.dropped(), now);
  return filling;
}

bool Capture::tick(Time now) {
  bool filling = false;
  for (auto& [program, ring] : rings_) filling |= read_ring(ring, now);
  write(now - kSettleTime);
  file_.flush();
  return filling;
}

void Capture::flush(Time now) {
  for (auto& [program, ring] : rings_) read_ring(ring, now);
  // If several programs record, one of them may be writing a record that is older than `now`.
  write(rings_.size() > 1 ? now - kSettleTime : kNever);
  file_.flush();
}

void Capture::flush_all(Time now) {
  for (auto& [program, ring] : rings_) read_ring(ring, now);
  write(kNever);
  file_.flush();
}

void Capture::finish(Time now) {
  flush_all(now);
  file_.finish(now, dropped());
}

std::uint64_t Capture::dropped() const {
  std::uint64_t sum = dropped_by_ended_programs_;
  for (const auto& [program, ring] : rings_) sum += ring.dropped.value();
  return sum;
}

void Capture::write(Time until) {
  for (const auto& record : merge_.take(until)) file_.write(record);
}

}  // namespace verbena::agent
