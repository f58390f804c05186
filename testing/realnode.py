"""A real node on this machine: kubelet, containerd, runc and CNI, joined to a ``LocalCluster`` beside kwok's nodes.

All of it lives in namespaces of its own (mounts, process ids; for containerd and pods the network, too), and all that
it writes lies in the cluster's folder: the namespaces see folders of ours in place of ``/run``, ``/tmp``, ``/var/lib``
and ``/var/log``. So nothing of the machine is touched (the kubelet's device-plugin folder is fixed at
``/var/lib/kubelet/device-plugins``, whatever its root directory; containerd, CNI and the device plugin have such paths,
too), and mounts, bridge and processes vanish with the one process that holds the namespaces. All control groups lie in
one that is called like the folder, which is how ``testing.reaper`` finds them, and there in one for each node.

Needs root; to build runc, Debian's packages gcc, pkg-config and libseccomp-dev.
Images are packed here; no registry is asked. ``python -m testing.realnode`` starts a control plane with such a node
until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing import binaries, interrupts
from testing.cluster import ClusterUnavailable, LocalCluster
from testing.eventually import PATIENCE_S, WaitTimeout, eventually
from testing.images import pack_box
from testing.joined_node import JoinedNode, NodeUnavailable
from testing.needs import lacking
from testing.node_files import CONTAINERD_1, CONTAINERD_2, TUNABLES, control_group, write_node_files
from testing.processes import Program, group_members
from testing.reaper import end_control_groups

__all__ = ["IMAGE", "RealNode", "missing"]

Object = dict[str, Any]
IMAGE = "docker.io/library/box:1"
"""What pods run; it is on the node already."""
PAUSE = "docker.io/library/pause:1"
PROGRAMS = ("unshare", "nsenter")
RUNC_STATE = "/run/containerd/runc/k8s.io"  # of containerd's containers in the kubelet's namespace
SYS_ADMIN = 21
SHADOWED = ("/run", "/tmp", "/var/lib", "/var/log")
"""Folders of the machine in whose place the node sees folders of its own."""
HOLDER = r"""
set -e
cd "$0"
for path in $KEPT; do mkdir -p "$0/root$path"; mount --bind "$path" "$0/root$path"; done
for folder in $SHADOWED; do mount --rbind "$0/root$folder" "$folder"; done
for setting in $TUNABLES; do mount --bind "$0/tunables/$setting" "/proc/sys/$setting"; done
for group in $(grep -E ' - cgroup2? ' /proc/self/mountinfo | cut -d ' ' -f 5); do
    for part in $GROUP; do
        for controller in $(cat "$group/cgroup.controllers" 2>/dev/null); do  # version 2 delegates controllers by name
            echo "+$controller" > "$group/cgroup.subtree_control" || :
        done
        mkdir -p "$group/$part"
        for setting in cpuset.cpus cpuset.mems; do  # version 1 starts without values
            [ ! -e "$group/$setting" ] || cat "$group/$setting" > "$group/$part/$setting"
        done
        group="$group/$part"
    done
done
"$BOX" loopback
trap '' CHLD  # orphans of the node become children of this process, which does not wait for them
touch ready
exec tail -f "$0/ready"  # the reaper finds it by the directory in its command line
"""
KUBELET_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
REBOOT_ATTEMPTS = 5
LOG_LINE = re.compile(r"\S+ (stdout|stderr) ([FP]) (.*)")


def missing() -> str:
    """Returns why this machine cannot run a real node; empty if it can."""
    if os.geteuid() != 0:
        return "a real node needs root"
    found = re.search(r"^CapEff:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None or not int(found[1], 16) >> SYS_ADMIN & 1:
        return "a real node needs CAP_SYS_ADMIN, which root does not have here"
    if programs := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"a real node needs the programs {', '.join(programs)} of util-linux"
    return binaries.node_obstacle()


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime. *folders*: of its programs, in front of PATH. *config*: the template of containerd's file.

    *import_options*: of ``ctr images import``.
    """

    folders: tuple[Path, ...]
    config: str
    import_options: tuple[str, ...] = ()

    @classmethod
    def pinned(cls, say: Callable[[str], None] | None = None) -> Runtime:
        """containerd 2 and runc, built from the pinned modules on first use. Raises: BinariesMissing."""
        folders = dict.fromkeys(path.parent for path in binaries.find_runtime(say=say).values())
        return cls(tuple(folders), CONTAINERD_2, ("--local",))

    @classmethod
    def debian(cls) -> Runtime:
        """Debian's containerd 1.6, which knows no CDI. Raises: NodeUnavailable."""
        if packages := lacking("containerd", "runc"):
            raise NodeUnavailable(f"this runtime needs the packages {', '.join(packages)}")
        return cls((), CONTAINERD_1)

    @property
    def path(self) -> str:
        """The value of PATH for programs on the node."""
        return os.pathsep.join([*map(str, self.folders), os.environ.get("PATH", os.defpath)])


class NodeProgram(Program):
    """A program in the namespaces of a node. Its first process only waits for the program itself."""

    def signal(self, number: int) -> None:
        """Signals the program itself; its parent ends with it, and suspends itself with it."""
        for pid in group_members(self.pid) if self.pid is not None else ():
            if pid != self.pid or number == signal.SIGCONT:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


class RealNode(JoinedNode):
    """A node of real programs. Use ``RealNode.joined()``."""

    def __init__(
        self,
        cluster: LocalCluster,
        name: str,
        kubelet: Path,
        runtime: Runtime,
        *,
        box: Path,
        plugins: Path,
    ) -> None:
        """*box*: the program of the pods' image. *plugins*: the directory of the CNI plugins."""
        super().__init__(cluster.kube, name)
        self.cluster = cluster
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cluster.folder))
        self._binary = kubelet
        self._runtime = runtime
        self._box, self._plugins = box, plugins
        self._holder: Program
        self.containerd: NodeProgram
        self.kubelet: NodeProgram

    @classmethod
    @contextlib.contextmanager
    def joined(
        cls,
        cluster: LocalCluster,
        *,
        name: str = "real-0",
        runtime: Runtime | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Iterator[RealNode]:
        """A node that is Ready, for as long as the context lasts. *runtime*: the pinned one by default.

        Raises: NodeUnavailable, BinariesMissing.
        """
        if reason := missing():
            raise NodeUnavailable(reason)
        kubelet = binaries.find(kubelet=True, say=say)["kubelet"]
        node = cls(
            cluster,
            name,
            kubelet,
            runtime or Runtime.pinned(say),
            box=binaries.find_box(say=say),
            plugins=binaries.find_cni_plugins(say=say),
        )
        try:
            node._start()
            yield node
        finally:
            node._end()

    # -- what a test does with it

    def path(self, path: str) -> Path:
        """Returns the path on this machine of *path* in one of the node's own directories."""
        return self.folder / f"root{path}"

    def program(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        network: bool = False,
    ) -> NodeProgram:
        """Returns a command line on the node, not started. *network*: in the network of containerd and the pods."""
        enter = [*self._enter(), *(["--net"] if network else []), "--"]
        return NodeProgram(
            name,
            [*enter, *argv],
            self.folder / f"{name}.log",
            env={**(os.environ if env is None else env), "PATH": self._runtime.path},
        )

    def start_kubelet(self) -> None:
        """Starts the kubelet and waits until it serves device plugins; running pods continue."""
        socket = self.path(KUBELET_SOCKET)
        socket.unlink(missing_ok=True)
        self.kubelet.start()
        self._wait(socket.exists, "the kubelet's device-plugin socket", self.kubelet)

    def kill_kubelet(self) -> None:
        """Kills the kubelet; containers keep running."""
        self.kubelet.kill()

    def restart_containerd(self) -> None:
        """Kills containerd and starts it again; containers keep running."""
        self.containerd.kill()
        self.containerd.start()
        self._wait(self._answers, "containerd", self.containerd)

    def reboot(self) -> None:
        """Kills kubelet, containerd and all containers, then empties /run/cdi and starts the first two again.

        The kubelet takes up the pods of its node before any pod of a DaemonSet runs: a device plugin is started later.
        """
        self.kubelet.kill()
        for task in self.ctr("tasks", "list", "--quiet").split():
            with contextlib.suppress(NodeUnavailable):  # it has ended, since another one has
                self.ctr("tasks", "kill", "--signal", "SIGKILL", task)
        self.containerd.kill()
        shutil.rmtree(self.path("/run/cdi"), ignore_errors=True)
        self.containerd.start()
        self._wait(self._answers, "containerd", self.containerd)
        for _ in range(REBOOT_ATTEMPTS):  # a kubelet ends if containerd is not quite ready
            with contextlib.suppress(NodeUnavailable):
                return self.start_kubelet()
        self.start_kubelet()

    def output(
        self, pod: Object, container: str = "main", *, until: str = "", timeout: float = PATIENCE_S
    ) -> str:
        """Returns the output of all runs of *container* once it contains *until*.

        *pod* is the object in the API server. Raises: WaitTimeout.
        """
        meta = pod["metadata"]
        folder = (
            self.path("/var/log/pods")
            / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
            / container
        )
        eventually(
            lambda: until in printed(folder),
            lambda: (
                f"{meta['name']}/{container} has printed {until!r}; its output is {printed(folder)!r}"
            ),
            timeout=timeout,
        )
        return printed(folder)

    def ctr(self, *words: str) -> str:
        """Returns the standard output of containerd's client in the kubelet's namespace. Raises: NodeUnavailable."""
        return self.run(
            "ctr", "--address", f"{self.folder}/containerd.sock", "--namespace", "k8s.io", *words
        )

    def run(self, *words: str) -> str:
        """Returns the standard output of a command on the node. Raises: NodeUnavailable."""
        done = subprocess.run(
            [*self._enter(), "--", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": self._runtime.path},
            check=False,
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise NodeUnavailable(f"{' '.join(words)}: {said}\n{self.containerd.tail()}")
        return done.stdout

    def run_in(self, container: str, *words: str) -> str:
        """Returns the output of *words* in the running *container* (``containerd://…``). Raises: NodeUnavailable.

        ``ctr tasks exec`` would not wait for the output of a program that has ended.
        """
        return self.run("runc", "--root", RUNC_STATE, "exec", container.rpartition("/")[2], *words)

    def containers(self) -> int:
        """Returns the number of running containers, including pause containers."""
        return self.ctr("tasks", "list").count("RUNNING")

    def logs(self, size: int = 3000) -> str:
        """Returns the end of the logs of kubelet and containerd."""
        return (
            f"--- kubelet\n{self.kubelet.tail(size)}\n--- containerd\n{self.containerd.tail(size)}"
        )

    def revive(self) -> None:
        self.kubelet.start()

    def settle(self) -> None:
        self._wait(lambda: self.containers() == 0, "a node without containers", self.kubelet)

    # -- life

    def _start(self) -> None:
        for folder in SHADOWED:
            self.path(folder).mkdir(parents=True)
        self.path("/tmp").chmod(0o1777)
        write_node_files(
            self.cluster,
            self.folder,
            self.name,
            containerd=self._runtime.config,
            sandbox_image=PAUSE,
            plugins=self._plugins,
        )
        self._holder = Program(
            "namespaces",
            [
                "unshare",
                "--mount",
                "--pid",
                "--net",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                HOLDER,
                str(self.folder),
            ],
            self.folder / "namespaces.log",
            env=os.environ
            | {
                "SHADOWED": " ".join(SHADOWED),
                "BOX": str(self._box),
                "KEPT": " ".join(
                    kept(
                        self.cluster.folder,
                        self._binary.resolve().parent,
                        *self._runtime.folders,
                        self._plugins,
                        self._box.parent,
                    )
                ),
                "TUNABLES": " ".join(TUNABLES),
                "GROUP": " ".join(control_group(self.cluster, self.name)),
            },
        ).start()
        self._wait((self.folder / "ready").exists, "the node's namespaces", self._holder)
        self.containerd = self.program(
            "containerd", ["containerd", "--config", f"{self.folder}/containerd.toml"], network=True
        )
        self.kubelet = self.program(
            "kubelet",
            [
                str(self._binary.resolve()),
                f"--config={self.folder}/kubelet.yaml",
                f"--kubeconfig={self.folder}/kubeconfig",
                f"--hostname-override={self.name}",
                # With one, as by default, its garbage collection takes the output of the run before, if it comes while
                # the next run is created but not started: tests read both.
                "--maximum-dead-containers-per-container=9",
                "--v=2",
            ],
        )
        self.containerd.start()
        self._wait(self._answers, "containerd", self.containerd)
        for image, command in ((IMAGE, ("sh",)), (PAUSE, ("sleep", "inf"))):
            archive = self.folder / "image.tar"
            pack_box(archive, image, self._box, command=command)
            self.ctr(
                "images",
                "import",
                "--snapshotter",
                "native",
                *self._runtime.import_options,
                str(archive),
            )
            archive.unlink()
        self.start_kubelet()
        self.wait_ready()

    def _enter(self) -> list[str]:
        """Returns the prefix of a command line that runs on the node."""
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        return ["nsenter", "--target", children.read_text().split()[0], "--mount", "--pid"]

    def _answers(self) -> bool:
        try:
            self.ctr("version")
        except NodeUnavailable:
            return False
        return True

    def _wait(
        self, done: Callable[[], bool], what: str, program: Program, timeout: float = PATIENCE_S
    ) -> None:
        def ended_or_done() -> bool:
            return not program.running() or done()

        with contextlib.suppress(WaitTimeout):
            eventually(ended_or_done, what, timeout=timeout)
            if program.running():
                return
        raise NodeUnavailable(
            f"{what}: does not exist; the log of {program.name} ends with:\n{program.tail()}"
        )

    def _end(self) -> None:
        """Ends all processes of the node, and removes what they leave."""
        if hasattr(self, "_holder"):
            self._holder.kill()
        for name in ("kubelet", "containerd"):
            if program := getattr(self, name, None):
                program.kill()
        deadline = time.monotonic() + PATIENCE_S
        end_control_groups("/".join(control_group(self.cluster, self.name)), deadline)
        while (
            self.folder.exists() and time.monotonic() < deadline
        ):  # processes that end may still write
            shutil.rmtree(self.folder, ignore_errors=True)
        self.kube.delete("Node", self.name)


def kept(*needed: Path) -> list[str]:
    """Returns directories below those that the node replaces which it *needed* nevertheless, with those of Python."""
    wanted = {
        *needed,
        Path(sys.prefix),
        Path(sys.base_prefix),
        *(Path(entry) for entry in sys.path if entry),
    }
    hidden = {
        path
        for path in wanted
        if path.is_dir() and any(Path(folder) in path.parents for folder in SHADOWED)
    }
    return sorted(str(path) for path in hidden if hidden.isdisjoint(path.parents))


def printed(folder: Path) -> str:
    """Returns the lines in the log files of a container."""
    text = ""
    for path in sorted(folder.glob("*.log"), key=lambda path: int(path.stem)):
        for line in path.read_text().splitlines():
            if found := LOG_LINE.fullmatch(line):
                text += found[3] + ("\n" if found[2] == "F" else "")
    return text


def main() -> int:
    """Runs a control plane with a real node until a signal ends it."""
    say = functools.partial(print, file=sys.stderr, flush=True)
    try:
        with LocalCluster.started(say=say) as cluster, RealNode.joined(cluster, say=say) as node:
            print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}", flush=True)
            say(
                f"node {node.name} is Ready; logs of pods: {node.path('/var/log/pods')}; Ctrl-C ends it"
            )
            interrupts.wait()
    except (binaries.BinariesMissing, ClusterUnavailable, NodeUnavailable) as error:
        say(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
