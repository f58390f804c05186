"""The hook that has the driver limit memory is in the grants of a node that asks for it."""

import pytest

from hami.devices.config import PluginConfig
from hami.errors import HostError
from hami.node.container_specs import render_grant
from hami.node.grant import Grant, Hook
from hami.node.memory_wall import LIBRARY, MemoryWall
from testing.cases import cases
from testing.plugin_stage import CARDS, A, B, share

MIB = 1 << 20
OF_THE_CARD = 46068
FIRST, SECOND = CARDS[0], CARDS[1]
GRANT = Grant(env={"A": "1"})


@pytest.fixture
def wall(tmp_path):
    """Makes a wall; its program is on the node unless *installed* is false."""

    def make(memory_by, *, installed=True, driver_root="/", **fields):
        config = PluginConfig(
            node="n1",
            memory_by=memory_by,
            hook_path=str(tmp_path),
            driver_root=driver_root,
            **fields,
        )
        (tmp_path / "vgpu").mkdir()
        if installed:
            (tmp_path / "vgpu" / "hami-memory-wall").write_text("program")
        return MemoryWall(config, tmp_path / "driver")

    return make


def test_without_it_a_grant_stays_as_it_is(wall):
    assert wall("limiter").with_hook(GRANT, [(FIRST, share(A, 3000))]) is GRANT


@cases("memory_by, words", ("both", "both", ("--best-effort",)), ("driver", "driver", ()))
def test_each_card_is_limited_to_its_share(wall, tmp_path, memory_by, words):
    parts = [(FIRST, share(A, 3000)), (SECOND, share(B, 1))]
    limits = ("--limit", f"{A}={3000 * MIB}", "--limit", f"{B}={MIB}")
    assert wall(memory_by).with_hook(GRANT, parts).hooks == (
        Hook(
            path=f"{tmp_path}/vgpu/hami-memory-wall",
            args=("hami-memory-wall", *words, "--library", LIBRARY, *limits),
            timeout_s=10,
        ),
    )


@cases(
    "sizes, expected",
    ("shares of one card", [3000, 2000], 5000),
    ("more than the card has", [OF_THE_CARD * 2], OF_THE_CARD),
)
def test_the_limit_of_a_card(wall, sizes, expected):
    parts = [(FIRST, share(A, size)) for size in sizes]
    (hook,) = wall("both").with_hook(GRANT, parts).hooks
    assert hook.args[-1] == f"{A}={expected * MIB}"


@cases(
    "files, library",
    (
        "driver container",
        ["usr/lib64/libcuda.so.615.1", "usr/lib64/libnvidia-ml.so.615.1"],
        "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
    ),
    ("no driver yet", [], LIBRARY),
)
def test_the_library_is_that_of_the_host_s_driver(wall, tmp_path, files, library):
    for name in files:
        path = tmp_path / "driver" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    grant = wall("both", driver_root="/run/nvidia/driver/").with_hook(GRANT, [(FIRST, share(A, 1))])
    assert grant.hooks[0].args[3] == library


def test_without_the_program_both_leaves_it_to_the_limiter_and_says_so_once(wall, caplog):
    made = wall("both", installed=False)
    for _ in range(2):
        assert made.with_hook(GRANT, [(FIRST, share(A, 1))]) is GRANT
    assert [record.message for record in caplog.records] == [
        "the driver does not limit memory: the program is missing"
    ]


def test_without_the_program_driver_starts_no_container(wall):
    with pytest.raises(HostError, match="hami-memory-wall is missing: --memory-by driver needs it"):
        wall("driver", installed=False).with_hook(GRANT, [(FIRST, share(A, 1))])


def test_a_specification_names_the_hook_before_the_container_s_program():
    hook = Hook(path="/p", args=("p", "--limit", "G=1"), timeout_s=10)
    document = render_grant("0" * 16, Grant(hooks=(hook,)))
    assert document["devices"][0]["containerEdits"]["hooks"] == [
        {"hookName": "createRuntime", "path": "/p", "args": ["p", "--limit", "G=1"], "timeout": 10}
    ]
