"""What is built: the table of symbols is that of the headers, the library exports and needs only what it should."""

import platform
import re
import shutil
import subprocess
import sys

import pytest

from hami.node.limits import FIRST_LINE
from testing.limiter.builds import SANITIZERS, SOURCE, TARGETS, Unavailable, make_release
from testing.limiter.rig import MIB, Rig

sys.path.insert(0, str(SOURCE / "abi"))
sys.path.insert(0, str(SOURCE / "gen"))

import extract  # noqa: E402
import hooks  # noqa: E402


def test_symbol_table_is_that_of_the_headers(builds):
    assert (
        extract.render(extract.read_headers(builds.headers))
        == (SOURCE / "abi" / "cuda.tsv").read_text()
    )


@pytest.mark.parametrize("release", ["runtime-11.8", "runtime-12.1", "runtime-12.9"])
def test_older_releases_have_no_other_symbols(builds, wheel, release):
    header = next(wheel(release).rglob("cuda.h"))
    known = {row[0] for row in extract.read_headers(builds.headers)}
    older = extract.prototypes(header.parent)
    assert len(older) > 480
    assert set(older) <= known


def dynamic(path):
    """Exported names, needed libraries, and the versions of glibc that are asked for."""
    text = subprocess.run(
        ["readelf", "--wide", "--dyn-syms", "--dynamic", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {
        words[7].partition("@")[0]
        for words in map(str.split, text.splitlines())
        if len(words) == 8
        and words[4] in ("GLOBAL", "WEAK")
        and words[6] != "UND"
        and words[0] != "Num:"
    }
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    versions = {
        tuple(map(int, found.split("."))) for found in re.findall(r"@+GLIBC_([\d.]+)", text)
    }
    return exported, needed, versions


def check_exports(path):
    exported, needed, _ = dynamic(path)
    assert exported == {"dlsym", *(hook.symbol for hook in hooks.read_hooks() if hook.is_hooked)}
    assert {name.partition(".so")[0] for name in needed} <= {"libc", "libdl"}


def test_library_exports_wrappers_and_nothing_else(builds):
    check_exports(builds.library())


@pytest.mark.parametrize("target", TARGETS)
def test_release_runs_on_glibc_of_2012_and_is_small(release, target):
    check_exports(release[target])
    assert max(dynamic(release[target])[2]) <= (2, 17)
    assert release[target].stat().st_size < 185_000


@pytest.mark.parametrize("name", ["libvgpu.so", "hami-memory-wall"])
@pytest.mark.parametrize("target, machine", [("x86_64", "X86-64"), ("aarch64", "AArch64")])
def test_release_is_made_for_its_machine_and_hardened(release, target, machine, name):
    path = release[target].with_name(name)
    text = subprocess.run(
        ["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r"Machine: .*", text)[0].endswith(machine)
    assert re.search(r"GNU_STACK .*", text)[0].split()[-2] == "RW"  # code on the stack cannot run
    assert "GNU_RELRO" in text
    assert "BIND_NOW" in text
    assert "TEXTREL" not in text


@pytest.mark.parametrize("target", TARGETS)
def test_the_device_plugin_knows_the_release(release, target):
    assert FIRST_LINE.encode() in release[target].read_bytes()


def test_all_architectures_have_the_same_functions(release):
    exported, needed = zip(*(dynamic(release[target])[:2] for target in TARGETS), strict=True)
    assert exported[0] == exported[1]
    assert needed[0] == needed[1]


def test_release_is_the_same_in_every_build(release, tmp_path):
    """In another directory, and without the compiler's cache: so anybody can verify its checksum."""
    shutil.copytree(SOURCE, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("build", "tests"))
    make_release(
        tmp_path / "built",
        TARGETS[:1],
        source=tmp_path / "elsewhere",
        ZIG_GLOBAL_CACHE_DIR=str(tmp_path / "cache"),
    )
    for name in ("libvgpu.so", "hami-memory-wall"):
        again = tmp_path / "built" / TARGETS[0] / name
        assert again.read_bytes() == release[TARGETS[0]].with_name(name).read_bytes()


def test_release_holds_its_limits(builds, release, tmp_path):
    rig = Rig(tmp_path, builds, library=release[platform.machine()])
    rig.limit({"memory": 2048 * MIB, "cores": 50})
    try:
        for how in ("symbol", "dlsym", "procaddr"):
            client = rig.client(how).start()
            assert client.do(f"alloc plain 0 {2048 * MIB}") == 0
            assert client.do("alloc plain 1 1") == 2
            assert client.do("launch plain busy_100 100") == 0
            assert client.do("next") == 3
            client.kill()
    finally:
        rig.close()


def test_no_file_of_the_library_needs_itself():
    """What a file includes has files of its own beside it: none of them leads back to it."""
    sources = {path.stem: path.read_text() for path in sorted((SOURCE / "src").glob("*.c"))}
    headers = {path.stem: path.read_text() for path in sorted((SOURCE / "src").glob("*.h"))}
    needs = {
        name: set(
            re.findall(r'#include "(\w+)[.]h"', sources.get(name, "") + headers.get(name, ""))
        )
        - {name}
        for name in sources | headers
    }
    while ends := {name for name, others in needs.items() if not others & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in ends}
    assert needs == {}


# -- the same under sanitizers


SCRIPT = (
    f"alloc plain 0 {512 * MIB}",
    "free async 0",
    f"alloc async 0 {64 * MIB}",
    "free plain 0",
    "sync",
    "alloc pitch 0 1000 1000",
    "free plain 0",
    f"alloc create 0 {64 * MIB} 0",
    "map 0 1",
    "retain 1 2",
    "free create 0",
    "free create 2",
    "unmap 1",
    "alloc array 0 1000 100",
    "free array 0",
    "module",
    "unload",
    "module",
    "defaultpool 0 0",
    f"alloc pool 0 {32 * MIB} 0",
    "free async 0",
    "trim 0",
    "infonull",
    "total 0",
    "stream",
    "capture",
    "launch plain busy_10 5",
    "endcapture",
    "instantiate 0",
    "graphlaunch 0",
    "graphdestroy 0",
    "launch ptsz busy_100 200",
    "launch ex busy_100 200",
    "sync",
    "ctx 0",
    "release 0",
    "create 2 0",
    "launch plain busy_10 20",
    "destroy 0",
    "ctx 0",
    f"work threads 4 400 {64 * MIB}",
    "load mixed 300",
)


@pytest.mark.parametrize("how", ["symbol", "dlsym", "procaddr"])
@pytest.mark.parametrize("variant", SANITIZERS)
def test_sanitizers_find_nothing(builds, tmp_path, variant, how):
    try:
        rig = Rig(tmp_path, builds, variant)
        rig.builds.sanitizer(variant)
    except Unavailable as error:
        pytest.skip(str(error))
    rig.limit({"memory": 2048 * MIB, "cores": 50})
    try:
        client = rig.client(how, FAKE_CUDA_CTX_MIB="64", FAKE_CUDA_MODULE_MIB="8").start()
        for command in SCRIPT:
            client.do(command)
        assert client.do("fork") == 0
        assert client.do("init") == 0
        assert client.do("exit 0") == 0
        assert client.answer() == [1000]
        told = client.close()
        assert client.process.returncode == 0, told
        assert "Sanitizer" not in told, told
        assert "runtime error" not in told, told
    finally:
        rig.close()
