"""The shared region: HAMi's layout 1.2 in both directions, and any garbage in it."""

import struct
import subprocess

import pytest

from testing.limiter.layout import FILE_SIZE, MAGIC, make_region
from testing.limiter.rig import MIB, uuid_of

LIMIT = 2048 * MIB


@pytest.mark.sanitized
def test_new_region_is_what_hamis_monitor_reads(rig):
    rig.limit({"memory": LIMIT, "cores": 30}, priority=0)
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {MIB}") == 0
    content = rig.path.read_bytes()
    assert len(content) == FILE_SIZE
    assert struct.unpack_from("<III", content) == (MAGIC, 1, 2)
    assert content[24:32] == struct.pack("<II", 1, 0)
    assert struct.unpack_from("<I", content, 32) == (128,)
    assert struct.unpack_from("<Q", content, 56) == (1,)
    assert content[64:160].rstrip(b"\0").decode() == uuid_of(0)
    assert struct.unpack_from("<Q", content, 1600) == (LIMIT,)
    assert struct.unpack_from("<Q", content, 1728) == (30,)
    (pid,) = struct.unpack_from("<i", content, 1856)
    assert pid == client.process.pid
    assert struct.unpack_from("<5Q", content, 1856 + 8) == (0, 0, MIB, 0, MIB)
    assert struct.unpack_from("<i", content, 1856 + 1928) == (1,)
    assert struct.unpack_from("<Q", content, 1856 + 1936)[0] % 2 == 0
    assert struct.unpack_from("<iiii", content, 2_008_896) == (1, 1, 0, 0)


def test_region_of_the_plugin_is_taken_over_unchanged(rig):
    make_region(rig.path, [LIMIT], [30], [uuid_of(0)], priority=0)
    rig.limit()
    before = rig.path.read_bytes()
    client = rig.client().start()
    assert client.do("info")[1] == LIMIT
    client.close()
    after = rig.path.read_bytes()
    assert after[:1856] == before[:1856]
    assert after[2_008_900:] == before[2_008_900:]


def test_processes_of_any_user_can_open_it(rig):
    rig.limit()
    rig.client().start()
    assert rig.path.stat().st_mode & 0o777 == 0o666
    assert (rig.folder / "0f0e.sm").stat().st_size == 4096


@pytest.mark.parametrize("size", [1, 12, 1_197_896, 2_008_984, 2_008_985, 4 << 20])
def test_file_of_another_layout_is_not_touched(rig, size):
    rig.path.write_bytes(b"\0" * size)
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {LIMIT + 1}") == 2
    assert client.do(f"alloc plain 0 {LIMIT}") == 0
    assert rig.path.read_bytes() == b"\0" * size


def test_link_and_directory_are_not_followed(rig):
    elsewhere = rig.folder / "elsewhere"
    elsewhere.write_bytes(b"")
    rig.path.symlink_to(elsewhere)
    rig.limit()
    assert rig.client().start().do(f"alloc plain 0 {LIMIT + 1}") == 2
    assert elsewhere.read_bytes() == b""


@pytest.mark.sanitized
def test_memory_that_the_monitor_sees_and_the_limiter_does_not_counts(rig):
    rig.limit()
    client = rig.client().start()
    rig.region.write(1856 + 8 + 40, 100 * MIB, "<Q")
    assert client.do("info")[1] == LIMIT - 100 * MIB
    assert client.do(f"alloc plain 0 {LIMIT - 99 * MIB}") == 2
    assert client.do(f"alloc plain 0 {LIMIT - 100 * MIB}") == 0


@pytest.mark.sanitized
def test_counts_that_belong_to_nobody_are_cleared_when_they_are_in_the_way(rig):
    rig.limit()
    client = rig.client().start()
    region = rig.region
    region.write(1856 + 1960 + 40, LIMIT, "<Q")
    region.write(2_008_896, 2)
    assert client.do(f"alloc plain 0 {LIMIT}") == 0


@pytest.mark.timeout(900)
def test_a_million_broken_regions(builds, tmp_path):
    """Three programs at once: each takes one CPU for a quarter of a minute. Only one that hangs is ended."""
    started = []
    for variant, rounds, seed in (
        ("plain", 500_000, 1),
        ("plain", 500_000, 2),
        ("asan", 100_000, 3),
    ):
        words = [
            builds.program("fuzz", variant),
            tmp_path / f"region-{seed}",
            str(rounds),
            str(seed),
        ]
        started.append(
            (
                rounds,
                subprocess.Popen(
                    words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                ),
            )
        )
    ended = [
        (rounds, program.communicate(timeout=800)[0], program.returncode)
        for rounds, program in started
    ]
    for rounds, said, status in ended:
        assert status == 0, said
        granted, refused, worst, _ = said.split()
        assert int(granted) > rounds // 5
        assert int(refused) > rounds // 5
        assert float(worst) < 500  # milliseconds on a CPU
