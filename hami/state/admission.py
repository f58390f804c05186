"""The part of the store for the admission of pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hami.model import Budget, PodScope, QuotaLimits
from hami.scheduling.quota import DeviceSizes
from hami.state.decisions import Decisions, State


class Admissions:
    """Answers what a new pod may take, as far as that is known before devices are chosen, and what nodes offer."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self.vendors = state.vendors
        self._state = state
        self._decisions = decisions

    def quotas_of(self, namespace: str) -> Collection[QuotaLimits]:
        """Returns the quotas of *namespace*."""
        with self._state.lock:
            return tuple(self._state.quotas.of(namespace).values())

    def budgets(self, namespace: str, scope: PodScope) -> dict[str, Budget]:
        """Returns what the quotas of *namespace* leave to pods of *scope*, by vendor."""
        with self._state.lock:
            return self._decisions.budgets(namespace, scope)

    def offers(self, resource: str) -> bool:
        """Reports whether a node has capacity of *resource*."""
        with self._state.lock:
            return self._state.nodes.offer(resource)

    def device_sizes(self) -> Mapping[str, DeviceSizes]:
        """Returns the sizes of the devices of all nodes, by vendor."""
        with self._state.lock:
            return self._state.table.sizes()

    def claimable_sizes(self) -> frozenset[int]:
        """Returns the different amounts of memory (MiB) of the devices that pods get by claims and share."""
        with self._state.lock:
            return self._state.table.claimable_sizes()
