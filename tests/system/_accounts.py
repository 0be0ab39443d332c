#!/usr/bin/env python3
"""Checks that each packet of a host is accounted for: verbena ps --counters --json | _accounts.py PID

Compares the kernel's counters in the network namespace of PID with the counters of the programs there, which are on the
standard input.  A program must count each datagram that the kernel gave to it, with exactly one reason.  The
programs must have run since the namespace was made.  Prints the counters.  Names a wrong sum, and exits with 1.
"""
import json
import sys

# Each MAD that the agent receives increments exactly one of the counters "mads_OUTCOME".
MAD_OUTCOMES = ["delivered", "wrong_length", "wrong_base_version", "unknown_class", "wrong_method", "class_port_info",
                "request_of_other_version"]


def kernel_udp_counts(pid):
    """Returns the kernel's UDP counters, each the sum of IPv4 and IPv6."""
    counts = {}
    lines = open(f"/proc/{pid}/net/snmp").read().splitlines()
    for names, values in zip(lines[::2], lines[1::2]):
        if names.startswith("Udp:"):
            for name, value in zip(names.split()[1:], values.split()[1:]):
                counts[name] = int(value)
    for line in open(f"/proc/{pid}/net/snmp6"):
        name, value = line.split()
        if name.startswith("Udp6"):
            counts[name[4:]] = counts.get(name[4:], 0) + int(value)
    return counts


class Accounts:
    def __init__(self):
        self.errors = []

    def expect_sum(self, what, total, parts):
        if total != sum(parts):
            self.errors.append(f"{what}: {total} is not {' + '.join(map(str, parts))} = {sum(parts)}")


def drops(counts, prefix):
    """Returns the values of the drop counters.  Omits those of queue pairs, which are a part of `packets_to_qps`."""
    counted_by_qp = {"bad_qkey", "no_receive", "too_long", "gap", "refused", "unexpected_response"}
    return [v for k, v in counts.items() if k.startswith(prefix) and k[len(prefix):] not in counted_by_qp]


def check_program(accounts, name, c):
    accounts.expect_sum(f"{name}: datagrams", c["udp_in_datagrams"],
                       [c["packets_in"], c["udp_in_wrong_icrc"], c["udp_in_too_short"]])
    accounts.expect_sum(f"{name}: packets", c["packets_in"], drops(c, "drop_") + [c["packets_to_qps"]])


def check_agent(accounts, c):
    dropped = [v for k, v in c.items() if k.startswith("dropped_")]
    accounts.expect_sum("agent: datagrams", c["udp_in_datagrams"], dropped + [c["data_packets"], c["qp1_packets"]])
    accounts.expect_sum("agent: packets of QP1", c["qp1_packets_in"], [c["qp1_packets"], c["own_packets"]])
    accounts.expect_sum("agent: QP1", c["qp1_packets_in"], drops(c, "qp1_drop_") + [c["qp1_packets_to_qps"]])
    dropped_by_qp1 = [c[f"qp1_drop_{reason}"] for reason in ("bad_qkey", "no_receive", "too_long")]
    accounts.expect_sum("agent: to QP1", c["qp1_packets_to_qps"], dropped_by_qp1 + [c["mads_received"]])
    accounts.expect_sum("agent: MADs", c["mads_received"], [c[f"mads_{outcome}"] for outcome in MAD_OUTCOMES])
    messages = [v for k, v in c.items() if k.startswith("cm_") and k.endswith("_received")
                and not k.startswith("cm_rej_received_")]
    accounts.expect_sum("agent: CM messages", c["mads_delivered"], messages + [c["cm_ignored_malformed"]])


def main():
    kernel_counts = kernel_udp_counts(sys.argv[1])
    listing = json.load(sys.stdin)
    accounts = Accounts()
    agent = listing["agent"]["counters"]
    check_agent(accounts, agent)
    programs = {f"{p['program']} {p['pid']}": p["counters"] for p in listing["processes"]}
    for name, counts in programs.items():
        check_program(accounts, name, counts)
    all_counts = [agent] + list(programs.values())
    accounts.expect_sum("the kernel's datagrams", kernel_counts["InDatagrams"],
                       [c["udp_in_datagrams"] + c["udp_in_too_long"] for c in all_counts] +
                       [agent["drained_packets"]])
    # If the kernel finds a wrong UDP checksum late, the program counts the datagram as lost by a full buffer.
    lost, buffer_full = sum(c["udp_in_lost_in_kernel"] for c in all_counts), kernel_counts["RcvbufErrors"]
    if not buffer_full <= lost <= buffer_full + kernel_counts["InCsumErrors"]:
        accounts.errors.append(f"lost in the kernel: {lost} by the programs' counters, {buffer_full} by RcvbufErrors")
    print("kernel: " + " ".join(f"{k}={v}" for k, v in kernel_counts.items() if v))
    for name, counts in [("agent", agent)] + list(programs.items()):
        print(f"{name}: " + " ".join(f"{k}={v}" for k, v in counts.items() if v))
    if accounts.errors:
        sys.exit("\n".join(accounts.errors))


main()
