"""Unpacks Debian packages without installing them, for tests with programs that are not installed.

If the packages cannot be downloaded, prints the reason and exits with 77: the test is skipped."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def skip_test(reason):
    print(reason)
    sys.exit(77)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def need_tools(*tools):
    for tool in tools:
        if not shutil.which(tool):
            skip_test(f"{tool} is not installed")


def download(packages, folder):
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download"]
    return subprocess.run(command + packages, cwd=folder, capture_output=True, text=True)


def unpack(packages, folder):
    """Downloads and unpacks the packages, and returns the folder with their files."""
    result = download(packages, folder)
    if result.returncode != 0 and os.geteuid() == 0:
        subprocess.run(["apt-get", "-qq", "update"])  # the lists may name versions that the server no longer has
        result = download(packages, folder)
    if result.returncode != 0:
        skip_test(f"cannot download {' '.join(packages)}: {result.stderr.strip()}")
    for deb in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", deb, folder / "root"], check=True)
        deb.unlink()
    return folder / "root"


def make_folder(folder, packages, make, related=()):
    """Calls make(folder, root), where `root` has the files of the packages.

    Does nothing if a former call succeeded, and apt knows the same versions of these packages and of `related` as then.
    """
    need_tools("apt-get", "apt-cache", "dpkg-deb")
    folder.mkdir(parents=True, exist_ok=True)
    made_from = folder / "made-from"
    versions = "".join(output("apt-cache", "policy", package) for package in [*packages, *related])
    if made_from.exists() and (not versions or made_from.read_text() == versions):
        return
    made_from.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        make(folder, unpack(packages, pathlib.Path(temporary)))
    made_from.write_text(versions)
    print(f"{' and '.join(packages)}: {folder}")
