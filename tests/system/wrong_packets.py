#!/usr/bin/env python3
"""Sends wrong packets to the host.  The host must drop each packet of a known kind, and count it by its reason.  The
host must continue to work, also after many random packets."""
import json
import os
import random
import socket
import struct
import subprocess
import time
import zlib

prefix = os.environ["VB_PREFIX"]
env = dict(os.environ, LD_PRELOAD=os.environ.get("VB_PRELOAD", ""), ASAN_OPTIONS="detect_leaks=0")
command = [prefix + "/bin/verbena"]


def verbena(*args, **more):
    return subprocess.run(command + list(args), env=env, capture_output=True, text=True, timeout=30, **more)


def counters():
    status = json.loads(verbena("agent", "status", "--json").stdout)["agent"]
    return {key.lower(): value for key, value in status["counters"].items()}


def datagram(source_port, body, wrong_icrc=False):
    length = 20 + 8 + len(body) + 4
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0xff, length, 0, 0x4000, 0xff, 17, 0xffff,
                     socket.inet_aton("127.0.0.1"), socket.inet_aton("127.0.0.1"))
    udp = struct.pack("!HHHH", source_port, 4791, length - 20, 0xffff)
    masked = body[:4] + b"\xff" + body[5:]
    icrc = zlib.crc32(b"\xff" * 8 + ip + udp + masked) ^ (0x5a5a5a5a if wrong_icrc else 0)
    return body + struct.pack("<I", icrc)


def bth(opcode, qpn, pkey=0xffff, version=0):
    return struct.pack("!BBHII", opcode, version, pkey, qpn, 0)


def mad(**fields):
    header = bytes([fields.get("base", 1), fields.get("cls", 7), fields.get("version", 2), fields.get("method", 3)])
    return (header + bytes(20) + bytes(232))[:fields.get("bytes", 256)]


def gsi(payload, pkey=0xffff, qkey=0x80010000):
    return bth(0x64, 1, pkey) + struct.pack("!II", qkey, 1) + payload


listener = subprocess.Popen(command + ["run", "--", "rping", "-s"], env=env,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    deadline = time.monotonic() + 20
    while "listening" not in verbena("ps").stdout:
        assert time.monotonic() < deadline, "nothing listens"
        time.sleep(0.05)

    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER = DO, so the IP header has identification 0
    out.bind(("127.0.0.1", 0))
    port = out.getsockname()[1]
    cases = {
        "icrc": datagram(port, gsi(mad()), wrong_icrc=True),
        "too short": b"\x64\x00",
        "opcode": datagram(port, bth(0xff, 1) + bytes(16)),
        "pkey": datagram(port, gsi(mad(), pkey=0x1234)),
        "qkey": datagram(port, gsi(mad(), qkey=0x11111111)),
        "unknown_qp": datagram(port, bth(0x04, 0x000777) + bytes(16)),
        "version": datagram(port, bth(0x64, 1, version=1) + bytes(8) + mad()),
        "wrong_length": datagram(port, gsi(mad(bytes=100))),
        "unknown_class": datagram(port, gsi(mad(cls=0x6e))),
        "wrong_base_version": datagram(port, gsi(mad(base=9))),
    }
    for name, packet in cases.items():
        before = counters()
        out.sendto(packet, ("127.0.0.1", 4791))
        deadline = time.monotonic() + 10
        while True:
            after = counters()
            changed = [key for key in after if after[key] != before.get(key, 0)]
            words = name.replace("_", " ").split()
            matches = [k for k in changed
                       if all(w in k.replace("_", " ") for w in words) or name.replace(" ", "_") in k]
            if matches:
                break
            assert time.monotonic() < deadline, f"{name}: not counted by reason; changed: {changed}"
            time.sleep(0.02)
        print(f"{name}: counted as {matches}")

    # Send random bytes, and copies of the packets above with random bits changed.
    rng = random.Random(1)
    known_packets = list(cases.values())
    for i in range(20000):
        if rng.random() < 0.5:
            packet = rng.randbytes(rng.randrange(0, 400))
        else:
            packet = bytearray(rng.choice(known_packets))
            for _ in range(rng.randrange(1, 4)):
                packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
        try:
            out.sendto(bytes(packet), ("127.0.0.1", 4791))
        except OSError:
            pass

    # New connections must work.
    client = verbena("run", "--", "timeout", "20", "rping", "-c", "-a", "127.0.0.1", "-C", "10", "-v", "-V")
    assert client.returncode == 0 and client.stdout.count("ping data") == 10, client.stdout + client.stderr
    listener.wait(timeout=10)
finally:
    listener.kill()
    listener.wait()
