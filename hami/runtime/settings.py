"""Reads what all programs have in their settings: flags over environment variables, and the device configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from hami.codec.device_config import DeviceConfig, Fallback, chart_config, parse_device_config
from hami.errors import HamiError
from hami.runtime.options import Groups, parse_named, read_text


def gather(groups: Groups, given: Mapping[str, object], environ: Mapping[str, str],
           parsers: Mapping[str, Callable[[str], object]] = MappingProxyType({})) -> dict[str, object]:
    """The values of flags (*given*) and, below them, of environment variables, by field. Empty variables count as
    missing.

    *parsers*: for fields whose variable is read in another way than the flag. Raises: MalformedInput, which names the
    variable.
    """
    values: dict[str, object] = {}
    for flag in (flag for _, flags in groups for flag in flags):
        if name := next((name for name in flag.environment if environ.get(name)), ""):
            parse = parsers.get(flag.parameter, flag.type.parse)
            values[flag.parameter] = parse_named(environ[name], parse, f"environment variable {name}")
    return {**values, **given}


def load_device_config(flag: str, path: str, *, fallback: Fallback = MappingProxyType({}),
                       known: Collection[str] = ("flags", "imex")) -> DeviceConfig:
    """The device configuration at *path*, which *flag* names; without a path, the chart's.

    *fallback*: values of flags, for keys that it lacks. *known*: sections that others read; the default ones are those
    that NVIDIA's device plugin defines. Raises: HamiError.
    """
    return parse_device_config(read_text(flag, path), path, fallback=fallback, known=known) if path \
        else chart_config(fallback)


def require_node_name(name: object) -> None:
    """Raises HamiError without the *name* of the node."""
    if not name:
        raise HamiError("the node's name is missing: give --node-name, or NODE_NAME in the environment")
