#include "wire/drop.h"

#include "base/counter_names.h"

namespace verbena::wire {

namespace {
constexpr auto kDropNames = std::to_array<CounterName<Drop>>({
    {Drop::kNone, "none"},
    {Drop::kTooShort, "too short"},
    {Drop::kNotMultipleOfFour, "not a multiple of four bytes"},
    {Drop::kUnknownOpcode, "unknown opcode"},
    {Drop::kTransportVersion, "bad transport version"},
    {Drop::kPadTooLong, "more pad than payload"},
    {Drop::kPayloadNotAllowed, "payload where none is allowed"},
    {Drop::kIcrc, "bad ICRC"},
    {Drop::kNotIp, "not IP"},
    {Drop::kIpOptions, "IP options"},
    {Drop::kIpChecksum, "bad IP checksum"},
    {Drop::kFragment, "fragment"},
    {Drop::kNotUdp, "not UDP"},
    {Drop::kLength, "bad length"},
    {Drop::kUnknownAttribute, "unknown attribute"},
    {Drop::kNotInfiniband, "not InfiniBand"},
    {Drop::kNotAddressResolution, "not address resolution"},
    {Drop::kArp, "bad ARP"},
    {Drop::kNeighbourDiscovery, "bad neighbour discovery"},
    {Drop::kIcmpChecksum, "bad ICMPv6 checksum"},
});
static_assert(names_every_counter(kDropNames));
}  // namespace

const char* to_string(Drop reason) { return name_of(kDropNames, reason, "unknown"); }

}  // namespace verbena::wire
