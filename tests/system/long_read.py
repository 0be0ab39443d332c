#!/usr/bin/env python3
"""While a program answers READs that are thousands of packets long, it must still handle other requests.

A peer may ask for 2 GiB in one request, and Linux does.  This test is the peer.  It sends four READs to one QP of
tests/programs/victim, and then a message to another QP.  Between them are so many other packets that the program reads
the message only with a later system call.  The message must be acknowledged before the last response of the READs."""
import ctypes
import os
import signal
import socket
import struct
import subprocess
import zlib

PREFIX = os.environ["VB_PREFIX"]
VICTIM, PEER = "10.78.0.1", "10.78.0.2"
READ, READ_LAST, SEND_ONLY, ACK = 12, 15, 4, 17
READS, MTU = 4, 256
SO_ATTACH_FILTER = 26
READ_AT_ONCE = 32  # os::UdpReceiver::kMessagesMax

env = dict(os.environ, LD_PRELOAD=os.environ.get("VB_PRELOAD", ""), ASAN_OPTIONS="detect_leaks=0")


def datagram(port, body):
    length = 20 + 8 + len(body) + 4
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0xff, length, 0, 0x4000, 0xff, 17, 0xffff,
                     socket.inet_aton(PEER), socket.inet_aton(VICTIM))
    udp = struct.pack("!HHHH", port, 4791, length - 20, 0xffff)
    masked = body[:4] + b"\xff" + body[5:]
    return body + struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


def bth(opcode, qpn, psn):
    return struct.pack("!BBHII", opcode, 0, 0xffff, qpn, 1 << 31 | psn)


def receive_only(peer, wanted):
    """Makes the kernel drop all packets to the socket except those with a wanted pair of opcode and QP number.

    The filter is a program for the kernel (bpf(4)).  Its offsets count from the UDP header.
    """
    program = []
    for opcode, qpn in wanted:
        program += [(0x20, 0, 0, 12), (0x54, 0, 0, 0xffffff), (0x15, 0, 3, qpn),  # unless the QP number is equal, skip 3
                    (0x30, 0, 0, 8), (0x15, 0, 1, opcode), (0x06, 0, 0, 0xffffffff)]  # if the opcode is equal, pass
    program.append((0x06, 0, 0, 0))  # drop
    memory = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    peer.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(memory)))


for address in (VICTIM, PEER, "fd78::1", "fd78::2"):
    nodad = ["nodad"] if ":" in address else []  # otherwise the address stays tentative for a while
    subprocess.run(["ip", "address", "add", address, "dev", "lo", *nodad], check=True)
victim = subprocess.Popen([PREFIX + "/bin/verbena", "run", "--", PREFIX + "/tests/programs/victim",
                           VICTIM, "fd78::1", PEER, "fd78::2", "7500"],
                          env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    qps, regions = [], []
    for line in victim.stdout:
        words = line.split()
        if words[0] == "rc":
            qps.append(dict(zip(("qpn", "peer", "psn", "sq_psn", "mtu", "family"), map(int, words[1:]))))
        elif words[0] == "memory":
            regions.append(tuple(map(int, words[1:])))
        elif words[0] == "ready":
            break
    # See tests/programs/victim.c: the first QP is in RESET, so it drops packets.  The fourth QP is in RTS and has no
    # requests to send.  The QPs with other MTUs have some.
    read_qp = next(qp for qp in qps if qp["mtu"] == MTU and qp["family"] == 4)
    reset_qp, message_qp = qps[0], qps[3]
    address, length, rkey = regions[0]

    # The agent has the port on all addresses.  The kernel prefers this socket, because it is bound to one address.
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    peer.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER = DO, so the IP header has identification 0
    # The buffer of the socket does not hold thousands of responses, so the acknowledgement could be lost.  The kernel
    # must drop all responses except the last one of each READ.
    receive_only(peer, [(READ_LAST, read_qp["peer"]), (ACK, message_qp["peer"])])
    peer.bind((PEER, 4791))
    peer.settimeout(20)

    def send(body):
        peer.sendto(datagram(4791, body), (VICTIM, 4791))

    os.kill(victim.pid, signal.SIGSTOP)  # all requests arrive before the first is answered
    os.waitid(os.P_PID, victim.pid, os.WSTOPPED)
    for i in range(READS):
        psn = read_qp["psn"] + i * length // MTU
        send(bth(READ, read_qp["qpn"], psn) + struct.pack("!QII", address, rkey, length))
    for _ in range(READS, READ_AT_ONCE):
        send(bth(SEND_ONLY, reset_qp["qpn"], 0))
    send(bth(SEND_ONLY, message_qp["qpn"], message_qp["psn"]) + bytes(64))
    os.kill(victim.pid, signal.SIGCONT)

    answered = 0  # the number of READs whose last response has arrived
    while peer.recv(65536)[0] != ACK:
        answered += 1
    print(f"acknowledged when {answered} of {READS} READs were answered")
    assert answered < READS, "the message was acknowledged only after all responses"
    victim.stdin.close()
    assert victim.wait(timeout=20) == 0
finally:
    victim.kill()
    victim.wait()
