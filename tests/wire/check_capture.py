#!/usr/bin/env python3
"""Checks the packets that a host has sent.  Shares no code with Verbena.

usage: check_capture.py FILE.pcap ADDRESS...

Every RoCEv2 packet from one of the addresses must have the right ICRC (vol1 A17.9.2), a length that
its headers allow, a known opcode, and zeros as padding.  Prints the number of these packets; exits with 1 at the
first fault.
"""
import ipaddress
import struct
import sys
import zlib

ETHERNET = 14
ROCE_PORT = 4791
HEADER_BYTES = {  # bytes of the headers after the BTH, by opcode
    **{op: 0 for op in (0x00, 0x01, 0x02, 0x04, 0x07, 0x08, 0x0E)},
    **{op: 4 for op in (0x03, 0x05, 0x09, 0x0D, 0x0F, 0x10, 0x11, 0x16, 0x17)},
    **{op: 16 for op in (0x06, 0x0A, 0x0C)},
    0x0B: 20, 0x12: 12, 0x13: 28, 0x14: 28,
    **{op: 0 for op in (0x20, 0x21, 0x22, 0x24, 0x27, 0x28)},
    **{op: 4 for op in (0x23, 0x25, 0x29)}, 0x26: 16, 0x2A: 16, 0x2B: 20,
    0x64: 8, 0x65: 12,
}


def fail(text):
    print(f"check_capture: {text}", file=sys.stderr)
    sys.exit(1)


def read_frames(path):
    with open(path, "rb") as file:
        data = file.read()
    if data[:4] != struct.pack("<I", 0xA1B23C4D):
        fail(f"{path} is not a capture in nanoseconds")
    at, number = 24, 0
    while at < len(data):
        length = struct.unpack_from("<8xI", data, at)[0]
        number += 1
        yield number, data[at + 16 : at + 16 + length]
        at += 16 + length


def parse_roce(frame):
    """Returns (source, IP packet, offset of UDP, is IPv6), or None if the frame is no RoCEv2 packet."""
    ethertype = struct.unpack_from(">H", frame, 12)[0]
    if ethertype == 0x8100:  # a VLAN's tag
        frame = frame[:12] + frame[16:]
        ethertype = struct.unpack_from(">H", frame, 12)[0]
    ip = bytearray(frame[ETHERNET:])
    if ethertype == 0x0800 and ip[9] == 17:
        udp, source, is_ipv6 = 4 * (ip[0] & 15), ipaddress.ip_address(bytes(ip[12:16])), False
        ip = ip[: struct.unpack_from(">H", ip, 2)[0]]
    elif ethertype == 0x86DD and ip[6] == 17:
        udp, source, is_ipv6 = 40, ipaddress.ip_address(bytes(ip[8:24])), True
        ip = ip[: 40 + struct.unpack_from(">H", ip, 4)[0]]
    else:
        return None
    if struct.unpack_from(">H", ip, udp + 2)[0] != ROCE_PORT:
        return None
    return source, ip, udp, is_ipv6


def compute_icrc(ip, udp, is_ipv6):
    masked = bytearray(ip[:-4])
    for at in (range(4) if is_ipv6 else (1, 8, 10, 11)):
        # Masks the traffic class and the flow label of IPv6, or the TOS, the TTL and the checksum of IPv4.
        masked[at] |= 0x0F if is_ipv6 and at == 0 else 0xFF
    if is_ipv6:
        masked[7] = 0xFF  # masks the hop limit
    masked[udp + 6] = masked[udp + 7] = 0xFF  # masks the UDP checksum
    masked[udp + 8 + 4] = 0xFF  # masks the byte of the BTH with FECN and BECN
    return zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8))


def main():
    addresses = {ipaddress.ip_address(text) for text in sys.argv[2:]}
    checked = 0
    for number, frame in read_frames(sys.argv[1]):
        parsed = parse_roce(frame)
        if parsed is None or parsed[0] not in addresses:
            continue
        _, ip, udp, is_ipv6 = parsed
        location = f"{sys.argv[1]}: frame {number}"
        bth = ip[udp + 8 : -4]
        if len(bth) < 12 or bth[0] not in HEADER_BYTES:
            fail(f"{location}: unknown opcode, or shorter than a BTH")
        pad = bth[1] >> 4 & 3
        if len(bth) < 12 + HEADER_BYTES[bth[0]] + pad or len(bth) % 4:
            fail(f"{location}: opcode {bth[0]:#x} with {len(bth)} bytes")
        if any(bth[len(bth) - pad :]):
            fail(f"{location}: padding is not zero")
        if compute_icrc(ip, udp, is_ipv6) != int.from_bytes(ip[-4:], "little"):
            fail(f"{location}: wrong ICRC")
        checked += 1
    print(checked)


main()
