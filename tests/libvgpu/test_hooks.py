"""Every function that is hooked, of each release and variant, is called and charges what it should."""

import sys

import pytest

from testing.limiter.builds import ROOT, SOURCE
from testing.limiter.rig import MIB

sys.path.insert(0, str(SOURCE / "gen"))

import hooks  # noqa: E402

HOOKED = {
    line.split()[0]
    for line in (SOURCE / "hooks.txt").read_text().splitlines()
    if line and not line.startswith("#") and line.split()[1] not in ("call", "nvmlcall")
}
PROGRAM = ROOT / "testing" / "limiter" / "hooked.py"
COPIES = [
    f"{hook.symbol}:{len(hook.parameters)}"
    for hook in hooks.read_hooks()
    if hook.behavior == "copy"
]
OF_NVML = {name for name in HOOKED if name.startswith("nvml")}


def every_function(rig):
    rig.limit({"memory": 2048 * MIB, "cores": 90}, compute_of="all")
    arguments = ["", str(rig.path.with_suffix(".sm")), *COPIES]
    code = f"import sys; sys.argv = {arguments!r}\n{PROGRAM.read_text()}"
    called = rig.python(
        code,
        FAKE_CUDA_CTX_MIB="64",
        FAKE_CUDA_GREEN_MIB="4",
        FAKE_CUDA_MODULE_MIB="8",
        FAKE_CUDA_NO_EVENTS="1",
    ).split()
    assert HOOKED - set(called) == OF_NVML


@pytest.mark.sanitized
def test_every_hooked_function_charges_what_it_takes(rig):
    """Those of NVML: test_nvml_shows_the_slice_and_what_all_processes_use, test_process_lists.py."""
    every_function(rig)


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_no_hooked_function_calls_the_driver_under_a_lock(rig):
    """The driver may wait for another thread, which may need that lock. The build ends the program that does so."""
    every_function(rig)
