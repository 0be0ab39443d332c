#include "wire/crc_fold.h"

#include "base/error.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <emmintrin.h>
#include <wmmintrin.h>
#endif

// Implements V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel 2009.  The first sixteen bytes represent a polynomial A x^64 + B, where A and
// B have 64 bits.  To move them forward by n bits, fold() replaces them by A (x^(n + 64) mod P) + B
// (x^n mod P).  This sum has the same effect on the CRC, fits into sixteen bytes, and is added to
// the sixteen bytes at the new position.
//
// The numbers are in reflected bit order.  A 32-bit constant in the lower half of a 64-bit register
// then represents the constant multiplied by x^32, so move_constants() uses the exponents n + 32
// and n - 32.  A product of 64 by 64 bits ends one bit too low, so power_of_x() shifts its result
// by one.
namespace verbena::wire {

#ifdef __x86_64__

namespace {

// Returns x^exponent modulo P, shifted by one as described above.
constexpr std::uint64_t power_of_x(unsigned exponent) {
  std::uint32_t a = 0x80000000;
  for (unsigned i = 0; i < exponent; ++i) a = a >> 1 ^ (a & 1 ? 0xedb88320 : 0);
  return std::uint64_t{a} << 1;
}

// Holds the constants for moving 16 bytes forward.  `first` is the factor of A, which is in the
// first eight bytes in memory.  `second` is the factor of B.
struct MoveConstants {
  std::uint64_t first, second;
};
constexpr MoveConstants move_constants(unsigned bits) {
  return {power_of_x(bits + 32), power_of_x(bits - 32)};
}

constexpr MoveConstants kBy64Bytes = move_constants(512);
constexpr MoveConstants kBy16Bytes = move_constants(128);
static_assert(kBy64Bytes.first == 0x154442bd4 && kBy64Bytes.second == 0x1c6e41596);
static_assert(kBy16Bytes.first == 0x1751997d0 && kBy16Bytes.second == 0x0ccaa009e);

__m128i constants(MoveConstants by) {
  return _mm_set_epi64x(static_cast<long long>(by.second), static_cast<long long>(by.first));
}

__m128i load(const std::byte* in) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)); }

// Moves the 16 bytes `a` forward by the constants `by`, and adds the 16 bytes `addend` at the new
// position.
__attribute__((target("pclmul"))) inline __m128i move_forward(__m128i a, __m128i by,
                                                              __m128i addend) {
  const __m128i first = _mm_clmulepi64_si128(a, by, 0x00);
  const __m128i second = _mm_clmulepi64_si128(a, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, second), addend);
}

}  // namespace

bool can_fold() {
  static const bool is_supported = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_PCLMUL) != 0;
  }();
  return is_supported;
}

__attribute__((target("pclmul"))) std::array<std::byte, kFoldStep> fold(
    std::uint32_t reg, std::span<const std::byte> bytes) {
  VB_CHECK(bytes.size() >= kFoldBytesMin && bytes.size() % kFoldStep == 0);
  const std::byte* in = bytes.data();
  std::size_t remaining = bytes.size() - 16;
  __m128i a = _mm_xor_si128(load(in), _mm_cvtsi32_si128(static_cast<int>(reg)));
  in += 16;
  const __m128i by16 = constants(kBy16Bytes);
  if (remaining >= 112) {
    __m128i b = load(in), c = load(in + 16), d = load(in + 32);
    in += 48;
    remaining -= 48;
    const __m128i by64 = constants(kBy64Bytes);
    // Four independent chains hide the latency of a multiplication.
    for (; remaining >= 64; in += 64, remaining -= 64) {
      a = move_forward(a, by64, load(in));
      b = move_forward(b, by64, load(in + 16));
      c = move_forward(c, by64, load(in + 32));
      d = move_forward(d, by64, load(in + 48));
    }
    a = move_forward(move_forward(move_forward(a, by16, b), by16, c), by16, d);
  }
  for (; remaining > 0; in += 16, remaining -= 16) a = move_forward(a, by16, load(in));
  std::array<std::byte, kFoldStep> out;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out.data()), a);
  return out;
}

#else

bool can_fold() { return false; }
std::array<std::byte, kFoldStep> fold(std::uint32_t, std::span<const std::byte>) {
  VB_CHECK(false);
  return {};
}

#endif

}  // namespace verbena::wire
