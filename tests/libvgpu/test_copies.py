"""Copies and fills, which wait for GPU time and are charged as launches are where the limits say so."""

import pytest

from testing.cases import cases
from testing.limiter.rig import MIB

THIRTY = {"memory": 2048 * MIB, "cores": 30}
ALL_OF_IT = {"memory": 2048 * MIB, "cores": 100}
COPY_US = 200
"""Microseconds that a copy of one MiB takes of the card."""
WAYS = ("plain", "ptds", "async", "ptsz", "fill", "fillasync")
COPIES = 400
WORK_S = COPIES * COPY_US / 1e6


def copying(rig, how, count=COPIES, way="procaddr"):
    """A client that has made so many copies of one MiB."""
    client = rig.client(way, FAKE_CUDA_COPY_US=str(COPY_US)).start()
    assert client.do("stream") == 0
    assert client.do(f"alloc plain 0 {MIB}") == 0
    assert client.do(f"copies {how} {MIB} {count}") == 0
    assert client.do("sync") == 0
    return client


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("way", ["symbol", "dlsym", "procaddr"])
def test_copy_is_charged_what_it_takes(rig, how, way):
    """Events of a busy machine may tell more than the card has done, never less by more than a tenth."""
    rig.limit(THIRTY, compute_of="all")
    copying(rig, how, way=way)
    assert rig.bucket().charged > WORK_S * 0.9
    assert rig.bucket().waited > WORK_S


@cases(
    "device, keys",
    ("by default", THIRTY, {}),
    ("launches alone", THIRTY, {"compute_of": "launches"}),
    ("no compute limit", ALL_OF_IT, {"compute_of": "all"}),
    ("policy of none", THIRTY, {"compute_of": "all", "policy": "disable"}),
    ("nothing is charged", THIRTY, {"compute_of": "all", "compute_by": "off"}),
)
@pytest.mark.parametrize("way", ["symbol", "procaddr"])
def test_copy_is_not_charged(rig, device, keys, way):
    rig.limit(device, **keys)
    copying(rig, "async", way=way)
    assert (rig.bucket().charged, rig.bucket().waited) == (0, 0)


def test_tenant_cannot_switch_it_on_or_off(rig):
    """Nothing but the file of the device plugin says so."""
    rig.limit(THIRTY, compute_of="all")
    client = rig.client(
        "procaddr", FAKE_CUDA_COPY_US=str(COPY_US), HAMI_COMPUTE_OF="launches"
    ).start()
    assert client.do(f"alloc plain 0 {MIB}") == 0
    assert client.do(f"copies plain {MIB} 20") == 0
    assert rig.bucket().charged > 0


def test_copies_and_launches_share_a_limit(rig):
    rig.limit(THIRTY, compute_of="all")
    client = copying(rig, "async", 50)
    client.do("launch plain busy_100000 1")
    client.do("sync")
    before = rig.bucket().waited
    assert client.do(f"copies async {MIB} 30") == 0
    assert rig.bucket().waited - before > 0.2


def test_copy_that_is_captured_counts_with_its_graph(rig):
    rig.limit(THIRTY, compute_of="all")
    client = copying(rig, "async", 0)
    assert client.do("capture") == 0
    assert client.do(f"copies async {MIB} 30") == 0
    assert client.do("endcapture") == 0
    assert rig.bucket().charged == 0


def test_what_a_copy_copies_arrives(rig):
    rig.limit(THIRTY, compute_of="all")
    client = rig.client("procaddr").start()
    assert client.do("alloc plain 0 4096") == 0
    assert client.do("copy 0") == [0, 0]


def test_word_that_nobody_knows_is_refused(rig):
    rig.limit(THIRTY, compute_of="kernels")
    assert rig.client().do("init") == 800
