#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "link/address.h"
#include "link/capture.h"
#include "link/framing.h"
#include "link/peer_memory.h"
#include "ring/ring.h"
#include "ring/shared_memory.h"
#include "wire/bth.h"

namespace verbena::link {

// Observes every packet of lanes, for a capture.
class LaneObserver {
 public:
  // Is called for each packet that a lane sends or receives.  `transport` contains the bytes from
  // BTH to pad.
  virtual void on_packet(Direction direction, const Address& address,
                         std::span<const std::byte> transport) = 0;

 protected:
  ~LaneObserver() = default;
};

// Records that the sender has carried out a WRITE or READ directly in the receiver's memory.  The
// record takes the place of the packets of the request.
//
// A WRITE with immediate data still sends its last packet, which consumes a receive request.
// The record of such a WRITE takes the place of all packets but the last, and carries the header
// fields of the first packet.
struct ExecutedRecord {
  enum class Kind : std::uint32_t { kWrite, kRead, kWriteBeforeImmediate };
  std::uint64_t generation = 0;  // the generation of the target's QpRow
  std::uint32_t target_qpn = 0;
  std::uint32_t initiator_qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint32_t psns = 0;   // the number of packets that the record replaces, at least 1
  std::uint32_t bytes = 0;  // the number of copied bytes
  Kind kind = Kind::kWrite;
  // Only records of kWriteBeforeImmediate use the next three fields.
  std::uint32_t r_key = 0;
  std::uint32_t message_bytes = 0;   // the length of the whole WRITE
  std::uint64_t remote_address = 0;  // the address of the first byte of the WRITE
  friend bool operator==(const ExecutedRecord&, const ExecutedRecord&) = default;
};

// Carries transport packets between two processes of one host.  Both processes map the memory of
// the lane, which contains a ring for each direction.  Packets arrive complete and in order, so
// they need no ICRC.
//
//   sender                                    receiver
//   prepare(address): is there space?         receive(max, accept): accept(arrival) per packet
//   commit(bytes): the packet is visible      finish(): must the sender be woken?
//   flush(): must the receiver be woken?      park(): may this process sleep?
//
// Addresses have records of their own.  Both sides store the last addresses in kAddresses slots.
// So an address is sent only before its first packet, and again after another address has replaced
// it in its slot.  Only the record of an InfiniBand address contains the port.
//
// A process that accesses the other one's memory directly announces the access before it checks its
// rights.  The order is: begin_access(), peer_allows_access(), grant() (access_grant.h), the copy,
// leave(), commit(executed).  The other process must have called allow_access().  To revoke a
// right, the other process removes the row from its table, and then waits until the value of
// peer_access_number() changes or is 0.
//
// A Lane does not trust the peer (ring/ring.h).  If the peer writes an invalid record or position,
// the lane ends: ended() is true, and the lane sends and receives nothing any more.
//
// Threads: one at a time.
class Lane {
 public:
  static constexpr std::size_t kRingBytes = std::size_t{256} << 10;
  static constexpr std::size_t kControlBytes = 4096;  // a page, for both rings
  static constexpr std::size_t kBytes = kControlBytes + 2 * kRingBytes;
  static constexpr std::size_t kPacketBytesMin = wire::kSize<wire::Bth>;
  static constexpr std::size_t kPacketBytesMax = 4096 + 128;  // payload, headers, pad
  // The headers of a packet are not longer than this (vol1 9.2).
  static constexpr std::size_t kHeaderBytesMax = 80;

  // Chooses the ring through which a process sends.  The two processes of a lane have different
  // sides.
  enum class Side : std::uint8_t { kFirst, kSecond };

  // Attaches to a lane.  New memory is zeroed.  kInvalidArgument: the memory has the wrong size or
  // alignment.  REQUIRES: the memory outlives the lane.
  static Result<Lane> attach(std::span<std::byte> memory, Side side);

  // ---- sending ----
  // Prepares space for one packet.  Returns false if the ring is full now, or if the lane has
  // ended.
  bool prepare(const Address& address);
  // Returns the space that the last prepare() has prepared.  It is kPacketBytesMax bytes long.
  std::span<std::byte> packet_space() { return packet_space_; }
  // Makes the first `bytes` of packet_space() visible as a packet from BTH to pad.
  void commit(std::size_t bytes);
  // Returns the position in the stream of packets after the last committed packet.
  std::uint64_t position() const { return out_.position(); }
  // Returns true if the peer has consumed all packets before this position.  Also returns true if
  // the peer has corrupted the ring, because the lane has then ended and no caller must wait for
  // the peer.
  bool peer_has_consumed(std::uint64_t position) {
    const auto consumed = out_.has_consumed(position);
    if (!consumed) ended_ = true;
    return consumed.value_or(true);
  }
  // Ends a batch of packets.  Returns true if the peer must be woken.  ExecutedRecords alone need
  // no wake-up, unless there are kExecutedMax of them, because more could fill the ring.
  bool flush() {
    if (ended_ || (!must_flush_ && unflushed_executed_ < kExecutedMax)) return false;
    must_flush_ = false;
    unflushed_executed_ = 0;
    return out_.flush();
  }

  // ---- access to the peer's memory ----
  static constexpr std::uint32_t kExecutedMax = 1024;
  // Prepares space for a record of an executed request.  Returns false if the ring is full now, or
  // if the lane has ended.
  bool prepare_executed();
  // Makes the record visible.  REQUIRES: prepare_executed() was the last call that prepared space.
  void commit(const ExecutedRecord& executed);
  // Sets the object that accesses the peer's memory; null means that there is none.  REQUIRES: the
  // object lives until the lane is destroyed or this function is called again.
  void set_peer_memory(PeerMemory* memory) { peer_memory_ = memory; }
  PeerMemory* peer_memory() const { return peer_memory_; }
  // Tells the peer whether it may access this process's memory.  A process that allows accesses
  // must apply the peer's ExecutedRecords, and wait for the end of the peer's accesses.  If the
  // peer writes ExecutedRecords and was never allowed to access the memory, the lane ends.
  void allow_access(bool allowed);
  // Returns true if the peer allows accesses to its memory.  Call this function again after
  // begin_access().
  bool peer_allows_access() const {
    return ring::SharedMemory::load_acquire(peer_announcement_->allows_access) != 0;
  }
  // Announces an access to the peer's memory.  Check the rights after this call, not before it.
  void begin_access();
  // Announces the end of the access.
  void leave();
  // Returns 0 if the peer does not access this process's memory now, or was never allowed to.
  // Otherwise returns a number that differs for each of the peer's accesses.
  std::uint64_t peer_access_number() const {
    return access_was_allowed_ ? ring::SharedMemory::load_acquire(peer_announcement_->access_number)
                               : 0;
  }

  // ---- receiving ----
  // Reads at most `max` records, calls accept(arrival) for each packet, and returns the number of
  // packets.  Addresses count as records.  Also calls accept(record) for each ExecutedRecord, if
  // `accept` has that overload.  `arrival` is valid during the call.  The peer may change the
  // payload at any time, but the headers are a copy.  Each packet is at least as long as a BTH.
  // `accept` may return a bool for a packet.  If the bool is false, the packet remains in the lane,
  // and receive() returns.
  template <class Accept>
  std::size_t receive(std::size_t max, Accept accept) {
    if (in_.empty()) return 0;
    std::size_t packets = 0;
    std::optional<Arrival> arrival;
    for (std::size_t records = 0; records < max && read_next(arrival); ++records) {
      if (arrival) {
        if (observer_ != nullptr) observe(*arrival);
        if constexpr (std::is_same_v<decltype(accept(*arrival)), bool>) {
          if (!accept(*arrival)) break;
        } else {
          accept(*arrival);
        }
        ++packets;
      } else if constexpr (std::invocable<Accept, const ExecutedRecord&>) {
        if (received_executed_) accept(*received_executed_);
      }
      in_.consume();
    }
    return packets;
  }
  // Ends a batch of received packets.  Returns true if the peer waits for space and must be woken.
  bool finish() { return !ended_ && in_.finish(); }

  // ---- sleeping ----
  // Asks the peer to wake this process when the peer sends its next packet.  Also does what
  // park_for_space() does.  Returns false if there is a packet or space already; then do not sleep.
  // Returns true if the lane had ended before the call.
  bool park();
  // If the ring was full at a call of prepare() or prepare_executed(), asks the peer once to wake
  // this process when the peer has freed space.  Returns false if there is space already.  Returns
  // true if the lane had ended before the call.
  bool park_for_space();
  // Asks the peer not to wake this process, because it polls.
  void unpark() { in_.unpark(); }

  // Shows an observer all packets of this lane from now on; null removes the observer.  REQUIRES:
  // the observer outlives the lane.
  void set_observer(LaneObserver* observer) { observer_ = observer; }
  bool ended() const { return ended_; }

 private:
  static constexpr std::size_t kAddresses = 16;  // a power of two
  // Describes the direct accesses of one process.  It is in the shared memory.  That process writes
  // it, and the other process reads it.
  struct Announcement {
    // Holds the number of the access that is in progress, or 0.
    alignas(64) std::uint64_t access_number;
    // If this value is not 0, the other process may access the memory of the writing process.
    std::uint64_t allows_access;
  };

  Lane(ring::Producer out, ring::Consumer in, Announcement* own, Announcement* peer)
      : out_(out), in_(in), own_announcement_(own), peer_announcement_(peer) {}

  bool read_next(std::optional<Arrival>& arrival);
  bool interpret(const ring::Record& record, std::optional<Arrival>& arrival);
  void observe(const Arrival& arrival) {
    observer_->on_packet(Direction::kIn, arrival.address, arrival.transport);
  }
  bool store_address(const ring::Record& record);
  bool store_executed(const ring::Record& record);
  bool send_address(std::size_t slot, const Address& address);
  std::optional<std::span<std::byte>> prepare_record(std::size_t bytes);

  ring::Producer out_;
  ring::Consumer in_;
  std::array<std::optional<Address>, kAddresses> sent_addresses_{};
  std::array<std::optional<Address>, kAddresses> received_addresses_{};
  Announcement* own_announcement_;
  Announcement* peer_announcement_;
  PeerMemory* peer_memory_ = nullptr;
  std::uint64_t accesses_ = 0;  // counts the calls of begin_access()
  // Counts the ExecutedRecords since flush() last checked whether the peer must be woken.
  std::uint32_t unflushed_executed_ = 0;
  bool must_flush_ = false;                            // packets were sent since the last flush()
  std::optional<ExecutedRecord> received_executed_{};  // the record that read_next() has read
  std::span<std::byte> packet_space_{};
  std::span<std::byte> executed_space_{};
  std::uint16_t kind_ = 0;  // the kind of the record that commit(bytes) makes
  LaneObserver* observer_ = nullptr;
  // The ring was full at a call of prepare() or prepare_executed(), and no wake-up was requested
  // since.
  bool was_full_ = false;
  bool ended_ = false;
  bool access_was_allowed_ = false;  // allow_access(true) was called at least once
  alignas(64) std::array<std::byte, kHeaderBytesMax> headers_{};
};

}  // namespace verbena::link
