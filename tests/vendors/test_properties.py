"""Invariants of all vendors that share cards by amounts or count whole cards, by random examples.

What a card has to offer is written down once more here, from the reference, a line a vendor.
"""

import itertools
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import randoms

from hami.errors import MalformedInput
from hami.model import Device, DeviceUsage, Unfit
from hami.scheduling.fit import fit
from hami.scheduling.placement import place_pod
from hami.scheduling.pod_request import make_pod_request
from hami.scheduling.usage import peak_charges
from hami.state.binding_annotations import render_vendor_annotations
from hami.state.table import Table
from hami.vendors.spec import AnnotationContext, Catalog
from testing.builders import APP, INIT, SIDECAR, booking_of
from testing.vendor_chart import CHART
from testing.vendor_rows import NOW, Fits
from testing.vendor_rows import given as limits_of

POLICIES = ("spread", "binpack", "mutex", "topology-aware", "numa,binpack")


@dataclass(frozen=True)
class Plain:
    """A vendor's cards and the checks that they must pass; amounts in the units of its resources."""

    must: str
    slots: tuple = (1, 2, 5)
    memory_mib: tuple = (0,)
    cores: tuple = (100,)
    asked_memory: tuple = (None,)
    asked_cores: tuple = (None,)


SHARED = Plain(
    "health uuid slots mutex memory cores alone full",
    memory_mib=(1024, 2048, 2560),
    asked_memory=(None, 0, 1, 2, 4),
    asked_cores=(None, 0, 10, 50, 100, 120),
)
MIB = replace(SHARED, must=f"{SHARED.must} type", asked_memory=(None, 0, 300, 500, 1024))
PLAIN = {
    "DCU": MIB,
    "BI-V150": SHARED,
    "MLU": SHARED,
    "AMD": replace(
        MIB,
        must="health type uuid slots mutex memory units",
        cores=(0, 64, 304),
        asked_cores=(None, 1, 10, 50, 100),
    ),
    "Mthreads": replace(
        SHARED,
        must="health uuid slots mutex memory cores full",
        memory_mib=(8192, 49152),
        cores=(16,),
        asked_memory=(None, 2, 4, 16, 96),
        asked_cores=(None, 0, 1, 4, 16),
    ),
    "Biren": Plain("health uuid slots mutex", memory_mib=(2048,)),
    "Vastai": Plain("health uuid slots mutex", memory_mib=(2048,)),
    "GCU": Plain("health unused", slots=(1,), memory_mib=(100,)),
    "Metax-GPU": Plain(
        "health slots mutex memory cores alone full", slots=(1,), memory_mib=(65536,)
    ),
}
SGPU = Plain(
    "",
    memory_mib=(2048, 4096),
    asked_memory=(None, "512Mi", 1, 2, 4),
    asked_cores=(None, 0, 10, 50, 100),
)
UUIDS = {
    "hygon.com": "gpuuuid",
    "cambricon.com": "gpuuuid",
    "amd.com": "gpu-uuid",
    "mthreads.ai": "gpuuuid",
    "birentech.com": "gpuuuid",
    "vastaitech.com": "gpuuuid",
}
USE = tuple(f"{domain}/use-{word}" for domain, word in UUIDS.items()) + (
    "hami.io/use-BI-V150-uuid",
)
NOUSE = tuple(f"{domain}/nouse-{word}" for domain, word in UUIDS.items()) + (
    "hami.io/no-use-BI-V150-uuid",
)
TYPE, NOTYPE = (
    ("hygon.com/use-dcutype", "amd.com/use-gputype"),
    ("hygon.com/nouse-dcutype", "amd.com/nouse-gputype"),
)


def some_devices(rng, key, plain, most=5):
    return tuple(
        Device(
            uuid=f"c{place}",
            vendor=key,
            model=rng.choice(("K100", "K500")),
            index=place,
            slots=rng.choice(plain.slots),
            memory_mib=rng.choice(plain.memory_mib),
            cores=rng.choice(plain.cores),
            numa=rng.randrange(2),
            healthy=rng.random() < 0.9,
        )
        for place in range(rng.randint(1, most))
    )


def some_view(rng, device):
    """The device with some usage, sometimes all of it or more."""
    used = rng.choice((0, 0, 0, 1, device.slots))
    parts = (0, 0, 0, 0.1, 0.5, 1, 1.1)
    return DeviceUsage(
        device,
        used,
        int(device.memory_mib * rng.choice(parts)),
        int(device.cores * rng.choice(parts)),
    )


def some_annotations(rng):
    """Annotations that select devices, for all vendors at once."""
    wanted = {use: "c0, c1,c2" for use in USE} if rng.random() < 0.15 else {}
    wanted |= {nouse: "c1" for nouse in NOUSE} if rng.random() < 0.15 else {}
    wanted |= {type: "k100" for type in TYPE} if rng.random() < 0.15 else {}
    return wanted | ({type: "k100," for type in NOTYPE} if rng.random() < 0.1 else {})


def some_pod(rng, vendor, plain, kinds, annotations):
    """A pod that has passed admission, or ``None`` if it is refused there."""
    limits = [
        limits_of(
            vendor,
            rng.choice((1, 1, 2, 3)),
            rng.choice(plain.asked_memory),
            rng.choice(plain.asked_cores),
        )
        for _ in kinds
    ]
    limits = [{name: amount for name, amount in one.items() if name} for one in limits]
    try:
        return Fits(
            vendor=vendor,
            usages=[],
            outcome="",
            limits=limits,
            kinds=kinds,
            annotations=annotations,
        ).pod()
    except MalformedInput:
        return None


@pytest.mark.parametrize("key", PLAIN)
@given(rng=randoms(use_true_random=True))
def test_cards_are_found_exactly_if_some_choice_of_them_serves(key, rng):
    vendor, plain = CHART[key], PLAIN[key]
    usages = [some_view(rng, device) for device in some_devices(rng, key, plain)]
    annotations, policy = some_annotations(rng), rng.choice(POLICIES)
    pod = some_pod(rng, vendor, plain, (APP,), annotations)
    assume(pod is not None)
    asked = make_pod_request(pod, Catalog([vendor]), policy)
    assume(asked is not None)
    (request,) = asked.containers[0].requests
    found = fit(request, asked.fit_context(key, usages))
    exists = any(
        all(serves(usage, request, plain.must.split(), annotations, policy) for usage in choice)
        for choice in itertools.combinations(usages, request.count)
    )
    assert exists == (not isinstance(found, Unfit))
    if exists:
        chosen = [usage for usage in usages if usage.device.uuid in {share.uuid for share in found}]
        assert len(chosen) == len(found) == request.count
        assert all(
            serves(usage, request, plain.must.split(), annotations, policy) for usage in chosen
        )


def serves(usage, request, must, annotations, policy):
    """Reports whether *request* may have a part of the card."""
    device, cores = usage.device, min(request.cores, 100)
    memory = request.memory_mib or device.memory_mib * (request.memory_percent or 0) // 100
    free_mib, free_cores = (
        device.memory_mib - usage.memory_used_mib,
        device.cores - usage.cores_used,
    )
    units = (
        max(device.cores * cores // 100, 1)
        if cores
        else device.cores * (memory >= device.memory_mib)
    )
    wants, shuns = (
        {key: value for key, value in annotations.items() if key in keys}
        for keys in ((*USE, *TYPE), (*NOUSE, *NOTYPE))
    )
    passes = {
        "health": device.healthy,
        "type": (not wants.keys() & set(TYPE) or device.model == "K100")
        and (not shuns.keys() & set(NOTYPE) or device.model != "K100"),
        "uuid": (not wants.keys() & set(USE) or device.uuid in ("c0", "c1", "c2"))
        and (not shuns.keys() & set(NOUSE) or device.uuid != "c1"),
        "slots": usage.slots_used < device.slots,
        "unused": usage.slots_used == 0,
        "mutex": policy != "mutex" or usage.slots_used == 0,
        "memory": memory <= free_mib,
        "cores": cores <= free_cores,
        "alone": not (device.cores == cores == 100 and usage.slots_used),
        "full": not (cores == 0 != device.cores == usage.cores_used),
        "units": units <= free_cores and (cores == 0 or device.cores > 0),
    }
    return all(passes[name] for name in must)


@pytest.mark.parametrize("key", [*PLAIN, "Metax-SGPU"])
@settings(max_examples=25)
@given(rng=randoms(use_true_random=True))
def test_no_card_is_ever_given_beyond_what_it_has_and_what_is_written_says_so(key, rng):
    for index in walk(key, rng):
        assert not [usage for usage in index.usages("n")[key] if is_overcommitted(usage)]


@pytest.mark.parametrize("key", [*PLAIN, "Metax-SGPU"])
def test_the_walks_lead_somewhere(key):
    assert sum(1 for seed in range(10) for _ in walk(key, random.Random(f"{key}-{seed}"))) > 50


def walk(key, rng):
    """Adds and removes pods on one node; yields the index after each addition. Bookings come from annotations."""
    vendor, plain = CHART[key], PLAIN.get(key, SGPU)
    index = Table()
    index.set_devices("n", key, some_devices(rng, key, plain, most=8))
    for number in range(50):
        annotations = some_annotations(rng) | some_classes(rng)
        kinds = tuple(rng.choices((APP, INIT, SIDECAR), (4, 1, 1), k=rng.choice((1, 1, 2, 3))))
        pod = some_pod(rng, vendor, plain, kinds, annotations)
        if (
            pod is None
            or (asked := make_pod_request(pod, Catalog([vendor]), rng.choice(POLICIES))) is None
        ):
            continue
        index.bookings.pop(f"uid-{number - rng.randint(3, 9)}")
        found = place_pod(index.usages("n"), asked)
        if not isinstance(found, Unfit):
            index.bookings.put(
                bound(
                    replace(pod, ref=replace(pod.ref, uid=f"uid-{number}")),
                    vendor,
                    asked,
                    found,
                    index,
                )
            )
            yield index


def some_classes(rng):
    """The application class and the quality of an sGPU pod."""
    classes = (
        {"metax-tech.com/sgpu-app-class": rng.choice(("online", "offline"))}
        if rng.random() < 0.5
        else {}
    )
    quality = rng.choice(("best-effort", "fixed-share", "burst-share"))
    return classes | ({"metax-tech.com/sgpu-qos-policy": quality} if rng.random() < 0.7 else {})


def bound(pod, vendor, asked, found, index):
    """The booking read from the annotations, which contain the whole decision."""
    devices = {usage.device.uuid: usage.device for usage in index.usages("n")[vendor.key]}
    context = AnnotationContext(pod=pod, node="n", shares=found, devices=devices, now=NOW)
    texts = render_vendor_annotations(vendor, context)
    pod = replace(pod, annotations={**pod.annotations, **texts})
    booking, problems = booking_of(pod, "n", Catalog([vendor]), index.usages)
    assert (booking.charges, problems) == (((vendor.key, peak_charges(asked.kinds, found)),), ())
    return booking


def is_overcommitted(usage):
    """Reports whether the card is overcommitted, or shared by pods that must not share it."""
    device, words = usage.device, [set(tag.split()) for tag in usage.co_tenants]
    of_class = {bool(one & {"online", "offline"}) for one in words}
    qualities = {word for one in words for word in one} - {"online", "offline"}
    return (
        usage.slots_used > device.slots
        or usage.memory_used_mib > device.memory_mib
        or usage.cores_used > device.cores
        or len(of_class) > 1
        or len(qualities) > 1
    )
