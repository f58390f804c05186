"""What kustomize makes of ``manifests/``, without a cluster."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from testing.binaries import find_one
from testing.cluster import MANIFESTS
from testing.yaml_text import read_documents

__all__ = ["FOLDER", "OVERLAYS", "build", "elsewhere", "kustomize"]

Object = dict[str, Any]
FOLDER = MANIFESTS.parent
OVERLAYS = sorted(path.parent for path in FOLDER.glob("overlays/*/kustomization.yaml"))


def kustomize(folder: Path) -> str:
    """Returns the objects of *folder* as text."""
    done = subprocess.run(
        [find_one("kubectl"), "kustomize", folder], capture_output=True, text=True, check=True
    )
    return done.stdout


def build(folder: Path) -> list[Object]:
    return read_documents(kustomize(folder))


def elsewhere(tmp_path: Path, folder: Path) -> list[Object]:
    """Builds the overlay *folder* in the namespace hami-system."""
    shutil.copytree(FOLDER, tmp_path / "manifests")
    overlay = f"manifests/overlays/{folder.name}"
    within = [{"path": f"{overlay}/{file.name}"} for file in folder.glob("replacements.yaml")]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"namespace": "hami-system", "resources": [overlay], "replacements": within})
    )
    text = kustomize(tmp_path)
    assert "kube-system" not in text
    return read_documents(text)
