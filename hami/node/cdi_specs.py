"""Writes the CDI specifications of the node's devices.

They stay when the plugin stops, since containers that restart need them. Each file is replaced atomically, and only if
its content changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from hami.devices.cards import Card, Instance, MigDevice
from hami.errors import HostError
from hami.node.cdi import (
    CLASSES,
    GPU,
    VENDOR,
    Document,
    DriverFiles,
    Roots,
    extra_document,
    gpu_document,
)
from hami.node.driver import (
    MIG_MINORS,
    dev_root,
    driver_files,
    drm_nodes,
    instance_nodes,
    read_mig_minors,
)
from hami.node.host import host_errors
from hami.runtime.files import write_atomically

log = logging.getLogger(__name__)


class NoCdiSpecs:
    """The specifications of a node on which containers are given devices in other ways, or somebody else's: none is
    written."""

    def update_cards(self, cards: Sequence[Card]) -> None:
        """Has nothing to write."""

    def update_instances(self, instances: Sequence[Instance | MigDevice]) -> None:
        """Has nothing to write."""

    def classes(self) -> frozenset[str]:
        """Returns all classes: who writes their specifications knows which of them have devices."""
        return frozenset(CLASSES)

    def edits(self, names: Iterable[str]) -> list[Document]:
        """Returns no edits: a container is given the names."""
        return []


class CdiSpecs(NoCdiSpecs):
    """Writes the files of one node. Threads may share it."""

    def __init__(
        self,
        folder: Path,
        driver_root: Path,
        roots: Roots,
        wanted: Iterable[str],
        *,
        minors: Path = MIG_MINORS,
        kernel: Path = Path("/"),
    ) -> None:
        """*folder*: where runtimes look for specifications. *driver_root*: the driver's root as this process sees it.
        *roots*: as the host sees them. *wanted*: classes besides the cards. *minors*: see `MIG_MINORS`. *kernel*: see
        `drm_nodes`."""
        self._folder = folder
        self._driver_root = driver_root
        self._roots = roots
        self._wanted = frozenset(wanted)
        self._minors = minors
        self._kernel = kernel
        self._lock = threading.Lock()  # guards what follows; held while files are read and written
        self._driver: DriverFiles | None = None
        self._cards: tuple[Card, ...] = ()
        self._instances: tuple[Instance | MigDevice, ...] = ()
        self._classes: frozenset[str] = frozenset()
        self._documents: dict[
            str, Document
        ] = {}  # as written, by qualified name; replaced as a whole

    def update_cards(self, cards: Sequence[Card]) -> None:
        """Looks up the driver's files again, and writes the specifications of *cards*. Raises: HostError."""
        with self._lock:
            self._cards = tuple(cards)
            self._write_extras()
            self._write_devices()

    def update_instances(self, instances: Sequence[Instance | MigDevice]) -> None:
        """Writes the specifications with these MIG instances, dynamic or static ones, which are on the cards.

        Raises: HostError.
        """
        with self._lock:
            self._instances = tuple(instances)
            self._write_devices()

    def classes(self) -> frozenset[str]:
        """Returns the wanted classes that have devices, so that containers can be given them."""
        return self._classes

    def edits(self, names: Iterable[str]) -> list[Document]:
        """Returns the edits that a runtime makes for the devices with these qualified names.

        Raises: HostError if there is no such device.
        """
        edits: list[Document] = []
        for name in names:
            kind, _, device = name.partition("=")
            document = self._documents.get(kind, {})
            own = [
                entry["containerEdits"]
                for entry in document.get("devices", ())
                if entry["name"] == device
            ]
            if not own:
                raise HostError(f"no CDI specification has the device {name}")
            edits += [*own, document["containerEdits"]]
        return edits

    def _write_extras(self) -> None:
        driver = driver_files(self._driver_root, self._roots.hook)
        documents = {
            name: extra_document(self._roots, driver, name) if name in self._wanted else None
            for name in CLASSES
        }
        self._classes = frozenset(
            name for name, document in documents.items() if document is not None
        )
        if (missing := sorted(self._wanted - self._classes)) and driver != self._driver:
            log.warning(
                "devices not found on the host, containers do not get them",
                extra={"classes": missing},
            )
        self._driver = driver
        for name, document in documents.items():
            self._write(name, document)

    def _write_devices(self) -> None:
        if self._driver is None:
            raise HostError(f"{self._driver_root}: the driver's files have not been looked up yet")
        devices: dict[str, Sequence[str]] = {}
        cards = {card.uuid: card for card in self._cards}
        drm = drm_nodes(dev_root(self._driver_root), self._kernel)
        for card in self._cards:
            if not card.mig:  # a card in MIG mode cannot be used as a whole
                nodes = card.node, *drm.get(card.uuid, ())
                devices |= dict.fromkeys((card.uuid, str(card.index)), nodes)
        minors = read_mig_minors(self._minors) if self._instances else {}
        for instance in self._instances:
            if instance.uuid and (parent := cards.get(instance.gpu)) is not None:
                devices[instance.uuid] = (
                    parent.node,
                    *instance_nodes(
                        minors, parent.minor, instance.gpu_instance, instance.compute_instance
                    ),
                )
        self._write(GPU, gpu_document(self._roots, self._driver, devices))

    def _write(self, name: str, document: Document | None) -> None:
        """Writes the specification of a class; removes it if *document* is ``None``."""
        path = self._folder / f"{VENDOR}-{name}.json"
        kept = {
            kind: written for kind, written in self._documents.items() if kind != f"{VENDOR}/{name}"
        }
        self._documents = kept | ({document["kind"]: document} if document is not None else {})
        with host_errors("cannot write a CDI specification"):
            if document is None:
                path.unlink(missing_ok=True)
            elif write_atomically(path, msgspec.json.format(msgspec.json.encode(document)) + b"\n"):
                log.info(
                    "CDI specification written",
                    extra={
                        "path": str(path),
                        "devices": [device["name"] for device in document["devices"]],
                    },
                )
