"""Which MIG profiles may be cut on a card, and what they are called: the words of the device configuration, everywhere.

The driver's word for a size and the configuration's may differ a little (``7g.80gb``, ``7g.79gb``): annotations carry
the configuration's, and whoever deals with the driver translates.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin (mig), pkg/device/nvidia/device.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hami.codec.device_config import MigAllowance
from hami.model import MigProfile

__all__ = ["allowed_profiles", "allowed_words", "most_instances"]


def allowed_profiles(model: str, offered: Sequence[MigProfile],
                     allowlist: Sequence[MigAllowance]) -> Mapping[str, MigProfile]:
    """What *allowlist* allows of what the card offers: by the driver's name, with the list's name in it."""
    profiles = {one.name: one for one in reversed(offered)}
    words = allowed_words(model, [one.name for one in offered], allowlist)
    return {name: replace(profiles[name], name=word) for name, word in words.items()}


def allowed_words(model: str, offered: Sequence[str], allowlist: Sequence[MigAllowance]) -> Mapping[str, str]:
    """What the first entry of *allowlist* that knows *model* allows: its word, by the driver's name of the profile.

    A word means the profile of that name, else the first *offered* with as many slices (``7g.``).
    """
    words = next((entry.profiles for entry in allowlist if any(part in model for part in entry.models)), ())
    found: dict[str, str] = {}
    for word in words:
        name = word if word in offered else next((one for one in offered if _slices(one) == _slices(word)), None)
        if name is not None:
            found.setdefault(name, word)
    return found


def most_instances(profiles: Sequence[MigProfile]) -> int:
    """How many instances a card can have at once, at most: those of one profile that do not overlap."""
    return max((_disjoint(profile) for profile in profiles), default=0)


def _slices(name: str) -> str:
    return name.partition(".")[0]


def _disjoint(profile: MigProfile) -> int:
    count, end = 0, 0
    for place in sorted(profile.placements, key=lambda place: place.start + place.size):
        if place.start >= end:
            count, end = count + 1, place.start + place.size
    return count
