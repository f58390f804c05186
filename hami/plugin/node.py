"""The node of a device plugin: its cards, its files and its cluster, which the parts of the program share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hami.devices.cards import Card, CardSource
from hami.devices.config import PluginConfig
from hami.devices.context_size import ContextSizes
from hami.devices.inventory import DeviceInventory
from hami.devices.mock import MockCards
from hami.devices.nvml import NvmlCards
from hami.devices.nvml_library import DriverLibrary
from hami.devices.registration import MIG, VENDOR, is_filtered
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Pod
from hami.node.cdi import IMEX, Roots
from hami.node.cdi_specs import CdiSpecs, NoCdiSpecs
from hami.node.container_specs import KIND, ContainerSpecs
from hami.node.driver import shared_node
from hami.node.dynamic_mig import DynamicMig
from hami.node.grant import CDI, wanted_extras
from hami.node.grant_builder import GrantBuilder
from hami.node.host import Host, host_errors
from hami.node.library import install_library
from hami.node.pods import NodePods
from hami.plugin.allocation_mode import CardAllocationModes, claimed_part
from hami.plugin.known_cards import OPEN_S, DriverOpening, KnownCards, SilentDriver
from hami.plugin.settings import CDI_ROOT, PluginSettings
from hami.plugin.used_cards import cards_in_use
from hami.runtime.files import check_writable
from hami.vendors.catalog import vendors

log = logging.getLogger(__name__)


class PluginNode:
    """The node of one device plugin under one configuration."""

    def __init__(
        self,
        settings: PluginSettings,
        cluster: Cluster,
        events: EventRecorder,
        source: CardSource | None,
        node_pods: NodePods | None,
    ) -> None:
        """*settings*: with the allocation mode of the node. *source*: ``None`` without a driver. *node_pods*: ``None``
        if the pods of the node are not watched."""
        self.settings = settings
        self.cluster = cluster
        self.events = events
        self.source = source
        self.is_silent = isinstance(source, SilentDriver)
        """The driver does not answer, and the cards are those that it listed before."""
        self._known_cards = known_cards(settings)
        self.node_pods = node_pods
        self.vendors = vendors(settings.devices)
        self.vendor = self.vendors[VENDOR]
        offered = CardAllocationModes(settings).offered
        is_static_mig = settings.mig_strategy != "none"
        self.inventory = DeviceInventory(
            partial(offered, config=settings, ignore_mig_cards=is_static_mig)
        )
        self.claimed = self.inventory
        """The cards for claims: the same, unless each allocation mode has cards of its own."""
        claim_settings = claimed_part(settings)
        if settings.is_divided and claim_settings is not None:
            self.claimed = DeviceInventory(partial(offered, config=claim_settings))
        self.inventories = {self.inventory, self.claimed}
        self.all_cards = DeviceInventory(lambda card: None if is_filtered(card, settings) else card)
        """All cards, however they are offered, as they are."""
        self.cdi_folder = Path(settings.cdi_root or CDI_ROOT)
        self._hook_folder = Path(settings.hook_path) / "vgpu"
        self.spec_folders: set[Path] = set()
        """Where the plugin writes CDI specifications; empty if it writes none."""
        self.cdi = NoCdiSpecs()
        if source is not None and settings.cdi_root and CDI & set(settings.list_strategies):
            self.cdi = _cdi_specs(settings)
            self.spec_folders.add(self.cdi_folder)
        self.host = Host(settings, classes=self.cdi.classes)
        self._contexts = ContextSizes(self._hook_folder, settings.driver_root_in_container)

    def specs(self, kind: str = KIND) -> ContainerSpecs:
        """Returns the specifications of single containers, or of claims."""
        return ContainerSpecs(self.cdi_folder, kind=kind, edits=self.cdi.edits)

    def grants(
        self, config: PluginConfig, inventory: DeviceInventory, mig: DynamicMig | None
    ) -> GrantBuilder:
        """Returns what builds grants of the cards in *inventory*."""
        return GrantBuilder(
            config,
            self.cluster,
            inventory,
            self.host,
            mig,
            node_pods=self.node_pods,
            context_bytes=self._contexts.bytes_of,
        )

    def read_cards(self, library: DriverLibrary) -> Sequence[Card]:
        """Returns the cards of the node. Raises: HamiError."""
        if self.source is None:
            return ()
        if self.is_silent:
            return self.source.cards()
        cards = library.noted(self.source.cards)
        self._known_cards.save(cards)
        return cards

    def watched_pods(self) -> Collection[Pod] | None:
        """Returns the pods of the node as a watch reports them; ``None`` if not all are known."""
        return self.node_pods.pods() if self.node_pods is not None else None

    def known_pods(self) -> Collection[Pod] | None:
        """Returns the pods of the node: as a watch reports them, ``None`` if not all are known, or without a watch as
        the API server lists them. Raises: ClusterError."""
        if self.node_pods is None:
            return self.cluster.pods_on(self.settings.node)
        return self.node_pods.pods()

    def cards_in_use(self, cards: Collection[str]) -> Mapping[str, str]:
        """Returns the card that the container of each of the kubelet's ids uses: see there. None is known if the pods
        or the kubelet's checkpoint are not. *cards*: UUIDs."""
        try:
            entries = self.host.allocations()
            pods = self.known_pods() if entries else None
        except HamiError as error:
            log.warning("cards in use unknown", extra={"error": error})
            return {}
        if not entries or pods is None:
            return {}
        return cards_in_use(entries, pods, cards, self.settings.resource, self.vendor)

    def warn(self, reason: str, message: str) -> None:
        """Records an event about the node."""
        self.events.record(self.settings.node, "Warning", reason, message)

    def check_files(self) -> None:
        """Checks that containers can be given devices, and installs the limiter if somebody has removed it.

        Raises: HostError: no container can start on a node that cannot write what it is given.
        """
        for folder in (self._hook_folder, *self.spec_folders):
            with host_errors("containers cannot be given devices"):
                check_writable(folder)
        if self.host.missing_limiter() is not None:
            self.install_limiter()

    def install_limiter(self) -> None:
        """Installs the limiter if this is the plugin's duty. Raises: HostError."""
        if self.settings.library_source:
            written = install_library(self.settings.library_source, self.settings.hook_path)
            log.info("limiter installed", extra={"files": written})

    def measure_contexts(self) -> None:
        """Measures what a context takes on the cards of which that is not known."""
        for inventory in self.inventories:
            self._contexts.measure_missing(inventory.cards())


def known_cards(settings: PluginSettings) -> KnownCards:
    """Returns what keeps the cards that the driver lists; nothing does in modes with MIG, whose instances cannot be
    known without the driver."""
    if settings.mock_devices or settings.operating_mode == MIG or settings.mig_strategy != "none":
        return KnownCards(None)
    return KnownCards(Path(settings.hook_path) / "vgpu" / "cards.json")


def card_source(
    settings: PluginSettings,
    library: DriverLibrary,
    events: EventRecorder,
    on_change: Callable[[], None],
) -> CardSource | None:
    """Returns the source of the node's cards; ``None`` without a driver, where that is no reason to fail.

    Raises: HamiError.
    """
    if settings.mock_devices:
        return MockCards(
            Path(settings.mock_devices), settings.nvidia.mig_profile_allowlist, on_change=on_change
        )

    def warn(reason: str, message: str) -> None:
        events.record(settings.node, "Warning", reason, message)

    known = known_cards(settings).load()
    try:
        nvml = _open(settings, library, is_needed=not known)
    except HamiError as error:
        if settings.fail_on_init_error:
            raise
        log.warning("no cards on this node", extra={"reason": error})
        return None
    if nvml is None:
        log.warning("the driver does not answer", extra={"cards": [card.uuid for card in known]})
        return SilentDriver(known)
    node = (
        shared_node(Path(settings.driver_root_in_container)) if settings.discovery == "auto" else ""
    )
    return NvmlCards(
        nvml,
        settings.nvidia.mig_profile_allowlist,
        xids=settings.xids,
        links=settings.topology_score,
        shared_node=node,
        driver_root=settings.driver_root_in_container,
        warn=warn,
    )


def _open(settings: PluginSettings, library: DriverLibrary, *, is_needed: bool) -> Any:
    """Returns pynvml; ``None`` if the driver does not answer for a while, unless it *is_needed*. Raises: HamiError."""
    root = settings.driver_root_in_container
    if is_needed:
        return library.open(root)
    return DriverOpening(library, root).result(OPEN_S)


def _cdi_specs(settings: PluginSettings) -> CdiSpecs:
    roots = Roots(driver=settings.driver_root, dev=settings.dev_root, hook=settings.cdi_hook)
    classes = set(wanted_extras(settings))
    if settings.imex_channels:
        classes.add(IMEX)
    driver_root = Path(settings.driver_root_in_container)
    return CdiSpecs(Path(settings.cdi_root), driver_root, roots, classes)
