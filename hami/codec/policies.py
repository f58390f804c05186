"""Policies, weights and device lists in pod annotations and flags."""

from __future__ import annotations

from collections.abc import Sequence

from hami.codec.keys import WEIGHTS
from hami.errors import MalformedInput
from hami.model import DevicePolicy, NodePolicy, OrderKey, Weights
from hami.quantity import parse_integer

NODE_POLICIES = tuple(policy.value for policy in NodePolicy)
DEVICE_POLICIES = ("binpack", "spread", "numa", "mutex", "topology-aware")
_CHAIN = {"binpack": OrderKey.SCORE, "spread": OrderKey.SCORE_DESCENDING, "numa": OrderKey.NUMA}


def parse_node_policy(text: str) -> NodePolicy:
    """The node policy *text*; BINPACK for an unknown word."""
    return NodePolicy(text) if text in NODE_POLICIES else NodePolicy.BINPACK


def parse_device_policy(text: str, *, numa_bind: bool = False) -> DevicePolicy:
    """The device policy *text*: one word, or several separated by commas.

    An unknown word counts as ``spread``; in a list it is ignored.
    Source: HAMi v2.10, pkg/scheduler/policy/gpu_policy.go, Less.
    """
    tokens = tuple(dict.fromkeys(token.strip() for token in text.split(",")))
    if text == "numa" or "," in text:
        order = _chain(tokens, numa_bind)
    else:
        order = _single(text, numa_bind)
    return DevicePolicy(
        order,
        mutex="mutex" in tokens,
        topology_aware="topology-aware" in tokens,
        numa_bind=numa_bind,
    )


def parse_weights(text: str) -> Weights:
    """Weights such as ``slot=1,core=1,memory=3``: all three, in any order.

    Raises: MalformedInput in upstream's words.
    Source: HAMi v2.10, pkg/util/device_scoring_weights.go.
    """
    parts = text.split(",")
    if len(parts) != 3:
        raise _bad_weights(text, "expected slot, core, and memory weights")
    weights: dict[str, int] = {}
    for part in parts:
        key, separator, value = (piece.strip() for piece in part.partition("="))
        if not separator:
            raise _bad_weights(text, "expected key=value entries")
        if key in weights:
            raise _bad_weights(text, f'duplicate "{key}" weight')
        if (weight := parse_integer(value, bits=64)) is None:
            raise _bad_weights(text, f'"{key}" weight must be an integer')
        if weight < 0:
            raise _bad_weights(text, f'"{key}" weight must not be negative')
        if key not in Weights.__slots__:
            raise _bad_weights(text, f'unknown weight "{key}"')
        weights[key] = weight
    if not any(weights.values()):
        raise _bad_weights(text, "at least one weight must be positive")
    return Weights(**weights)


def parse_list(text: str | None) -> tuple[str, ...] | None:
    """The items of a comma-separated list, trimmed and without empty ones; ``None`` for an absent or blank text."""
    if text is None or not text.strip():
        return None
    return tuple(filter(None, map(str.strip, text.split(","))))


def _single(policy: str, numa_bind: bool) -> tuple[OrderKey, ...]:
    if policy == "mutex":
        return (OrderKey.USED_DESCENDING, OrderKey.NUMA)
    if policy == "binpack":
        if numa_bind:
            return (OrderKey.NUMA_DESCENDING, OrderKey.SCORE)
        return (OrderKey.SCORE, OrderKey.NUMA)
    if numa_bind:
        return (OrderKey.NUMA, OrderKey.SCORE_DESCENDING)
    return (OrderKey.SCORE_DESCENDING, OrderKey.NUMA)


def _chain(tokens: Sequence[str], numa_bind: bool) -> tuple[OrderKey, ...]:
    keys = [_CHAIN[token] for token in tokens if token in _CHAIN]
    if not keys:
        keys = [OrderKey.SCORE_DESCENDING]
    if numa_bind:
        keys = list(dict.fromkeys((OrderKey.NUMA, *keys)))
    return (*keys, OrderKey.INDEX)


def _bad_weights(text: str, problem: str) -> MalformedInput:
    return MalformedInput(
        WEIGHTS, text, problem, message=f'invalid {WEIGHTS} annotation "{text}": {problem}'
    )
