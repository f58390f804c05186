"""One image for several architectures, made before anything is published.

``python -m tools.image_index FOLDER ARCHIVE…`` lays the images of the archives, one for each architecture as BuildKit
writes them (``type=oci``), into FOLDER as one image, and prints its digest: under this digest it is published, so what
names the image can be built before. Nothing in the images changes, so their attestations stay valid.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

__all__ = ["main", "merged"]

INDEX = "application/vnd.oci.image.index.v1+json"
UNKNOWN = "unknown"
"""The architecture of an attestation."""


def merged(folder: Path, archives: Sequence[Path]) -> str:
    """Lays the images in *archives* into *folder* as one; returns its digest. Raises: ClickException; OSError."""
    manifests: list[dict[str, Any]] = []
    architectures: list[str] = []
    for archive in archives:
        for manifest in _manifests(archive, folder):
            architecture = manifest.get("platform", {}).get("architecture", "")
            if not architecture:
                raise click.ClickException(f"{archive}: an image without an architecture")
            if architecture != UNKNOWN and architecture in architectures:
                raise click.ClickException(f"{archive}: a second image for {architecture}")
            architectures.append(architecture)
            manifests.append(manifest)
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    descriptor = _written(folder, json.dumps(index).encode())
    layout = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
    (folder / "index.json").write_text(json.dumps(layout))
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return str(descriptor["digest"])


def _manifests(archive: Path, folder: Path) -> list[dict[str, Any]]:
    """Unpacks *archive* into *folder*; returns the descriptors of its images and attestations."""
    try:
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        (outer,) = json.loads((folder / "index.json").read_text())["manifests"]
        if outer["mediaType"] != INDEX:
            return [outer]
        found: list[dict[str, Any]] = json.loads(_blob(folder, outer["digest"]))["manifests"]
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise click.ClickException(f"{archive}: not an image in OCI's layout: {error}") from error
    return found


def _blob(folder: Path, digest: str) -> bytes:
    """Returns the content with *digest*. Raises: ValueError if it is another one."""
    algorithm, _, name = digest.partition(":")
    content = (folder / "blobs" / algorithm / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != name:
        raise ValueError(f"{digest}: the content has another digest")
    return content


def _written(folder: Path, content: bytes) -> dict[str, Any]:
    """Writes an index into *folder*; returns its descriptor."""
    name = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / "sha256" / name).write_bytes(content)
    return {"mediaType": INDEX, "digest": f"sha256:{name}", "size": len(content)}


@click.command(help="Lay the images of ARCHIVES into FOLDER as one, and print its digest.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument(
    "archives",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
def main(folder: Path, archives: tuple[Path, ...]) -> None:
    try:
        folder.mkdir(parents=True)
        click.echo(merged(folder, archives))
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


if __name__ == "__main__":
    main()
