"""The plugins of this process that the kubelet knows: one for the cards, and one for each resource of MIG instances."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory
from hami.plugin.kubelet_registration import KubeletRegistration
from hami.plugin.server import PluginServer
from hami.plugin.static_mig import InstanceResource
from hami.runtime.parts import Part, join_reasons
from hami.runtime.tasks import problems


@dataclass(frozen=True, slots=True)
class _Resource:
    registration: KubeletRegistration
    inventory: DeviceInventory


class KubeletServers(Part):
    """Serves resources, also such as are found while it runs. Threads may share it."""

    def __init__(self, config: PluginConfig) -> None:
        super().__init__()
        self._config = config
        self._lock = threading.Lock()  # guards what follows; never held while a registration runs
        self._resources: dict[str, _Resource] = {}
        self._is_started = False
        self._is_stopped = False

    def serve_cards(
        self,
        inventory: DeviceInventory,
        make_server: Callable[[Path, Callable[[], None]], PluginServer],
        *,
        is_ready: Callable[[float], bool],
        on_registered: Callable[[], None],
    ) -> None:
        """Serves the cards in *inventory* from `start` on. The other arguments: see `KubeletRegistration`."""
        registration = KubeletRegistration(
            self._config,
            make_server,
            clock=time.monotonic,
            is_ready=is_ready,
            on_registered=on_registered,
        )
        self._serve(self._config.resource, _Resource(registration, inventory))

    def serve_instances(self, resource: InstanceResource) -> None:
        """Serves MIG instances, from `start` on. Raises: HamiError for a name that is too long."""
        config = self._config
        if not config.kubelet_socket:
            return
        if resource.resource != config.resource:
            config = replace(config, resource=resource.resource, socket_name="")
        registration = KubeletRegistration(
            config,
            lambda path, on_disconnect: PluginServer(
                path,
                config,
                resource.inventory,
                resource,
                ids=lambda card, config: (card.uuid,),
                on_disconnect=on_disconnect,
            ),
            clock=time.monotonic,
            name=resource.resource,
        )
        self._serve(resource.resource, _Resource(registration, resource.inventory))

    def _serve(self, name: str, resource: _Resource) -> None:
        """Serves a resource, which takes its socket over from an earlier one of that *name*."""
        with self._lock:
            if self._is_stopped:
                return
            earlier = self._resources.pop(name, None)
            if earlier is not None:
                earlier.registration.stop()
            self._resources[name] = resource
            self.tasks.append(resource.registration)
            if self._is_started:
                resource.registration.start()

    def start(self) -> None:
        """Starts all registrations."""
        with self._lock:
            self._is_started = True
            super().start()

    def are_cards_registered(self) -> bool:
        """Reports whether the kubelet calls this process for cards."""
        with self._lock:
            cards = self._resources[self._config.resource]
        return cards.registration.is_registered()

    def is_replaced(self) -> bool:
        """Reports whether another process serves one of the sockets."""
        return any(served.registration.is_replaced() for served in self._served())

    def unready_reason(self) -> str:
        """Returns why the kubelet cannot call a plugin that has devices; empty if it can."""
        reasons = []
        for served in self._served():
            if served.inventory.cards():
                reasons.append(served.registration.unready_reason)
        return join_reasons(reasons)

    def hung_reason(self) -> str:
        """Returns which threads have died or hang, and which servers are silent; empty if none."""
        silent = [served.registration.hung_reason() for served in self._served()]
        return join_reasons([problems(tuple(self.tasks)), *silent])

    def stop(self) -> None:
        """Stops serving; from now on, nothing more is served."""
        with self._lock:
            self._is_stopped = True
            super().stop()

    def _served(self) -> list[_Resource]:
        with self._lock:
            return list(self._resources.values())
