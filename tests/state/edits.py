"""Random edits of HAMi's keys on pods, as a tenant who may annotate its pods could make them."""

import random
import re

from hami.codec.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, MIG_ALLOCATIONS
from testing.vendor_chart import CHART

KEYS = sorted(
    {ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, MIG_ALLOCATIONS}
    | {
        key
        for keys in (vendor.annotations for vendor in CHART)
        for key in (keys.allocated, keys.to_allocate, *keys.extra_keys, *keys.pod_keys)
        if key
    }
)
WORDS = (
    "",
    ";",
    ":",
    ",",
    "x",
    "[1-0]",
    "[]",
    "online",
    "fixed-share",
    "failed",
    "allocating",
    "4102444800",
    "-1",
)


def edited(rng: random.Random, annotations: dict, uuids: list) -> dict:
    """Returns *annotations* after up to three edits. *uuids*: devices that the tenant knows of."""
    changed = dict(annotations)
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(sorted(changed)) if changed and rng.random() < 0.7 else rng.choice(KEYS)
        text = rng.choice((_removed, _replaced, _other_devices, _other_amounts, _garbled))(
            rng, changed.get(key, ""), uuids
        )
        if text is None:
            changed.pop(key, None)
        else:
            changed[key] = text
    return changed


def _removed(rng, text, uuids):
    return None


def _replaced(rng, text, uuids):
    every = (
        "".join(
            f"{uuid},NVIDIA,{rng.choice((1, 80_000))},{rng.choice((0, 100))}:" for uuid in uuids
        )
        + ";"
    )
    return rng.choice((every, ";" + every, " ".join(uuids), rng.choice(WORDS), "x" * 50_000))


def _other_devices(rng, text, uuids):
    return re.sub(
        "|".join(map(re.escape, uuids)),
        lambda found: rng.choice(uuids) + rng.choice(("", "[1-0]")),
        text,
    )


def _other_amounts(rng, text, uuids):
    return re.sub(
        r"(?<=[,:])\d+", lambda found: str(rng.choice((0, 1, int(found[0]) * 2, 2**31, -5))), text
    )


def _garbled(rng, text, uuids):
    start = rng.randint(0, len(text))
    return text[:start] + rng.choice((*WORDS, *uuids)) + text[start + rng.randint(0, 20) :]
