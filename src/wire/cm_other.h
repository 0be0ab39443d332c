#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/strong.h"
#include "wire/cm_common.h"
#include "wire/layout.h"

// Defines the other CM messages.  SIDR_REQ and SIDR_REP find the datagram QP of a service.  LAP
// and APR load an alternate path.  Include wire/cm.h instead of this file.
namespace verbena::wire::cm {

// clang-format off

// SIDR_REQ (vol1 12.11.1) asks for the QP of a service.
struct SidrReq {
  static constexpr AttributeId kAttributeId = AttributeId::kSidrReq;

  CommId request_id{};
  Pkey pkey{};
  ServiceId service_id{};
  std::array<std::byte, 216> private_data{};

  friend bool operator==(const SidrReq&, const SidrReq&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&SidrReq::request_id>  ({.byte = 0,  .bits = 32}),
        field<&SidrReq::pkey>        ({.byte = 4,  .bits = 16}),
        field<&SidrReq::service_id>  ({.byte = 8,  .bits = 64}),
        field<&SidrReq::private_data>({.byte = 16, .bits = 1728}));
  }
};

// SIDR_REP (vol1 12.11.2) is the reply to a SIDR_REQ.
struct SidrRep {
  static constexpr AttributeId kAttributeId = AttributeId::kSidrRep;

  CommId request_id{};
  SidrStatus status{};
  std::uint8_t additional_info_length_bytes{};
  std::uint16_t vendor_id_high{};  // see vendor_id()
  Qpn qpn{};
  std::uint8_t vendor_id_low{};
  ServiceId service_id{};
  Qkey qkey{};
  std::array<std::byte, 72> additional_info{};
  std::array<std::byte, 136> private_data{};

  constexpr std::uint32_t vendor_id() const {
    return std::uint32_t{vendor_id_high} << 8 | vendor_id_low;
  }
  constexpr void set_vendor_id(std::uint32_t id) {
    vendor_id_high = static_cast<std::uint16_t>(id >> 8);
    vendor_id_low = static_cast<std::uint8_t>(id);
  }

  friend bool operator==(const SidrRep&, const SidrRep&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&SidrRep::request_id>                  ({.byte = 0,  .bits = 32}),
        field<&SidrRep::status>                      ({.byte = 4,  .bits = 8}),
        field<&SidrRep::additional_info_length_bytes>({.byte = 5,  .bits = 8}),
        field<&SidrRep::vendor_id_high>              ({.byte = 6,  .bits = 16}),
        field<&SidrRep::qpn>                         ({.byte = 8,  .bits = 24}),
        field<&SidrRep::vendor_id_low>               ({.byte = 11, .bits = 8}),
        field<&SidrRep::service_id>                  ({.byte = 12, .bits = 64}),
        field<&SidrRep::qkey>                        ({.byte = 20, .bits = 32}),
        field<&SidrRep::additional_info>             ({.byte = 24, .bits = 576}),
        field<&SidrRep::private_data>                ({.byte = 96, .bits = 1088}));
  }
};

// LAP (vol1 12.6.12) proposes an alternate path for a connection.
struct Lap {
  static constexpr AttributeId kAttributeId = AttributeId::kLap;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn remote_qpn{};  // for RD, the EECN
  std::uint8_t remote_cm_response_timeout{};  // timeout code
  Lid alternate_local_lid{};
  Lid alternate_remote_lid{};
  Gid alternate_local_gid{};
  Gid alternate_remote_gid{};
  std::uint32_t alternate_flow_label{};  // 20 bits
  std::uint8_t alternate_traffic_class{};
  std::uint8_t alternate_hop_limit{};
  std::uint8_t alternate_packet_rate{};
  std::uint8_t alternate_sl{};
  bool alternate_subnet_local{};
  std::uint8_t alternate_local_ack_timeout{};  // timeout code
  std::array<std::byte, 168> private_data{};

  friend bool operator==(const Lap&, const Lap&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Lap::local_comm_id>              ({.byte = 0,            .bits = 32}),
        field<&Lap::remote_comm_id>             ({.byte = 4,            .bits = 32}),
        field<&Lap::remote_qpn>                 ({.byte = 12,           .bits = 24}),
        field<&Lap::remote_cm_response_timeout> ({.byte = 15,           .bits = 5}),
        field<&Lap::alternate_local_lid>        ({.byte = 20,           .bits = 16}),
        field<&Lap::alternate_remote_lid>       ({.byte = 22,           .bits = 16}),
        field<&Lap::alternate_local_gid>        ({.byte = 24,           .bits = 128}),
        field<&Lap::alternate_remote_gid>       ({.byte = 40,           .bits = 128}),
        field<&Lap::alternate_flow_label>       ({.byte = 56,           .bits = 20}),
        field<&Lap::alternate_traffic_class>    ({.byte = 59,           .bits = 8}),
        field<&Lap::alternate_hop_limit>        ({.byte = 60,           .bits = 8}),
        field<&Lap::alternate_packet_rate>      ({.byte = 61, .bit = 2, .bits = 6}),
        field<&Lap::alternate_sl>               ({.byte = 62, .bit = 0, .bits = 4}),
        field<&Lap::alternate_subnet_local>     ({.byte = 62, .bit = 4, .bits = 1}),
        field<&Lap::alternate_local_ack_timeout>({.byte = 63,           .bits = 5}),
        field<&Lap::private_data>               ({.byte = 64,           .bits = 1344}));
  }

  // Returns the alternate path in the form of a REQ.
  constexpr Path alternate_path() const {
    return {.local_lid = alternate_local_lid,
            .remote_lid = alternate_remote_lid,
            .local_gid = alternate_local_gid,
            .remote_gid = alternate_remote_gid,
            .flow_label = alternate_flow_label,
            .packet_rate = alternate_packet_rate,
            .traffic_class = alternate_traffic_class,
            .hop_limit = alternate_hop_limit,
            .sl = alternate_sl,
            .subnet_local = alternate_subnet_local,
            .local_ack_timeout = alternate_local_ack_timeout};
  }
};

// APR (vol1 12.6.13) is the reply to a LAP.
struct Apr {
  static constexpr AttributeId kAttributeId = AttributeId::kApr;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::uint8_t additional_info_length_bytes{};
  AprStatus status{};
  std::array<std::byte, 72> additional_info{};
  std::array<std::byte, 148> private_data{};

  friend bool operator==(const Apr&, const Apr&) = default;

  static consteval auto layout() {
    return wire::layout<kMessageBytes>(
        field<&Apr::local_comm_id>               ({.byte = 0,  .bits = 32}),
        field<&Apr::remote_comm_id>              ({.byte = 4,  .bits = 32}),
        field<&Apr::additional_info_length_bytes>({.byte = 8,  .bits = 8}),
        field<&Apr::status>                      ({.byte = 9,  .bits = 8}),
        field<&Apr::additional_info>             ({.byte = 12, .bits = 576}),
        field<&Apr::private_data>                ({.byte = 84, .bits = 1184}));
  }
};
// clang-format on

}  // namespace verbena::wire::cm
