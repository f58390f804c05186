"""The limiter's files are verified, then installed."""

import hashlib
import stat
import subprocess

import pytest

from hami.errors import HostError
from hami.node.library import CHECKSUMS, install_library
from testing.builders import write_checksums
from testing.cases import cases


def tree(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


@pytest.fixture
def shipped(tmp_path):
    """What an image brings."""
    (source := tmp_path / "image").mkdir()
    (source / "libvgpu.so.2").write_text("library")
    (source / "sub").mkdir()
    (source / "sub" / "tool").write_text("tool")
    (source / "ld.so.preload").write_text("/elsewhere")
    write_checksums(source)
    return source


def test_files_are_installed_once(shipped, tmp_path):
    hook = tmp_path / "host"
    assert install_library(shipped, hook) == ["libvgpu.so.2", "sub/tool", "ld.so.preload"]
    assert tree(hook) == [
        "vgpu",
        "vgpu/ld.so.preload",
        "vgpu/libvgpu.so.2",
        "vgpu/sub",
        "vgpu/sub/tool",
    ]
    assert (hook / "vgpu" / "ld.so.preload").read_text() == f"{hook}/vgpu/libvgpu.so\n"
    before = states(hook)
    assert install_library(shipped, hook) == []
    assert states(hook) == before, "equal files are not written again"


def test_a_mapped_library_is_replaced_by_renaming(shipped, tmp_path):
    install_library(shipped, tmp_path / "host")
    target = tmp_path / "host" / "vgpu" / "libvgpu.so.2"
    with open(target) as mapped:
        (shipped / "libvgpu.so.2").write_text("another library")
        write_checksums(shipped)
        assert install_library(shipped, tmp_path / "host") == ["libvgpu.so.2"]
        assert (mapped.read(), target.read_text()) == ("library", "another library")
    assert stat.S_IMODE(target.stat().st_mode) & 0o444 == 0o444


def test_an_empty_directory_in_place_of_a_file_is_replaced(shipped, tmp_path):
    (tmp_path / "host" / "vgpu" / "libvgpu.so.2").mkdir(parents=True)
    install_library(shipped, tmp_path / "host")
    assert (tmp_path / "host" / "vgpu" / "libvgpu.so.2").read_text() == "library"


@cases(
    "prepare, why",
    ("target", lambda hook: hook.write_text("a file"), "cannot install the limiter: .*host"),
    (
        "in the way",
        lambda hook: (hook / "vgpu" / "libvgpu.so.2" / "x").mkdir(parents=True),
        "cannot install the limiter: Directory not empty: .*libvgpu.so.2",
    ),
)
def test_a_failed_installation_names_the_path_and_leaves_no_temporary_files(
    shipped, tmp_path, prepare, why
):
    prepare(tmp_path / "host")
    before = tree(tmp_path)
    with pytest.raises(HostError, match=why):
        install_library(shipped, tmp_path / "host")
    assert tree(tmp_path) == before


def test_an_image_without_files_is_an_error(tmp_path):
    with pytest.raises(HostError, match="no files under"):
        install_library(tmp_path / "nowhere", tmp_path / "host")


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def listing(**changes):
    """The lines of the checksums, by file, some of them changed."""
    texts = {"libvgpu.so.2": "library", "ld.so.preload": "/elsewhere", "sub/tool": "tool"}
    return {name: f"{sha256(text)}  {name}" for name, text in texts.items()} | changes


def states(folder):
    """Returns what a change of a file or directory would change; to look at one changes the time of its last access."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {
        path: (one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns, one.st_ctime_ns)
        for path, one in found.items()
    }


@cases(
    "lines, why",
    (
        "another sum",
        listing(**{"libvgpu.so.2": f"{sha256('theirs')}  libvgpu.so.2"}),
        (
            f"/image/libvgpu.so.2 has the SHA-256 checksum {sha256('library')}; "
            f"expected {sha256('theirs')}, as in .*/image/{CHECKSUMS}"
        ),
    ),
    (
        "the last file",
        listing(**{"sub/tool": f"{sha256('')}  sub/tool"}),
        "/image/sub/tool has the SHA-256",
    ),
    (
        "lost",
        listing(more=f"{sha256('x')}  libvgpu.so"),
        "/image/libvgpu.so is missing, but .* lists it",
    ),
    (
        "not listed",
        {"libvgpu.so.2": f"{sha256('library')}  libvgpu.so.2"},
        "/image/ld.so.preload cannot be verified: .* does not list it",
    ),
    (
        "no sum",
        listing(more="libvgpu.so"),
        f"/image/{CHECKSUMS}, line 4: expected a SHA-256 checksum",
    ),
    (
        "not as sha256sum writes it",
        listing(more=f"{'A' * 64}  libvgpu.so"),
        f"{CHECKSUMS}, line 4: expected",
    ),
    ("very long", listing(more="x" * 200_000), f"{CHECKSUMS}, line 4: expected"),
    ("empty", {}, "/image/ld.so.preload cannot be verified"),
)
def test_nothing_on_the_host_changes_unless_every_file_has_its_checksum(
    shipped, tmp_path, lines, why
):
    install_library(shipped, tmp_path / "host")
    (tmp_path / "host" / "vgpu" / "libvgpu.so.2").write_text("the earlier library")
    before = states(tmp_path / "host")
    (shipped / CHECKSUMS).write_text("".join(f"{line}\n" for line in lines.values()))
    with pytest.raises(HostError, match=f"^cannot install the limiter: .*{why}") as error:
        install_library(shipped, tmp_path / "host")
    assert len(str(error.value)) < 1000
    assert states(tmp_path / "host") == before


def test_files_without_checksums_are_not_installed(shipped, tmp_path):
    (shipped / CHECKSUMS).unlink()
    with pytest.raises(
        HostError, match=f"/image/{CHECKSUMS} is missing, so its files cannot be verified"
    ):
        install_library(shipped, tmp_path / "host")
    assert not (tmp_path / "host").exists()


@pytest.mark.parametrize(
    "command",
    [
        "sha256sum libvgpu.so.2 ld.so.preload sub/tool",
        "sha256sum -b */tool l*",
        "find . -type f ! -name SHA256SUMS -exec sha256sum {} +",
    ],
)
def test_what_sha256sum_writes_is_read(shipped, tmp_path, command):
    subprocess.run(["sh", "-c", f"{command} >{CHECKSUMS}"], cwd=shipped, check=True)
    assert "libvgpu.so.2" in install_library(shipped, tmp_path / "host")
