"""Entries of ResourceQuotas that look like limits of devices, and that nobody counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hami.codec.forms import nearest
from hami.model import QuotaLimits
from hami.quantity import INT32_MAX, strict_integer
from hami.vendors.spec import Catalog
from hami.vendors.vocabulary import counted_names

__all__ = ["QuotaEntries", "UncountedEntry"]


@dataclass(frozen=True, slots=True)
class UncountedEntry:
    """*entry*: as it is written. *remedy*: what to write, or to do."""

    entry: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.problem}; {self.remedy}"


class QuotaEntries:
    """The entries that HAMi counts for the vendors in *catalog*."""

    def __init__(self, catalog: Catalog) -> None:
        self._units: dict[str, str] = {}
        self._with_units: set[str] = set()
        self._names = set(catalog.resources)
        for vendor in catalog:
            for name in counted_names(vendor.resources):
                self._units[name] = vendor.resources.unit_of(name)
            if vendor.resources.memory_units:
                self._with_units.add(vendor.resources.memory)
        self._domains = {name.partition("/")[0] for name in self._names}

    def uncounted(self, quota: QuotaLimits) -> Iterator[UncountedEntry]:
        """Yields the entries of *quota* on devices that neither HAMi nor Kubernetes counts as its author means."""
        for entry, text in quota.entries:
            kind, _, name = entry.partition(".")
            if kind not in ("limits", "requests"):
                kind, name = "", entry
            if kind == "requests" or name.partition("/")[0] not in self._domains:
                continue
            found = self._problem(kind, name, text)
            if found is not None:
                yield UncountedEntry(entry, *found)

    def _problem(self, kind: str, name: str, text: str) -> tuple[str, str] | None:
        """Returns what is wrong with an entry and what to do about it; ``None`` if it is counted."""
        if not kind:
            if name not in self._names:
                return None
            return "nobody counts a resource without a prefix", self._instead(name)
        if name not in self._units:
            if name not in self._names:
                return "nobody counts this resource", self._instead(name)
            return (
                "HAMi does not count this resource",
                f"write requests.{name}, which Kubernetes counts",
            )
        value = strict_integer(text)
        if value is None or value < 0:
            return f"{text} is no whole number", f"write a number in {self._units[name]}"
        if value > INT32_MAX and name not in self._with_units:
            return f"{text} is more than all devices have", f"write a number in {self._units[name]}"
        return None

    def _instead(self, name: str) -> str:
        if name in self._units:
            return f"write limits.{name}"
        near = nearest(name, sorted(self._units))
        if not near:
            near = next(iter(sorted(self._units)))
        return f"write limits.{near}"
