"""The MIG profiles that may be created on a card, under the names of the device configuration.

The driver's and the configuration's name of a profile may differ slightly (``7g.80gb``, ``7g.79gb``). Annotations carry
the configuration's names; `nvml_mig` translates them for the driver.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin (mig), pkg/device/nvidia/device.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hami.codec.device_config import MigAllowance
from hami.model import MigProfile


def allowed_profiles(
    model: str, offered: Sequence[MigProfile], allowlist: Sequence[MigAllowance]
) -> Mapping[str, MigProfile]:
    """Returns the *offered* profiles that *allowlist* allows, keyed by the driver's name and named as in the list."""
    profiles = {profile.name: profile for profile in reversed(offered)}
    names = allowed_names(model, [profile.name for profile in offered], allowlist)
    return {name: replace(profiles[name], name=allowed) for name, allowed in names.items()}


def allowed_names(
    model: str, offered: Sequence[str], allowlist: Sequence[MigAllowance]
) -> Mapping[str, str]:
    """Returns the names in the first entry of *allowlist* that matches *model*, keyed by the driver's name.

    A name selects the profile of that name, or else the first *offered* one with as many slices (``7g.``).
    """
    names: dict[str, str] = {}
    for name in _allowed(model, allowlist):
        match = _match(name, offered)
        if match is not None:
            names.setdefault(match, name)
    return names


def _allowed(model: str, allowlist: Sequence[MigAllowance]) -> Sequence[str]:
    for entry in allowlist:
        if any(part in model for part in entry.models):
            return entry.profiles
    return ()


def _match(name: str, offered: Sequence[str]) -> str | None:
    if name in offered:
        return name
    for offer in offered:
        if _slices(offer) == _slices(name):
            return offer
    return None


def _slices(name: str) -> str:
    return name.partition(".")[0]
