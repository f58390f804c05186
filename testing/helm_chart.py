"""The chart in ``charts/hami``, rendered and installed by Helm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from testing import binaries
from testing.yaml_text import read_documents

__all__ = ["CA", "CHART", "Helm", "HelmError", "with_images"]

Object = dict[str, Any]
ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "hami"
CA = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"
"""A CA bundle, as a value of the chart: the first line of a certificate."""


def with_images(values: Object) -> Object:
    """Returns *values* for nodes that have the images already."""
    return {**values, "image": {"preloaded": True, **values.get("image", {})}}


class HelmError(RuntimeError):
    """Helm has refused; the message is its own."""


class Helm:
    """Runs Helm. *kubeconfig*: the cluster of `run`; *folder* keeps Helm's files and values."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self._program = binaries.find_helm()
        self._folder = folder
        self._env = {
            **os.environ,
            "HELM_CACHE_HOME": str(folder / "cache"),
            "HELM_CONFIG_HOME": str(folder / "config"),
            "HELM_DATA_HOME": str(folder / "data"),
            "KUBECONFIG": str(kubeconfig or os.devnull),
        }

    def run(self, *words: str | Path, values: Object | None = None) -> str:
        """Returns what Helm prints. Nodes have the images of a release of our chart. Raises: HelmError."""
        if words[0] in ("install", "upgrade") and CHART in words:
            words = (*words, "--set", "image.preloaded=true")
        if values is not None:
            file = self._folder / "values.yaml"
            file.write_text(json.dumps(values))
            words = (*words, "--values", file)
        done = subprocess.run(
            [self._program, *words],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=150,
        )
        if done.returncode != 0:
            raise HelmError(
                "\n".join(line for line in done.stderr.splitlines() if "symbolic link" not in line)
            )
        return done.stdout

    def template(
        self,
        values: Object | None = None,
        *,
        release: str = "hami",
        namespace: str = "kube-system",
        kubernetes: str = binaries.DEFAULT.kube_version,
    ) -> list[Object]:
        """Returns the objects of the chart, without a cluster."""
        text = self.run(
            "template",
            release,
            CHART,
            "--namespace",
            namespace,
            "--kube-version",
            kubernetes,
            values=with_images(values or {}),
        )
        return [item for item in read_documents(text) if item]
