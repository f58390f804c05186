"""Kubernetes control planes for tests.

``LocalCluster`` runs etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok on this machine, through
kwokctl, and removes them at the end of the context. Its kube-scheduler has the configuration in ``manifests/`` with
other addresses. ``ExternalCluster`` is the cluster in the user's KUBECONFIG. ``testing.kind`` contains that of kind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import urllib3
import yaml

from hami.codec.documents import parse_own_yaml
from testing import binaries as control_plane
from testing import reaper
from testing.eventually import PATIENCE_S, WaitTimeout, eventually
from testing.kube import ApiError, Kube
from testing.processes import Program, free_port
from testing.rights import audit_policy
from testing.yaml_text import read_documents

__all__ = [
    "FAKE_NODE",
    "MANIFESTS",
    "SCHEDULER",
    "ClusterUnavailable",
    "ExternalCluster",
    "LocalCluster",
]

MANIFESTS = Path(__file__).parents[1] / "manifests" / "base"
SCHEDULER = "hami-scheduler"
"""Name of the profile, of kube-scheduler's Lease and of its account."""

Object = dict[str, Any]
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok-controller",
)
FAKE_NODE = "kwok.x-k8s.io/node"
STAGES = Path(__file__).with_name("kwok.yaml")


class ClusterUnavailable(RuntimeError):
    """The cluster cannot be used; the message contains the reason."""


def scheduler_config(
    extender_port: int | None, *, kubeconfig: Path | None = None, folder: Path = MANIFESTS
) -> Object:
    """Returns the shipped KubeSchedulerConfiguration with its extender at *extender_port* (``None``: no extender).

    *folder*: that of the base, or of a component."""
    config: Object = parse_own_yaml((folder / "scheduler-config.yaml").read_text())
    if extender_port is None:
        del config["extenders"]
    else:
        config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{extender_port}"
    if kubeconfig is not None:
        config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    return config


class LocalCluster:
    """A control plane of processes on this machine. Use ``LocalCluster.started()``."""

    def __init__(
        self,
        folder: Path,
        programs: control_plane.Binaries,
        webhook_port: int,
        extender_port: int,
        *,
        audited: bool = False,
        durable: bool = True,
        options: Mapping[str, str] | None = None,
        api_server: Mapping[str, str] | None = None,
        stages: Sequence[Path] = (),
    ) -> None:
        self.folder = folder
        self._stages = stages
        self._options = dict(options or {})
        self._api_server = dict(api_server or {})
        self._audited = audited
        self._durable = durable
        self.binaries = programs
        self.webhook_port = webhook_port
        self.extender_port = extender_port
        self.kubeconfig = folder / "kubeconfig"
        # starts with a letter: a leading "-" would make it a flag
        self.name = "c" + folder.name.removeprefix(reaper.PREFIX).lower().replace("_", "-").rstrip(
            "-"
        )
        self.components: dict[str, Program] = {}
        self.kube: Kube

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        *,
        adjust: Callable[[Object], None] = lambda config: None,
        extender: bool = True,
        audited: bool = False,
        durable: bool = True,
        options: Mapping[str, str] | None = None,
        api_server: Mapping[str, str] | None = None,
        stages: Sequence[Path] = (),
        say: Callable[[str], None] | None = None,
    ) -> Iterator[LocalCluster]:
        """Yields a ready cluster.

        *adjust* may change the configuration of kube-scheduler before the start; *extender* False omits the extender.
        *audited*: the API server logs the requests of HAMi's accounts. *durable* False: etcd waits for no disk; a
        killed process loses nothing by that. *options*: of kwokctl, such as feature gates. *api_server*: flags of the
        API server. *stages*: files with more stages of kwok, which come first if they have a weight. *say* receives
        progress lines of a first build.
        The extender is expected at ``cluster.extender_port`` and the webhook at ``cluster.webhook_port``; neither needs
        to run yet.
        """
        programs = control_plane.find(say=say)
        reaper.remove_leftovers()
        with reaper.claimed() as folder:
            cluster = cls(
                folder,
                programs,
                free_port(),
                free_port(),
                audited=audited,
                durable=durable,
                options=options,
                api_server=api_server,
                stages=stages,
            )
            try:
                config = scheduler_config(cluster.extender_port if extender else None)
                adjust(config)
                cluster._create(config)
                with cluster._supervised():
                    yield cluster
            finally:
                reaper.end(folder)
                for program in cluster.components.values():
                    program.wait_end()  # what was started again is a child of this process

    def _create(self, config: Object) -> None:
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(config))
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(audit_policy()))
        for attempt in range(3):  # another process may take a port before it is used
            documents = [self._kwok_config()]
            for file in (STAGES, *self._stages):
                documents += read_documents(file.read_text())
            (self.folder / "kwok.yaml").write_text(yaml.safe_dump_all(documents))
            done = self._kwokctl(
                "create", "cluster", "--kubeconfig", str(self.kubeconfig), "--wait", "60s"
            )
            if done.returncode == 0:
                break
            if attempt == 2:
                raise ClusterUnavailable(
                    f"kwokctl could not create the cluster:\n{done.stdout[-4000:]}\n{self.logs()}"
                )
            self._kwokctl("delete", "cluster")
        home = self._home()
        for name in COMPONENTS:
            pid = int((home / "pids" / f"{name}.pid").read_text())
            self.components[name] = Program.adopt(name, pid, home / "logs" / f"{name}.log")
        self.kube = Kube(self.kubeconfig)
        self.wait_ready()
        # without it, the API server refuses pods; the controller manager makes it a second or more later
        for namespace in ("default", "kube-system"):
            self.kube.wait(
                "ServiceAccount",
                lambda accounts: "default" in accounts,
                namespace,
                what=f"the account of pods in the namespace {namespace}",
            )

    def _kwok_config(self) -> Object:
        ports = {
            f"{name}Port": free_port()
            for name in (
                "etcd",
                "etcdPeer",
                "kubeApiserver",
                "kubeControllerManager",
                "kubeScheduler",
                "kwokController",
            )
        }
        return {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokctlConfiguration",
            "options": {
                "runtime": "binary",
                "bindAddress": "127.0.0.1",
                "kubeVersion": self.binaries.kube_version,
                "etcdBinary": str(self.binaries["etcd"]),
                "kubeApiserverBinary": str(self.binaries["kube-apiserver"]),
                "kubeControllerManagerBinary": str(self.binaries["kube-controller-manager"]),
                "kubeSchedulerBinary": str(self.binaries["kube-scheduler"]),
                "kubectlBinary": str(self.binaries["kubectl"]),
                "kwokControllerBinary": str(self.binaries["kwok"]),
                "kubeSchedulerConfig": str(self.folder / "scheduler.yaml"),
                "disableQPSLimits": True,
                **({"kubeAuditPolicy": str(self.folder / "audit.yaml")} if self._audited else {}),
                **ports,
                **self._options,
            },
            # kwokctl's binary runtime always sets manage-all-nodes, but real nodes may join this cluster
            "componentsPatches": [
                *self._patches_of_api_server(),
                {
                    "name": "kwok-controller",
                    "extraArgs": [
                        {"key": "manage-all-nodes", "value": "false", "override": True},
                        {
                            "key": "manage-nodes-with-annotation-selector",
                            "value": f"{FAKE_NODE}=fake",
                        },
                        # as the kubelet's: renewed every 10 s
                        {"key": "node-lease-duration-seconds", "value": "40", "override": True},
                    ],
                },
                *(
                    []
                    if self._durable
                    else [
                        {
                            "name": "etcd",
                            "extraArgs": [
                                {"key": "unsafe-no-fsync", "value": "true"},
                            ],
                        }
                    ]
                ),
            ],
        }

    def _patches_of_api_server(self) -> list[Object]:
        """Returns what gives the API server its flags."""
        if not self._api_server:
            return []
        # appended: the last one of a flag counts, and kwokctl overrides only flags that are there
        flags = [{"key": key, "value": value} for key, value in self._api_server.items()]
        return [{"name": "kube-apiserver", "extraArgs": flags}]

    def _kwokctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        config = self.folder / "kwok.yaml"
        command = [
            str(self.binaries["kwokctl"]),
            "--config",
            str(config),
            "--name",
            self.name,
            *words,
        ]
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("KWOK_") and key != "KUBECONFIG"
        }
        return subprocess.run(
            command,
            env=env | {"KWOK_WORKDIR": str(self.folder / "kwok")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def _home(self) -> Path:
        return self.folder / "kwok" / "clusters" / self.name

    @property
    def audit_log(self) -> Path:
        """Path of the API server's log of requests by HAMi's accounts."""
        return self._home() / "logs" / "audit.log"

    def kubectl(self, *words: str) -> str:
        """Returns the standard output of kubectl. Raises: CalledProcessError with its ``stderr``."""
        return subprocess.run(
            [str(self.binaries["kubectl"]), "--kubeconfig", str(self.kubeconfig), *words],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout

    def add_types(self, file: Path) -> None:
        """Creates the CustomResourceDefinitions in *file*, and returns when kubectl finds all of them: the API server
        lists a new type some time after it is established."""
        names = self.kubectl("apply", "-f", str(file), "--output=name").split()

        def are_listed() -> bool:
            listed = self.kubectl("api-resources", "--output=name", "--cached=false").split()
            return {name.rpartition("/")[2] for name in names} <= set(listed)

        eventually(are_listed, f"the types in {file.name} are listed", interval=0.5)

    def wait_ready(self, timeout: float = PATIENCE_S) -> None:
        """Waits until the API server is ready."""

        def ready() -> bool:
            try:
                self.kube.call("GET", "/version", timeout=2)
                return self.kube.ready()
            except (urllib3.exceptions.HTTPError, ApiError, ValueError):
                return False

        try:
            eventually(ready, lambda: f"the API server is ready\n{self.logs()}", timeout=timeout)
        except WaitTimeout as error:
            raise ClusterUnavailable(str(error)) from None

    def restart_api_server(self) -> None:
        """Kills kube-apiserver (on SIGTERM it would wait for its watchers), starts it, and waits until it is ready."""
        self.components["kube-apiserver"].kill()
        self.components["kube-apiserver"].start()
        self.wait_ready()
        self.revive()

    def back_up(self) -> Path:
        """Returns a copy of etcd's files. etcd is restarted, since its files change while it runs."""
        etcd = self.components["etcd"]
        etcd.kill()
        copy = Path(tempfile.mkdtemp(prefix="backup-", dir=self.folder))
        shutil.copytree(self._etcd_files, copy, dirs_exist_ok=True)
        etcd.start()
        self.wait_ready()
        return copy

    def restore(self, backup: Path) -> None:
        """Replaces etcd's files by *backup* and starts the whole control plane again, as administrators are told to."""
        for program in self.components.values():
            program.kill()
        shutil.rmtree(self._etcd_files)
        shutil.copytree(backup, self._etcd_files)
        self.revive()
        self.wait_ready()

    @property
    def _etcd_files(self) -> Path:
        (flag,) = (word for word in self.components["etcd"].argv if word.startswith("--data-dir="))
        return self._home() / flag.partition("=")[2]

    def pause_api_server(self) -> None:
        """Stops the API server with open connections, so that it answers nothing."""
        self.components["kube-apiserver"].pause()

    def resume_api_server(self) -> None:
        self.components["kube-apiserver"].resume()
        self.wait_ready()
        self.revive()

    @contextlib.contextmanager
    def _supervised(self) -> Iterator[None]:
        """Restarts components that end by themselves, like a kubelet restarts static pods.

        kube-scheduler, for example, ends when it cannot renew its lease.
        """
        ending = threading.Event()

        def supervise() -> None:
            while not ending.wait(1):
                for program in list(self.components.values()):
                    program.restart_if_it_died()

        supervisor = threading.Thread(target=supervise, name="supervisor", daemon=True)
        supervisor.start()
        try:
            yield
        finally:
            ending.set()
            supervisor.join()

    def revive(self) -> list[str]:
        """Starts all components that have ended; returns their names."""
        dead = [name for name, program in self.components.items() if not program.running()]
        for name in dead:
            self.components[name].start()
        return dead

    def start_kube_scheduler(
        self,
        name: str,
        extender_port: int,
        kubeconfig: Path | None = None,
        adjust: Callable[[Object], None] = lambda config: None,
    ) -> Program:
        """Starts another kube-scheduler for the same Lease, with its own extender.

        *kubeconfig* has its permissions (default: the administrator's). *adjust* may change its configuration.
        """
        config = scheduler_config(extender_port, kubeconfig=kubeconfig or self.kubeconfig)
        adjust(config)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        program = Program(
            name,
            [
                str(self.binaries["kube-scheduler"]),
                f"--config={path}",
                f"--secure-port={free_port()}",
                "--bind-address=127.0.0.1",
                "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
                *(
                    [f"--feature-gates={gates}"]
                    if (gates := self._options.get("kubeFeatureGates"))
                    else []
                ),
            ],
            self.folder / f"{name}.log",
        )
        self.components[name] = program.start()
        return program

    def logs(self, size: int = 1500) -> str:
        """Returns the end of the log of each component."""
        logs = sorted(
            path for path in (self._home() / "logs").glob("*.log") if path != self.audit_log
        )
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-size:]}" for path in logs
        )


class ExternalCluster:
    """The cluster of a kubeconfig. The user provides its nodes, its scheduler and its webhook."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.kube = Kube(kubeconfig)

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[ExternalCluster]:
        kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        if not kubeconfig.exists():
            raise ClusterUnavailable(f"HAMI_E2E_KUBECONFIG is set, but there is no {kubeconfig}")
        yield cls(kubeconfig)
