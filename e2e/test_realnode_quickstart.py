"""The quickstart with the GPU Operator, command by command, on a real kubelet.

The operator is imitated by what it leaves on a node. HAMi's programs are processes with the flags that the chart gives
them for the page's command.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing import audit, gpu_operator
from testing.cluster import LocalCluster
from testing.device_plugin import SLOTS, DevicePlugin, cards
from testing.helm_chart import ROOT, Helm
from testing.quickstart import DOCS, commands
from testing.realnode import IMAGE, RealNode, missing
from testing.scheduler import Certificates, Scheduler, install
from testing.yaml_text import read_documents

pytestmark = pytest.mark.kind
Object = dict[str, Any]
GPUS = 2
NAMESPACE = "default"


@pytest.fixture
def real_node() -> Iterator[RealNode]:
    if reason := missing():
        pytest.skip(reason)
    with LocalCluster.started(durable=False) as cluster:
        with RealNode.joined(cluster) as joined:
            yield joined
        cluster.kube.close()


class Reader:
    """Carries out what the page says. *rendered*: the objects of the chart, by kind and name."""

    def __init__(self, node: RealNode, helm: Helm, folder: Path) -> None:
        self.node = node
        self.cluster = node.cluster
        self.rendered: dict[str, Object] = {}
        self.logs = ""
        self._helm = helm
        self._folder = folder
        self._ends: list[Any] = []

    def close(self) -> None:
        for program in reversed(self._ends):
            program.close()

    def carry_out(self, words: list[str]) -> None:
        match words:
            case ["helm", "upgrade", "--install", "gpu-operator", *options]:
                assert "devicePlugin.enabled=false" in options
                gpu_operator.install_driver(self.node, GPUS)
                self.node.kube.merge_patch(
                    "Node",
                    self.node.name,
                    {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}},
                )  # Node Feature Discovery, which the operator brings
            case ["helm", "install", name, chart, *options]:
                text = self._helm.run(
                    "template",
                    name,
                    ROOT / chart,
                    "--kube-version",
                    self.cluster.binaries.kube_version,
                    *options,
                )
                self.rendered = {
                    f"{item['kind'].lower()}/{item['metadata']['name']}": item
                    for item in read_documents(text)
                    if item
                }
            case ["kubectl", "-n", "kube-system", "rollout", "status", workload, "--timeout=5m"]:
                {
                    "deployment/hami-scheduler": self._scheduler,
                    "daemonset/hami-device-plugin": self._plugin,
                }[workload]()
            case ["kubectl", "logs", pod]:
                self.logs = self.node.output(
                    self.node.kube.get("Pod", pod, NAMESPACE), until="percent"
                )
            case ["kubectl", "apply", "-f", file]:
                self._pull(*re.findall(r"^ +image: (\S+)", (ROOT / file).read_text(), re.MULTILINE))
                self.cluster.kubectl("apply", "-f", str(ROOT / file))
            case ["kubectl", *options]:
                try:
                    self.cluster.kubectl(*options)
                except subprocess.CalledProcessError as error:
                    pods = self.cluster.kubectl("describe", "pods")
                    raise AssertionError(f"{error.stderr}\n{pods}\n{self.node.logs()}") from error
            case _:
                raise AssertionError(f"nobody knows how to carry out {words}")

    def _scheduler(self) -> None:
        certificates = Certificates(self.cluster.folder / "tls")
        config = self._folder / "device-config.yaml"
        config.write_text(
            self.rendered["configmap/hami-scheduler-device"]["data"]["device-config.yaml"]
        )
        self._ends.append(
            Scheduler(
                self.cluster,
                certificates,
                install(self.cluster, certificates),
                device_config_file=str(config),
            ).start()
        )

    def _plugin(self) -> None:
        """Starts the plugin where the DaemonSet runs, when its init container has ended."""
        spec = self.rendered["daemonset/hami-device-plugin"]["spec"]["template"]["spec"]
        labels = self.node.node()["metadata"]["labels"]
        assert spec["nodeSelector"].items() - {("kubernetes.io/os", "linux")} <= labels.items()
        waiting = self.node.program(
            "toolkit-validation", spec["initContainers"][0]["command"]
        ).start()
        assert waiting.running()
        gpu_operator.install_toolkit(self.node)
        waiting.wait_end()
        assert waiting.exit_code == 0
        assert self.node.kube.get("RuntimeClass", spec["runtimeClassName"])["handler"] == "nvidia"
        plugin = DevicePlugin(self.node)
        self._ends.append(plugin)
        plugin.insert(*cards(GPUS))
        plugin.install_limiter(b"the limiter\n")
        plugin.start().wait_offered(GPUS * SLOTS)

    def _pull(self, *images: str) -> None:
        """Gives the image that is on the node the names of others, as no registry can be asked."""
        for image in images:
            self.node.ctr("images", "tag", IMAGE, f"docker.io/{image}")


def test_the_quickstart_with_the_gpu_operator(real_node, helm, tmp_path):
    kube, reader = real_node.kube, Reader(real_node, helm, tmp_path)
    try:
        for words in commands(DOCS / "quickstart-gpu-operator.md"):
            reader.carry_out(words)
        assert re.fullmatch(r"GPU /dev/nvidia[01]\nof 4000m, 30 percent\n", reader.logs)
        assert kube.get("Pod", "slice", NAMESPACE)["spec"]["runtimeClassName"] == "nvidia"
        assert audit.audit(kube) == []
    finally:
        kube.delete_all("Pod", NAMESPACE, grace_seconds=0)
        real_node.settle()
        reader.close()
