"""Keeps the CDI specifications on the host saying what devices there are, as long as the plugin runs and after.

They are left when it ends: containers that start again need them. Each file is replaced whole, and only when it would
say something else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from hami.errors import HostError
from hami.devices.cards import Card
from hami.node.cdi import CLASSES, GPU, VENDOR, Document, DriverFiles, Roots, extra_document, gpu_document
from hami.node.driver import MIG_MINORS, driver_files, instance_nodes, read_mig_minors
from hami.node.host import write_whole

__all__ = ["Placed", "CdiSpecs"]

log = logging.getLogger(__name__)


class Placed(Protocol):
    """A MIG instance, as far as its device nodes go."""

    @property
    def gpu(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def gpu_instance(self) -> int: ...
    @property
    def compute_instance(self) -> int: ...


class CdiSpecs:
    """The files of one node. Threads may share it."""

    def __init__(self, folder: Path, seen: Path, roots: Roots, wished: Iterable[str], *,
                 minors: Path = MIG_MINORS) -> None:
        """*folder*: where runtimes look for specifications. *seen*: the root below which the driver is seen from here.
        *wished*: classes besides the cards'. *minors*: the kernel's table of MIG instances."""
        self._folder = folder
        self._seen = seen
        self._roots = roots
        self._wished = frozenset(wished)
        self._minors = minors
        self._guard = threading.Lock()
        self._driver: DriverFiles | None = None
        self._cards: tuple[Card, ...] = ()
        self._instances: tuple[Placed, ...] = ()
        self._classes: frozenset[str] = frozenset()

    def cards_are(self, cards: Sequence[Card]) -> None:
        """There are these cards; the instances are as they were. The driver is looked at anew. Raises: HostError."""
        with self._guard:
            self._cards = tuple(cards)
            self._look()
            self._write()

    def instances_are(self, instances: Sequence[Placed]) -> None:
        """There are these MIG instances on the cards. Raises: HostError."""
        with self._guard:
            self._instances = tuple(instances)
            self._write()

    def classes(self) -> frozenset[str]:
        """The wished-for classes of which there is something, so that they can be named."""
        return self._classes

    def _look(self) -> None:
        """Look at the driver, and write what does not hang on the cards."""
        driver = driver_files(self._seen)
        documents = {name: extra_document(self._roots, driver, name) if name in self._wished else None
                     for name in CLASSES}
        self._classes = frozenset(name for name, document in documents.items() if document is not None)
        if (missing := sorted(self._wished - self._classes)) and driver != self._driver:
            log.warning("nothing of this on the host, so containers do not get it", extra={"classes": missing})
        self._driver = driver
        for name, document in documents.items():
            self._place(name, document)

    def _write(self) -> None:
        if self._driver is None:
            raise HostError(f"{self._seen}: the driver has not been looked at yet")
        devices: dict[str, Sequence[str]] = {}
        cards = {card.uuid: card for card in self._cards}
        for card in self._cards:
            if not card.mig:  # nobody can use one in MIG mode as a whole
                devices |= dict.fromkeys((card.uuid, str(card.index)), (card.node,))
        known = read_mig_minors(self._minors) if self._instances else {}
        for one in self._instances:
            if one.uuid and (cut := cards.get(one.gpu)) is not None:
                devices[one.uuid] = (cut.node, *instance_nodes(
                    known, cut.minor, one.gpu_instance, one.compute_instance))
        self._place(GPU, gpu_document(self._roots, self._driver, devices))

    def _place(self, name: str, document: Document | None) -> None:
        """Make the file of a class say *document*; ``None``: let there be none."""
        path = self._folder / f"{VENDOR}-{name}.json"
        if document is None:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise HostError(f"{path}: {error.strerror}") from error
        elif write_whole(path, msgspec.json.format(msgspec.json.encode(document)) + b"\n"):
            log.info("CDI specification written", extra={
                "path": str(path), "devices": [device["name"] for device in document["devices"]]})
