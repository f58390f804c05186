"""The programs of a kind cluster, and the image of its nodes.

A node has systemd, containerd and runc of Debian, kind's own files from its Go module, and the images of the control
plane, each of which is a single static program. kind's own images cannot be pulled where there is no registry.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from testing import binaries
from testing.binaries import Pins
from testing.kind_cluster.docker import Docker, KindUnavailable, call

__all__ = ["BASE", "ensure_node_image", "find_programs"]

HERE = Path(__file__).parent
KUBERNETES = replace(binaries.DEFAULT, folder=HERE / "kubernetes")
KIND = Pins(HERE / "kind")
COREDNS = Pins(HERE / "coredns")
DEBIAN = "bookworm"
BASE = f"hami-e2e/debian:{DEBIAN}"
"""Also what the images of this project are built from."""
NODE_BASE, NODE = "hami-e2e/node-base", "hami-e2e/node"
ON_NODES = ("kubeadm", "kubectl", "kubelet")
SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")
FILL = r"""
containerd >/var/log/containerd.log 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.5; done
set -e
ctr --namespace=k8s.io images import --label=io.cri-containerd.pinned=pinned --all-platforms --no-unpack --digests - \
    >/dev/null
kill %1
wait %1 || :
rm -rf /run/containerd /var/log/containerd.log
"""
"""Takes images into containerd's store, not unpacked, as kind's own builder does."""

Say = Callable[[str], None]


def find_programs(say: Say) -> dict[str, Path]:
    """Returns all programs of a cluster, built first if needed. Raises: BinariesMissing."""
    return {
        name: path
        for pins in (KUBERNETES, KIND, COREDNS)
        for name, path in binaries.build(tuple(pins.packages()), pins, say).items()
    }


def ensure_node_image(docker: Docker, programs: Mapping[str, Path], say: Say) -> str:
    """Returns the name of the node image, built first if it is not there or its sources have changed.

    Raises: KindUnavailable.
    """
    name = f"{NODE}:{digest()}"
    if docker.has(name):
        return name
    version = KUBERNETES.kube_version
    if not docker.has(BASE):
        say(f"making {BASE} with debootstrap")
        import_debian(docker)
    say("making the images of the control plane")
    images = call(
        programs["kubeadm"], "config", "images", "list", f"--kubernetes-version={version}"
    ).split()
    by_program = {image.rpartition("/")[2].partition(":")[0]: image for image in images}
    proxy, pause = by_program.pop("kube-proxy"), by_program.pop("pause")
    import_program(docker, binaries.find_box(say=say), pause, "sleep", "infinity")
    for program, image in by_program.items():
        import_program(docker, programs[program], image)
    build_image(docker, proxy, "kube-proxy.Dockerfile", [programs["kube-proxy"]])
    say(f"making {name} (packages of Debian are downloaded)")
    build_image(
        docker,
        NODE_BASE,
        "Dockerfile",
        [programs[program] for program in ON_NODES],
        PAUSE=pause,
        VERSION=version,
    )
    fill(docker, name, images)
    for old in docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", NODE).split():
        if old != name:
            with contextlib.suppress(KindUnavailable):  # a cluster runs from it
                docker("image", "rm", old)
    return name


def digest() -> str:
    """Returns what changes with each source of the node image."""
    total = hashlib.sha256()
    for path in (HERE / "images.py", *sorted(HERE.glob("*/*"))):
        if path.suffix != ".pyc":
            total.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def import_debian(docker: Docker) -> None:
    """Makes the smallest Debian, from the mirror of this machine."""
    sources = "\n".join(Path(file).read_text() for file in SOURCES if Path(file).exists())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        # it mounts /proc below the folder: with its processes, that ends when it does, or is killed
        call(
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "debootstrap",
            "--variant=minbase",
            "--include=ca-certificates",
            DEBIAN,
            root,
            *debian_mirrors(sources)[:1],
        )
        for rest in (
            *root.glob("var/cache/apt/archives/*.deb"),
            *root.glob("var/lib/apt/lists/*_*"),
        ):
            rest.unlink()
        docker.pipe(["tar", "-C", root, "-c", "."], "import", "--change", 'CMD ["bash"]', "-", BASE)


def debian_mirrors(sources: str) -> list[str]:
    """Returns the addresses in *sources*, the text of files for apt in either form."""
    return re.findall(r"^(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s+)?)(\S+)", sources, re.MULTILINE)


def import_program(docker: Docker, program: Path, image: str, *arguments: str) -> None:
    """Makes *image* of a static program alone, which it starts with *arguments*."""
    place = f"usr/local/bin/{program.name}"
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(
                program.resolve(),
                place,
                filter=lambda entry: entry.replace(uid=0, gid=0, deep=False),
            )
        file.seek(0)
        docker(
            "import",
            "--change",
            "ENV PATH=/usr/local/bin",
            "--change",
            f"ENTRYPOINT {json.dumps(['/' + place, *arguments])}",
            "-",
            image,
            stdin=file,
        )


def build_image(
    docker: Docker, image: str, dockerfile: str, programs: list[Path], **arguments: str
) -> None:
    """Builds *image* from the files in ``node``, kind's own files and *programs*."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder) / "context"
        shutil.copytree(HERE / "node", context)
        shutil.copytree(kind_files(), context / "kind")
        for path in (context, *context.rglob("*")):  # Go's modules are read-only
            path.chmod(path.stat().st_mode | 0o200)
        (context / "bin").mkdir()
        for program in programs:
            shutil.copy(program, context / "bin")
        options = [
            f"--build-arg={name}={value}" for name, value in {"BASE": BASE, **arguments}.items()
        ]
        docker(
            "build",
            "--quiet",
            "--network=host",
            *options,
            f"--file={context / dockerfile}",
            f"--tag={image}",
            context,
        )


@functools.cache
def kind_files() -> Path:
    """Returns the folder with kind's own files of a node, in its Go module."""
    go = binaries.go_command(KIND.go_version, binaries.to_stderr)
    found = call(
        "env",
        "-C",
        KIND.folder,
        *(f"{key}={value}" for key, value in binaries.GO_ENVIRONMENT.items()),
        go,
        "mod",
        "download",
        "-json",
        "sigs.k8s.io/kind",
    )
    return Path(json.loads(found)["Dir"]) / "images" / "base" / "files"


def fill(docker: Docker, name: str, images: list[str]) -> None:
    """Makes the node image *name* of its base, and *images*."""
    box = f"hami-e2e-{digest()}"
    with contextlib.suppress(KindUnavailable):
        docker("rm", "--force", box)  # of a run that was interrupted
    try:
        docker.pipe(
            ["docker", "save", *images],
            "run",
            "--interactive",
            f"--name={box}",
            "--network=none",
            "--security-opt=seccomp=unconfined",
            "--entrypoint=bash",
            NODE_BASE,
            "-c",
            FILL,
        )
        entrypoint = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        docker("commit", "--change", entrypoint, "--change", "CMD []", box, name)
    finally:
        docker("rm", "--force", box)
