"""Measures two hosts in network namespaces, which the line of tests/wire connects."""
import pathlib
import re
import subprocess
import sys

import measure
from measure import Failed, output_of

# This program is the TCP peer.  It sends `size` bytes there and back, `rounds` times, after one round that is not
# measured.  It prints microseconds for each round; only the client's output is used.
TCP_PINGPONG = """
import socket, sys, time
role, address, size, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data, buffer = bytes(size), memoryview(bytearray(size))
def receive(end):
    received = 0
    while received < size:
        count = end.recv_into(buffer[received:])
        if count == 0: sys.exit("the other end has closed the connection")
        received += count
if role == "server":
    listener = socket.create_server((address, 18516))
    end, _ = listener.accept()
else:
    end = socket.create_connection((address, 18516))
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for round in range(rounds + 1):
    if role == "server": receive(end)
    if round == 1: start = time.monotonic()
    end.sendall(data)
    if role != "server": receive(end)
print((time.monotonic() - start) / rounds * 1e6)
"""


class Hosts:
    """Makes the hosts a (10.77.0.1) and b (10.77.0.2), and ends them when the context ends."""

    def __init__(self, prefix, mtu):
        self.prefix, self.mtu, self.processes = pathlib.Path(prefix), mtu, []

    def __enter__(self):
        try:
            self.pids = [self._start_host(), self._start_host()]
            a, b = (f"/proc/{pid}/ns/net" for pid in self.pids)
            self._connect(a, b)
            for n, host in enumerate("ab", 1):
                for words in (f"link set eth0 mtu {self.mtu} txqueuelen 10000", "link set eth0 up",
                              f"address add 10.77.0.{n}/24 dev eth0"):
                    output_of(self.on(host, "ip", *words.split()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self, a, b):
        self.line = subprocess.Popen(
            [str(self.prefix / "tests/wire/wire_line"), "--a", a, "--b", b],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(self.line)
        self._read_answer("ready")

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def _start_host(self):
        process = subprocess.Popen(["unshare", "--net", "sh", "-c",
                                    "ip link set lo up; echo up; exec sleep infinity"],
                                   stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        if process.stdout.readline() != "up\n":
            raise Failed("no network namespaces here")
        return process.pid

    def _read_answer(self, wanted):
        output = self.line.stdout.readline().strip()
        if wanted and output != wanted:
            raise Failed(f"wire_line: '{output}'")
        return output

    def on(self, host, *command):
        """Returns the command that runs `command` on the host."""
        return ["nsenter", f"--net=/proc/{self.pids['ab'.index(host)]}/ns/net", *command]

    def set_faults(self, text):
        for command in (f"seed 1", f"both {text}"):
            print(command, file=self.line.stdin, flush=True)
            self._read_answer("ok")

    def count_frames(self):
        """Returns the number of frames to which faults may apply, in both directions."""
        print("counts", file=self.line.stdin, flush=True)
        return sum(int(re.search(r"frames=(\d+)", self._read_answer("")).group(1)) for _ in "ab")

    def is_listening(self, port):
        return bool(output_of(self.on("b", "ss", "-tlnH", f"sport = :{port}")).strip())

    def exchange(self, port, server, client, environment):
        """Runs the server on b and the client on a.  Returns the client's output, and the number of frames."""
        server_process = subprocess.Popen(self.on("b", *server), env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            measure.wait_until("a server", lambda: self.is_listening(port) or server_process.poll() is not None)
            before = self.count_frames()
            output = output_of(self.on("a", *client), env=environment)
            server_process.communicate(timeout=measure.TIMEOUT_SECONDS)
            return output, self.count_frames() - before
        finally:
            if server_process.poll() is None:
                server_process.kill()
                server_process.communicate()


class VethHosts(Hosts):
    """Makes hosts that the kernel's veth connects.  set_faults() and count_frames() do not work for them."""

    def _connect(self, a, b):
        output_of(self.on("a", *f"ip link add eth0 type veth peer name eth0 netns {self.pids[1]}".split()))


def gid_index(bench, hosts, host, address):
    output = output_of(hosts.on(host, *bench.run_command("ibv_devinfo", "-v")), env=bench.verbena_environment)
    found = re.search(rf"GID\[ *(\d+)\]:\s*::ffff:{re.escape(address)}\b", output)
    if not found:
        raise Failed(f"no GID for {address}: {output}")
    return found.group(1)


def rdma(bench, hosts, size, rounds, *options):
    """Returns microseconds and frames for each round of ibv_rc_pingpong."""
    command = ["ibv_rc_pingpong", "-s", str(size), "-n", str(rounds), *options]
    server = bench.run_command(*command, "-g", gid_index(bench, hosts, "b", "10.77.0.2"))
    client = bench.run_command(*command, "-g", gid_index(bench, hosts, "a", "10.77.0.1"), "10.77.0.2")
    output, frames = hosts.exchange(18515, server, client, bench.verbena_environment)
    return measure.pingpong_us(output), frames / rounds


def tcp(bench, hosts, size, rounds):
    command = [sys.executable, "-c", TCP_PINGPONG]
    words = ["10.77.0.2", str(size), str(rounds)]
    output, frames = hosts.exchange(18516, [*command, "server", *words], [*command, "client", *words],
                                    bench.environment)
    return float(output), frames / rounds
