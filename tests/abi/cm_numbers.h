#pragma once

#include <cstdint>

// Repeats numbers of the InfiniBand CM that the engine and the C++ API both define.  One source
// cannot include the headers of both, because both define verbena::Gid.  So engine_numbers.cc
// compares the engine's numbers with these, and api_numbers.cc those of the API.
namespace verbena::numbers {

template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<std::uint64_t>(a) == static_cast<std::uint64_t>(b);
}

// Reasons of a REJ (vol1 12.6.7.2).
inline constexpr int kRejNoQp = 1;
inline constexpr int kRejNoResources = 3;
inline constexpr int kRejTimeout = 4;
inline constexpr int kRejUnsupportedRequest = 5;
inline constexpr int kRejInvalidServiceId = 8;
inline constexpr int kRejStaleConnection = 10;
inline constexpr int kRejPrimaryGidRejected = 12;
inline constexpr int kRejAlternateGidRejected = 18;
inline constexpr int kRejPortAndCmRedirect = 24;
inline constexpr int kRejPortRedirect = 25;
inline constexpr int kRejInvalidPathMtu = 26;
inline constexpr int kRejInsufficientResponderResources = 27;
inline constexpr int kRejConsumer = 28;
inline constexpr int kRejRnrRetryCountInvalid = 29;
inline constexpr int kRejInvalidPrimaryFlowLabel = 32;
inline constexpr int kRejInvalidAlternateFlowLabel = 33;
inline constexpr int kRejVendorOptionNotSupported = 35;

// Statuses of an APR (vol1 12.6.16).
inline constexpr int kAprAccepted = 0;
inline constexpr int kAprNotSupported = 2;
inline constexpr int kAprRejected = 3;
inline constexpr int kAprRedirect = 4;
inline constexpr int kAprIsCurrentPath = 5;
inline constexpr int kAprGidRejected = 8;
inline constexpr int kAprFlowLabelRejected = 9;
inline constexpr int kAprTrafficClassRejected = 10;
inline constexpr int kAprHopLimitRejected = 11;

}  // namespace verbena::numbers
