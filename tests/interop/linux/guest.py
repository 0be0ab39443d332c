#!/usr/bin/env python3
"""Starts a Linux machine of image.py in QEMU, and runs commands in it.

usage: guest.py start FOLDER IMAGE LINE [--mac MAC] [--also ARCHIVE] [--processors N] [--memory MIB]
                                     becomes the process of QEMU; LINE is the PATH of guest:PATH of wire_line,
                                     and ARCHIVE is a file that `image.py pack` has made
       guest.py run FOLDER [--timeout SECONDS] COMMAND [ARGUMENT...]
                                     waits until the machine is up, runs a command there, prints its output,
                                     and ends with its exit code (124: timeout; 125: the machine has ended)

Each machine has its own FOLDER.  Commands go to the machine by virtio-serial, not by the network, and up to PORTS
commands run at a time.  If guest.py is killed, its command still runs until the timeout.
"""

import argparse
import base64
import fcntl
import os
import pathlib
import shlex
import sys

PORTS = 6
COMMAND_SECONDS = 60


def start(arguments):
    folder = pathlib.Path(arguments.folder)
    folder.mkdir(exist_ok=True)
    image = pathlib.Path(arguments.image)
    initrd = f"{image}/initrd"
    if arguments.also:  # the kernel unpacks concatenated archives one after the other
        initrd = folder / "initrd"
        initrd.write_bytes(b"".join(pathlib.Path(part).read_bytes() for part in (f"{image}/initrd", arguments.also)))
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        # Emulates the processor: containers and virtual machines seldom have KVM.
        "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-m", str(arguments.memory),
        "-smp", str(arguments.processors),
        "-serial", f"file:{folder}/console",
        "-kernel", f"{image}/vmlinux", "-initrd", str(initrd),
        "-append", "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off nokaslr rdinit=/init",
        "-netdev", f"stream,id=line,server=off,addr.type=unix,addr.path={arguments.line}",
        "-device", f"virtio-net-pci,netdev=line,mac={arguments.mac},romfile=",
        "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
    ]  # yapf: disable
    for port in range(PORTS):
        for way in ("in", "out"):
            os.mkfifo(folder / f"{port}.{way}")
        folder.joinpath(f"{port}.lock").touch()
        command += ["-chardev", f"pipe,id=c{port},path={folder}/{port}",
                    "-device", f"virtserialport,chardev=c{port},nr={port + 1}"]  # yapf: disable
    folder.joinpath("started").touch()
    os.execvp(command[0], command)


def free_port(folder):
    for port in range(PORTS):
        lock = os.open(folder / f"{port}.lock", os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return port, lock  # this process holds the lock until it ends
        except BlockingIOError:
            os.close(lock)
    sys.exit(f"guest.py: {PORTS} commands are running in the guest")


def run(arguments):
    folder = pathlib.Path(arguments.folder)
    port, _lock = free_port(folder)
    name = f"{os.getpid()}.{os.urandom(4).hex()}"
    command = base64.b64encode(shlex.join(arguments.command).encode()).decode()
    # QEMU has opened both pipes, so this process can open them without waiting.  An end of file means that QEMU has
    # ended.
    with open(folder / f"{port}.out", "rb", buffering=0) as answer, open(folder / f"{port}.in", "w") as request:
        print(name, arguments.timeout, command, file=request, flush=True)
        return relay(answer, name)


def relay(answer, name):
    """Copies the output of a command, line by line, and returns its exit code."""
    begin, end = f"begin {name}".encode(), f"end {name} ".encode()
    has_begun, last_line, pending = False, None, b""
    while True:
        chunk = answer.read(65536)
        if not chunk:
            print("guest.py: the guest has ended", file=sys.stderr)
            return 125
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if has_begun and line.startswith(end):
                # `last_line` is the output after its last newline, because the machine sends a newline before `end`.
                if last_line:
                    sys.stdout.buffer.write(last_line)
                return int(line[len(end):])
            if has_begun:
                if last_line is not None:
                    sys.stdout.buffer.write(last_line + b"\n")
                    sys.stdout.buffer.flush()
                last_line = line
            has_begun = has_begun or line.strip() == begin


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    subparsers = parser.add_subparsers(required=True)
    start_parser = subparsers.add_parser("start")
    start_parser.add_argument("folder")
    start_parser.add_argument("image")
    start_parser.add_argument("line")
    start_parser.add_argument("--mac", default="52:54:00:77:00:02")
    start_parser.add_argument("--also")
    start_parser.add_argument("--processors", type=int, default=1)
    start_parser.add_argument("--memory", type=int, default=512)
    start_parser.set_defaults(action=start)
    run_parser = subparsers.add_parser("run")
    run_parser.add_argument("--timeout", type=int, default=COMMAND_SECONDS)
    run_parser.add_argument("folder")
    run_parser.add_argument("command", nargs=argparse.REMAINDER)
    run_parser.set_defaults(action=run)
    arguments = parser.parse_args()
    return arguments.action(arguments)


sys.exit(main())
