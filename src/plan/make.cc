#include <algorithm>

#include "base/error.h"
#include "base/port_id.h"
#include "plan/plan.h"
#include "wire/address_text.h"
#include "wire/ip.h"

namespace verbena::plan {
namespace {

constexpr std::uint32_t kBaseAddress = 0x0a1f0000;  // 10.31.0.0
constexpr std::size_t kLetters = 26;

std::string quoted(const std::string& text) { return '"' + text + '"'; }

// Writes a time as seconds with a fraction.
std::string seconds_text(Duration time) {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  const std::string fraction = std::to_string(kPerSecond + time.count() % kPerSecond).substr(1);
  return std::to_string(time.count() / kPerSecond) + "." + fraction;
}

// Writes the elements of a list, each as text(element).
std::string list_text(const auto& elements, auto text) {
  std::string list = "[";
  for (const auto& element : elements) {
    if (list.size() > 1) list += ", ";
    list += text(element);
  }
  return list + "]";
}

std::string to_text(const Rail& rail, std::size_t number) {
  std::string text = "  { ";
  if (rail.device != "verbena" + std::to_string(number)) {
    text += "device = " + quoted(rail.device) + ", ";
  }
  text += "network = " + quoted(rail.network) + ", addresses = ";
  text += list_text(rail.addresses, [](const Gid& gid) { return quoted(wire::address_text(gid)); });
  if (rail.mtu_bytes != kMtuDefault) text += ", mtu = " + std::to_string(rail.mtu_bytes);
  if (rail.vlan != 0) text += ", vlan = " + std::to_string(rail.vlan);
  if (rail.pkeys != Rail{}.pkeys) {
    text +=
        ", pkeys = " + list_text(rail.pkeys, [](Pkey pkey) { return std::to_string(pkey.value); });
  }
  return text + " },\n";
}

}  // namespace

Fabric make(std::size_t host_count, std::size_t rails_per_host) {
  VB_CHECK(host_count >= 1 && host_count <= kHostsMax);
  VB_CHECK(rails_per_host >= 1 && rails_per_host <= kDevicesMax);
  Fabric fabric;
  for (std::size_t h = 0; h < host_count; ++h) {
    Host host{.name = host_count <= kLetters ? std::string(1, static_cast<char>('a' + h))
                                             : "h" + std::to_string(h + 1)};
    for (std::size_t r = 0; r < rails_per_host; ++r) {
      // The first 250 hosts have the addresses 10.31.RAIL.HOST, and the other hosts have the
      // addresses 10.31.(RAIL + 128).(HOST - 250).  RAIL counts from 0, and HOST counts from 1.
      const std::size_t third_byte = h < 250 ? r : r + 128;
      const std::size_t last_byte = h < 250 ? h + 1 : h - 249;
      host.rails.push_back(
          {.device = "verbena" + std::to_string(r),
           .network = "net" + std::to_string(r),
           .addresses = {wire::ipv4_gid(kBaseAddress |
                                        static_cast<std::uint32_t>(third_byte << 8 | last_byte))}});
    }
    fabric.hosts.push_back(std::move(host));
  }
  return fabric;
}

std::string to_text(const Fabric& fabric) {
  std::string text;
  if (!fabric.name.empty()) text += "name = " + quoted(fabric.name) + "\n\n";
  for (const Host& host : fabric.hosts) {
    text += "[[hosts]]\nname = " + quoted(host.name) + "\nrails = [\n";
    for (std::size_t r = 0; r < host.rails.size(); ++r) text += to_text(host.rails[r], r);
    text += "]\n\n";
  }
  for (const Router& router : fabric.routers) {
    text += "[[routers]]\nnetworks = " + list_text(router.networks, quoted) + "\n\n";
  }
  for (const ScheduledFault& scheduled : fabric.faults) {
    text += "[[faults]]\nafter = " + seconds_text(scheduled.after) +
            "\nfault = " + quoted(faults::text_of(scheduled.fault)) + "\n";
    if (scheduled.fault.has_seed) text += "seed = " + std::to_string(scheduled.fault.seed) + "\n";
    text += "\n";
  }
  text.pop_back();
  return text;
}

}  // namespace verbena::plan
