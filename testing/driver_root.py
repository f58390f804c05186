"""The root of a driver whose libnvidia-ml.so.1 has a few cards and is exchanged under programs that have loaded it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = "usr/lib64"
SOURCE = Path(__file__).with_name("fake_nvml.c")


def compile_nvml(target, version, cards=2):
    """Compiles the library of a driver with this *version* and so many *cards* to *target*.

    Skips the test if there is no compiler.
    """
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it builds the driver's library")
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libnvidia-ml.so.1",
            f'-DVERSION="{version}"',
            f"-DCARDS={cards}",
            "-o",
            target,
            SOURCE,
        ],
        check=True,
    )


class DriverRoot:
    """A driver at *path*: its libraries, which version of it the kernel has loaded, by FAKE_NVML_MODULE, and the health
    of its cards, by FAKE_NVML_HEALTH."""

    def __init__(self, path, libraries, cards=2):
        """*libraries*: compiled ones, by version, with so many *cards*."""
        self.path = path
        self.module = path / "module"
        self.health = path / "health"
        self._actions = [-1] * cards
        self._xids = (0, 0, 0)  # how many there were, and card and code of the last one
        self._libraries = libraries
        (path / FOLDER).mkdir(parents=True)

    def install(self, version):
        """Replaces the libraries, as a package of the driver does: new files, then the link, then the old are gone."""
        folder = self.path / FOLDER
        old = set(folder.glob("lib*.so.*.*"))
        for name in ("libnvidia-ml", "libcuda"):
            new = folder / f"{name}.so.{version}"
            shutil.copy(self._libraries[version], new)
            old.discard(new)
            link = folder / f"{name}.link"
            link.symlink_to(new.name)
            link.rename(folder / f"{name}.so.1")
        for file in old:
            file.unlink()

    def load(self, version):
        """Loads the kernel module of that version, in place of the one that was loaded; "" for none."""
        if not version:
            self.module.unlink(missing_ok=True)
            return
        new = self.module.with_suffix(".new")
        new.write_text(version)
        os.replace(new, self.module)

    def ask(self, card, action):
        """Has the driver ask for *action* for a card: -1 before release 570, which has no such field."""
        self._actions[card] = action
        self._tell()

    def report_xid(self, card, xid):
        """Has the driver report an XID of a card."""
        self._xids = (self._xids[0] + 1, card, xid)
        self._tell()

    def _tell(self):
        new = self.health.with_suffix(".new")
        new.write_text(" ".join(map(str, (*self._xids, *self._actions))))
        os.replace(new, self.health)

    def replace(self, version):
        """Replaces the whole driver."""
        self.install(version)
        self.load(version)
