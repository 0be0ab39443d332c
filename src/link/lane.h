#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "link/address.h"
#include "link/capture.h"
#include "link/framing.h"
#include "ring/ring.h"
#include "wire/bth.h"

namespace verbena::link {

// Sees every packet of lanes, for a capture.
class LaneObserver {
 public:
  // `transport` is BTH to pad.
  virtual void passed(Direction direction, const Address& address,
                      std::span<const std::byte> transport) = 0;

 protected:
  ~LaneObserver() = default;
};

// Carries transport packets between two processes of one host through memory that both map: a ring
// for each direction.  Packets arrive complete and in order, so they need no ICRC.
//
//   sender                                    receiver
//   prepare(address): room for a packet       receive(max, take): take(arrival) for each packet
//   commit(bytes): the packet is visible      finish(): must the sender be woken?
//   flush(): must the receiver be woken?      park(): may this process sleep?
//
// A packet's address, which is one of Ethernet, precedes it in a record of its own, and is sent
// again only if it changes: each side stores the last addresses in kAddresses slots.
//
// The peer is not trusted (ring/ring.h).  If it writes something that no Lane writes, the lane
// ends: ended() is true, and nothing is sent or received any more.
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

  // Tells which ring a process sends through.  The two processes of a lane have different sides.
  enum class Side : std::uint8_t { kFirst, kSecond };

  // Attaches to a lane.  New memory is zeroed.  kInvalidArgument: the memory has the wrong size or
  // alignment.  REQUIRES: the memory outlives the lane.
  static Result<Lane> attach(std::span<std::byte> memory, Side side);

  // ---- sending ----
  // Prepares room for one packet.  Returns false if the ring is full now, or the lane has ended.
  bool prepare(const Address& address);
  // Returns the room that the last prepare() has made: kPacketBytesMax bytes.
  std::span<std::byte> room() { return room_; }
  // Makes the first `bytes` of the room visible as a packet, BTH to pad.
  void commit(std::size_t bytes);
  // Returns the place in the stream of packets after the last one that was committed.
  std::uint64_t position() const { return out_.position(); }
  // Returns true if the peer has taken all packets before that place.
  bool is_taken(std::uint64_t position) {
    const auto taken = out_.has_consumed(position);
    if (!taken) ended_ = true;
    return taken.value_or(true);
  }
  // Ends a batch of packets.  Returns true if the peer must be woken.
  bool flush() { return !ended_ && out_.flush(); }

  // ---- receiving ----
  // Reads at most `max` records, calls take(arrival) for those that are packets, and returns the
  // number of packets.  `arrival` is valid during the call.  The peer may change the payload at any
  // time; the headers are a copy.  Each packet is at least as long as a BTH.
  template <class Take>
  std::size_t receive(std::size_t max, Take take) {
    std::size_t packets = 0;
    std::optional<Arrival> arrival;
    for (std::size_t records = 0; records < max && next(arrival); ++records) {
      if (arrival) {
        if (observer_ != nullptr) observe(*arrival);
        take(*arrival);
        ++packets;
      }
      in_.consume();
    }
    return packets;
  }
  // Ends a batch of received packets.  Returns true if the peer waits for room and must be woken.
  bool finish() { return !ended_ && in_.finish(); }

  // ---- sleeping ----
  // Asks the peer to wake this process with its next packet, and, if prepare() has failed since the
  // last call, when there is room.  Returns false if there is a packet or room already: do not
  // sleep.
  bool park();
  // Asks the peer not to wake this process, because it looks by itself.
  void unpark() { in_.unpark(); }

  // Lets an observer see the packets of this lane; null ends that.  REQUIRES: the observer outlives
  // the lane.
  void set_observer(LaneObserver* observer) { observer_ = observer; }
  bool ended() const { return ended_; }

 private:
  static constexpr std::size_t kAddresses = 16;  // a power of two

  Lane(ring::Producer out, ring::Consumer in) : out_(out), in_(in) {}

  bool next(std::optional<Arrival>& arrival);
  bool read(const ring::Record& record, std::optional<Arrival>& arrival);
  void observe(const Arrival& arrival) {
    observer_->passed(Direction::kIn, arrival.address, arrival.transport);
  }
  bool store_address(const ring::Record& record);
  bool send_address(std::size_t slot, const Address& address);
  std::optional<std::span<std::byte>> prepare_record(std::size_t bytes);

  ring::Producer out_;
  ring::Consumer in_;
  std::array<std::optional<Address>, kAddresses> sent_{};
  std::array<std::optional<Address>, kAddresses> received_{};
  std::span<std::byte> room_{};
  std::uint16_t kind_ = 0;  // commit() makes a record of this kind
  LaneObserver* observer_ = nullptr;
  bool was_full_ = false;  // prepare() has failed since the last park()
  bool ended_ = false;
  alignas(64) std::array<std::byte, kHeaderBytesMax> headers_{};
};

}  // namespace verbena::link
