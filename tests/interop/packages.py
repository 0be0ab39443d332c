"""Unpacks Debian packages without installing them, for tests with programs that are not installed.

If the packages cannot be downloaded, prints the reason and exits with 77: the test is skipped."""

import os
import shutil
import subprocess
import sys


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
