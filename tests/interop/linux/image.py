#!/usr/bin/env python3
"""Makes a Linux machine with soft-RoCE (rdma_rxe) for QEMU: FOLDER/vmlinux and FOLDER/initrd.

usage: image.py FOLDER
       image.py pack ARCHIVE PREFIX PATH...

The kernel, its modules and busybox come from Debian's packages, which are unpacked and not installed.  The programs and
libraries are those of this machine.  Does nothing if the machine in FOLDER was already made from the same packages and
programs, even if their libraries have changed.  If the packages cannot be downloaded, prints the reason and exits with
77.

pack: makes an archive of the files PREFIX/PATH, without symbols, and of the libraries that they need.  guest.py appends
the archive to initrd.
"""

import gzip
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PACKAGES = ["busybox-static", "ibverbs-providers"]  # kernel_package() adds the kernel
# The modules, with those for QEMU's devices first.  The checksum modules must be named here, because the kernel finds
# them by name, and the other modules do not list them as dependencies.
MODULES = """virtio_pci virtio_net virtio_console virtio_rng crc32_generic crc32_pclmul
    crc32c_generic crc32c_intel rdma_rxe ib_uverbs rdma_ucm ib_umad 8021q""".split()
PROGRAMS = """dash timeout ip ss rdma rping ucmatose udaddy mckey rdma_server rdma_client rstream
    cmtime ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong ibv_devinfo ibv_devices
    ibv_asyncwatch ib_send_lat ib_send_bw ib_write_lat ib_write_bw ib_read_lat ib_read_bw
    ib_atomic_lat ib_atomic_bw qperf""".split()
LIBRARIES = ["libgcc_s.so.1"]  # pthread_exit() loads it, so ldd does not list it
# The dynamic loader must be at its usual path.  All other libraries are in a directory of LD_LIBRARY_PATH.
LOADER = "/lib64/ld-linux-x86-64.so.2"
PROVIDERS = "usr/lib/x86_64-linux-gnu/libibverbs"

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from packages import need_tools, output, skip_test, unpack  # noqa: E402


def kernel_package():
    """Returns the package of Debian's usual kernel.  Debian's kernel for clouds has no rdma_rxe."""
    if not output("apt-cache", "policy", "linux-image-amd64") and os.geteuid() == 0:
        subprocess.run(["apt-get", "-qq", "update"])
    found = re.search(r"Depends: (linux-image-\d\S*-amd64)", output("apt-cache", "depends", "linux-image-amd64"))
    if not found:
        skip_test("the package lists have no kernel (apt-get update?)")
    return found[1]


def path_of(program):
    found = shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin")
    return found and os.path.realpath(found)


def describe_parts(kernel):
    """Returns a text that changes when a package, a program, this script or `init` changes.

    It does not describe the libraries of the programs.  After an upgrade of libraries alone, remove FOLDER/made-from.
    """
    programs = {name: path_of(name) for name in PROGRAMS}
    parts = [hashlib.sha256(HERE.joinpath(name).read_bytes()).hexdigest() for name in ("image.py", "init")]
    parts += [output("apt-cache", "policy", package) for package in PACKAGES + [kernel]]
    for name, path in programs.items():
        parts.append(f"{name} {os.stat(path).st_mtime_ns if path else 'is not here'}")
    return "\n".join(parts)


def uncompressed(bzimage):
    """Returns the ELF file in the compressed kernel, because its decompression in QEMU would take seconds."""
    at = bzimage.find(b"\xfd7zXZ\0")
    while at >= 0:
        try:
            elf = lzma.LZMADecompressor().decompress(bzimage[at:])
            if elf.startswith(b"\x7fELF"):
                return elf
        except lzma.LZMAError:
            pass
        at = bzimage.find(b"\xfd7zXZ\0", at + 1)
    sys.exit("image.py: no ELF file in the kernel")


def with_dependencies(names, folder):
    """Returns the files of the modules, each after the modules that it depends on."""
    files = {path.stem.replace("-", "_"): path for path in folder.rglob("*.ko")}
    order = {}

    def add(name):
        path = files.get(name)
        if path is None or path in order:  # the module may be built into the kernel
            return
        needs = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for other in needs[1].decode().split(",") if needs else []:
            add(other.replace("-", "_"))
        order[path] = None

    for name in names:
        add(name)
    return list(order)


def libraries_of(path):
    listing = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return {found for found in re.findall(r"=> (/\S+)", listing)}


class Archive:
    """Builds an initramfs: a cpio archive in the format "newc" (the kernel's buffer-format.rst)."""

    def __init__(self):
        self.bytes = bytearray()
        self.names = set()

    def add(self, name, mode, content=b""):
        if name in self.names:
            return
        parent = os.path.dirname(name)
        if parent:
            self.add(parent, 0o040755)
        self.names.add(name)
        fields = [len(self.names), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        self.bytes += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        self.pad()
        self.bytes += content
        self.pad()

    def pad(self):
        self.bytes += b"\0" * (-len(self.bytes) % 4)

    def file(self, name, path):
        self.add(name, 0o100755, pathlib.Path(path).read_bytes())

    def finish(self):
        self.add("TRAILER!!!", 0)
        return gzip.compress(self.bytes, 1)


def initramfs(root):
    archive = Archive()
    for folder in ("dev", "proc", "sys", "tmp", "run", "etc"):
        archive.add(folder, 0o040755)
    archive.file("init", HERE / "init")
    archive.file("bin/busybox", root / "bin/busybox")
    archive.add("bin/sh", 0o120777, b"/usr/bin/dash")
    archive.add("etc/passwd", 0o100644, b"root:x:0:0:root:/:/bin/sh\n")
    archive.add("etc/hosts", 0o100644, b"127.0.0.1 localhost\n")

    modules = with_dependencies(MODULES, root / "lib/modules")
    for module in modules:
        archive.file(f"modules/{module.name}", module)
    archive.add("modules/order", 0o100644, "".join(f"{m.name}\n" for m in modules).encode())

    libraries = {LOADER}
    for name in PROGRAMS:
        if path := path_of(name):
            archive.file(f"usr/bin/{name}", path)
            libraries |= libraries_of(path)
    for path in (root / PROVIDERS).glob("librxe-*.so"):
        archive.file(f"{PROVIDERS}/{path.name}", path)
        libraries |= libraries_of(path)
    archive.add("etc/libibverbs.d/rxe.driver", 0o100644, b"driver rxe\n")
    known = output("ldconfig", "-p") if shutil.which("ldconfig") else output("/sbin/ldconfig", "-p")
    for name in LIBRARIES:
        libraries.add(re.search(rf"{re.escape(name)} .*=> (\S+)", known)[1])
    for library in libraries:
        name = LOADER if library == LOADER else f"/lib/{os.path.basename(library)}"
        archive.file(name[1:], os.path.realpath(library))
    return archive.finish()


def pack(target, prefix, paths):
    """Packs files of the build, which will be in the folder /verbena of the machine."""
    archive = Archive()
    libraries = set()
    with tempfile.TemporaryDirectory() as temporary:
        small = pathlib.Path(temporary) / "small"
        for path in paths:
            subprocess.run(["strip", "-o", small, f"{prefix}/{path}"], check=True)
            archive.file(f"verbena/{path}", small)
            libraries |= libraries_of(f"{prefix}/{path}")
    for library in libraries:
        if not library.startswith(prefix):
            archive.file(f"lib/{os.path.basename(library)}", os.path.realpath(library))
    pathlib.Path(target).write_bytes(archive.finish())


def main(arguments):
    if len(arguments) > 4 and arguments[1] == "pack":
        return pack(arguments[2], arguments[3], arguments[4:])
    if len(arguments) != 2 or arguments[1].startswith("-"):
        print(__doc__)
        return 0 if arguments[1:] == ["--help"] else 2
    need_tools("apt-get", "apt-cache", "dpkg-deb", "ldd")
    folder = pathlib.Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    kernel = kernel_package()
    made_from = folder / "made-from"
    parts = describe_parts(kernel)
    if made_from.exists() and made_from.read_text() == parts:
        return 0
    made_from.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = unpack(PACKAGES + [kernel], pathlib.Path(temporary))
        vmlinuz = next(root.glob("boot/vmlinuz-*"))
        folder.joinpath("vmlinux").write_bytes(uncompressed(vmlinuz.read_bytes()))
        folder.joinpath("initrd").write_bytes(initramfs(root))
    made_from.write_text(parts)
    print(f"{kernel}: {folder}/vmlinux, {folder}/initrd")
    return 0


sys.exit(main(sys.argv))
