#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/strong.h"
#include "wire/cm_common.h"
#include "wire/layout.h"

// Defines the CM messages that establish and end a connection: REQ, MRA, REJ, REP, RTU, DREQ, DREP.
// Include wire/cm.h instead of this file.
namespace verbena::wire::cm {

// clang-format off

// REQ (vol1 12.6.5, table 106) requests a connection.
struct Req {
  static constexpr AttributeId kAttributeId = AttributeId::kReq;

  CommId local_comm_id{};
  std::uint32_t vendor_id{};  // 24 bits, for enhanced connection establishment
  ServiceId service_id{};
  Guid local_ca_guid{};
  Qkey local_qkey{};
  Qpn local_qpn{};
  std::uint8_t responder_resources{};
  Qpn local_eecn{};
  std::uint8_t initiator_depth{};
  Qpn remote_eecn{};
  std::uint8_t remote_cm_response_timeout{};  // timeout code
  TransportService transport_service{};
  bool end_to_end_flow_control{};
  Psn starting_psn{};
  std::uint8_t local_cm_response_timeout{};  // timeout code
  std::uint8_t retry_count{};
  Pkey pkey{};
  std::uint8_t path_mtu{};  // 1 = 256 bytes .. 5 = 4096
  bool rdc_exists{};
  std::uint8_t rnr_retry_count{};
  std::uint8_t max_cm_retries{};
  bool srq{};
  std::uint8_t extended_transport{};  // 1 = XRC, if transport_service is kExtended
  Path primary_path{};
  // The REQ has no alternate path if all bytes of the path are zero.  On InfiniBand, a local_lid of
  // zero also means that there is no alternate path.
  Path alternate_path{};
  bool sap_supported{};
  std::array<std::byte, 92> private_data{};

  friend bool operator==(const Req&, const Req&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Req::local_comm_id>             ({.byte = 0,             .bits = 32}),
        field<&Req::vendor_id>                 ({.byte = 5,             .bits = 24}),
        field<&Req::service_id>                ({.byte = 8,             .bits = 64}),
        field<&Req::local_ca_guid>             ({.byte = 16,            .bits = 64}),
        field<&Req::local_qkey>                ({.byte = 28,            .bits = 32}),
        field<&Req::local_qpn>                 ({.byte = 32,            .bits = 24}),
        field<&Req::responder_resources>       ({.byte = 35,            .bits = 8}),
        field<&Req::local_eecn>                ({.byte = 36,            .bits = 24}),
        field<&Req::initiator_depth>           ({.byte = 39,            .bits = 8}),
        field<&Req::remote_eecn>               ({.byte = 40,            .bits = 24}),
        field<&Req::remote_cm_response_timeout>({.byte = 43,  .bit = 0, .bits = 5}),
        field<&Req::transport_service>         ({.byte = 43,  .bit = 5, .bits = 2}),
        field<&Req::end_to_end_flow_control>   ({.byte = 43,  .bit = 7, .bits = 1}),
        field<&Req::starting_psn>              ({.byte = 44,            .bits = 24}),
        field<&Req::local_cm_response_timeout> ({.byte = 47,  .bit = 0, .bits = 5}),
        field<&Req::retry_count>               ({.byte = 47,  .bit = 5, .bits = 3}),
        field<&Req::pkey>                      ({.byte = 48,            .bits = 16}),
        field<&Req::path_mtu>                  ({.byte = 50,  .bit = 0, .bits = 4}),
        field<&Req::rdc_exists>                ({.byte = 50,  .bit = 4, .bits = 1}),
        field<&Req::rnr_retry_count>           ({.byte = 50,  .bit = 5, .bits = 3}),
        field<&Req::max_cm_retries>            ({.byte = 51,  .bit = 0, .bits = 4}),
        field<&Req::srq>                       ({.byte = 51,  .bit = 4, .bits = 1}),
        field<&Req::extended_transport>        ({.byte = 51,  .bit = 5, .bits = 3}),
        field<&Req::primary_path>              ({.byte = 52,            .bits = 352}),
        field<&Req::alternate_path>            ({.byte = 96,            .bits = 352}),
        field<&Req::sap_supported>             ({.byte = 139, .bit = 5, .bits = 1}),
        field<&Req::private_data>              ({.byte = 140,           .bits = 736}));
  }
};

// MRA (vol1 12.6.6) announces that the sender needs more time for its reply.
struct Mra {
  static constexpr AttributeId kAttributeId = AttributeId::kMra;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  MraSubject message_mraed{};
  std::uint8_t service_timeout{};  // timeout code
  std::array<std::byte, 222> private_data{};

  friend bool operator==(const Mra&, const Mra&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Mra::local_comm_id>  ({.byte = 0,  .bits = 32}),
        field<&Mra::remote_comm_id> ({.byte = 4,  .bits = 32}),
        field<&Mra::message_mraed>  ({.byte = 8,  .bits = 2}),
        field<&Mra::service_timeout>({.byte = 9,  .bits = 5}),
        field<&Mra::private_data>   ({.byte = 10, .bits = 1776}));
  }
};

// REJ (vol1 12.6.7) rejects a connection.
struct Rej {
  static constexpr AttributeId kAttributeId = AttributeId::kRej;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  RejSubject message_rejected{};
  std::uint8_t reject_info_length_bytes{};  // the valid length of additional_reject_info
  RejReason reason{};
  std::array<std::byte, 72> additional_reject_info{};
  std::array<std::byte, 148> private_data{};

  friend bool operator==(const Rej&, const Rej&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Rej::local_comm_id>           ({.byte = 0,  .bits = 32}),
        field<&Rej::remote_comm_id>          ({.byte = 4,  .bits = 32}),
        field<&Rej::message_rejected>        ({.byte = 8,  .bits = 2}),
        field<&Rej::reject_info_length_bytes>({.byte = 9,  .bits = 7}),
        field<&Rej::reason>                  ({.byte = 10, .bits = 16}),
        field<&Rej::additional_reject_info>  ({.byte = 12, .bits = 576}),
        field<&Rej::private_data>            ({.byte = 84, .bits = 1184}));
  }
};

// REP (vol1 12.6.8) accepts a connection.
struct Rep {
  static constexpr AttributeId kAttributeId = AttributeId::kRep;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qkey local_qkey{};
  Qpn local_qpn{};
  std::uint8_t vendor_id_high{};  // see vendor_id()
  Qpn local_eecn{};               // for XRC, the QPN of the other direction
  std::uint8_t vendor_id_middle{};
  Psn starting_psn{};
  std::uint8_t vendor_id_low{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t target_ack_delay{};  // timeout code
  FailoverAccepted failover_accepted{};
  bool end_to_end_flow_control{};
  std::uint8_t rnr_retry_count{};
  bool srq{};
  Guid local_ca_guid{};
  std::array<std::byte, 196> private_data{};

  constexpr std::uint32_t vendor_id() const {
    return std::uint32_t{vendor_id_high} << 16 | std::uint32_t{vendor_id_middle} << 8 |
           vendor_id_low;
  }
  constexpr void set_vendor_id(std::uint32_t id) {
    vendor_id_high = static_cast<std::uint8_t>(id >> 16);
    vendor_id_middle = static_cast<std::uint8_t>(id >> 8);
    vendor_id_low = static_cast<std::uint8_t>(id);
  }

  friend bool operator==(const Rep&, const Rep&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Rep::local_comm_id>          ({.byte = 0,            .bits = 32}),
        field<&Rep::remote_comm_id>         ({.byte = 4,            .bits = 32}),
        field<&Rep::local_qkey>             ({.byte = 8,            .bits = 32}),
        field<&Rep::local_qpn>              ({.byte = 12,           .bits = 24}),
        field<&Rep::vendor_id_high>         ({.byte = 15,           .bits = 8}),
        field<&Rep::local_eecn>             ({.byte = 16,           .bits = 24}),
        field<&Rep::vendor_id_middle>       ({.byte = 19,           .bits = 8}),
        field<&Rep::starting_psn>           ({.byte = 20,           .bits = 24}),
        field<&Rep::vendor_id_low>          ({.byte = 23,           .bits = 8}),
        field<&Rep::responder_resources>    ({.byte = 24,           .bits = 8}),
        field<&Rep::initiator_depth>        ({.byte = 25,           .bits = 8}),
        field<&Rep::target_ack_delay>       ({.byte = 26, .bit = 0, .bits = 5}),
        field<&Rep::failover_accepted>      ({.byte = 26, .bit = 5, .bits = 2}),
        field<&Rep::end_to_end_flow_control>({.byte = 26, .bit = 7, .bits = 1}),
        field<&Rep::rnr_retry_count>        ({.byte = 27, .bit = 0, .bits = 3}),
        field<&Rep::srq>                    ({.byte = 27, .bit = 3, .bits = 1}),
        field<&Rep::local_ca_guid>          ({.byte = 28,           .bits = 64}),
        field<&Rep::private_data>           ({.byte = 36,           .bits = 1568}));
  }
};

// RTU (vol1 12.6.9) confirms a REP.
struct Rtu {
  static constexpr AttributeId kAttributeId = AttributeId::kRtu;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::array<std::byte, 224> private_data{};

  friend bool operator==(const Rtu&, const Rtu&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Rtu::local_comm_id> ({.byte = 0, .bits = 32}),
        field<&Rtu::remote_comm_id>({.byte = 4, .bits = 32}),
        field<&Rtu::private_data>  ({.byte = 8, .bits = 1792}));
  }
};

// DREQ (vol1 12.6.10) requests the end of a connection.
struct Dreq {
  static constexpr AttributeId kAttributeId = AttributeId::kDreq;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn remote_qpn{};  // for RD, the EECN
  std::array<std::byte, 220> private_data{};

  friend bool operator==(const Dreq&, const Dreq&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Dreq::local_comm_id> ({.byte = 0,  .bits = 32}),
        field<&Dreq::remote_comm_id>({.byte = 4,  .bits = 32}),
        field<&Dreq::remote_qpn>    ({.byte = 8,  .bits = 24}),
        field<&Dreq::private_data>  ({.byte = 12, .bits = 1760}));
  }
};

// DREP (vol1 12.6.11) confirms a DREQ.
struct Drep {
  static constexpr AttributeId kAttributeId = AttributeId::kDrep;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::array<std::byte, 224> private_data{};

  friend bool operator==(const Drep&, const Drep&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Drep::local_comm_id> ({.byte = 0, .bits = 32}),
        field<&Drep::remote_comm_id>({.byte = 4, .bits = 32}),
        field<&Drep::private_data>  ({.byte = 8, .bits = 1792}));
  }
};
// clang-format on

// Returns the valid part of the additional reject information, whose length is a field of the
// message.
constexpr std::span<const std::byte> reject_info(const Rej& rej) {
  const std::span<const std::byte> all = rej.additional_reject_info;
  return all.first(rej.reject_info_length_bytes < all.size() ? rej.reject_info_length_bytes
                                                             : all.size());
}

}  // namespace verbena::wire::cm
