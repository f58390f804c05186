"""HAMi's own scheduler judges what ours writes, and ours reads what HAMi's writes.

Needs HAMi's program, which no workflow can fetch: ``testing.upstream``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from kubernetes.utils.quantity import parse_quantity

from e2e.test_admission_policies import generated_pod
from hami.codec.allocation import parse_shares
from testing.cases import cases
from testing.eventually import eventually
from testing.nodes import gpu, gpus
from testing.pods import RESOURCES, container, init, pod, sidecar
from testing.resizes import RESIZABLE, applied
from testing.sandbox import ALLOCATED
from testing.upstream import FOREIGN, UpstreamScheduler, admitted, holds, missing, review

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
CARD = 80_000


# -- resizes


@pytest.fixture
def card(sandbox):
    """One node with one card, on which pods can be resized."""
    sandbox.add_gpu_nodes({"n": [gpu(memory_mib=CARD, slots=12)]}, annotations=RESIZABLE)
    return sandbox


def resized(card, memory, cores):
    applied(card, "a", {"main": {"memory": f"{memory}Mi", "cores": cores}})


def fits(upstream, card, name, memory):
    """Reports whether a new pod of so much memory, which is deleted again, fits."""
    card.create(pod(name, gpu=1, gpumem=memory, gpucores=10, scheduler=FOREIGN))
    node = upstream.filter(card, name)
    card.delete(name)
    return node is not None


@cases("memory, cores", ("growth", 20_000, 40), ("shrink", 5000, 5))
def test_hamis_scheduler_counts_a_resized_pod_by_its_new_size(local, card, memory, cores):
    card.create(pod("a", gpu=1, gpumem=10_000, gpucores=10))
    card.started(1)
    resized(card, memory, cores)
    with UpstreamScheduler.started(local) as upstream:
        assert holds(upstream.page(), card.namespace) == {("a", card.uuid("n")): (memory, cores)}
        assert not fits(upstream, card, "too-large", CARD - memory + 1)
        assert fits(upstream, card, "rest", CARD - memory)


def test_hamis_scheduler_that_runs_goes_on_with_the_size_that_it_has_read(local, card, upstream):
    card.create(pod("a", gpu=1, gpumem=10_000, gpucores=10))
    card.started(1)
    key = ("a", card.uuid("n"))
    eventually(
        lambda: holds(upstream.page(), card.namespace) == {key: (10_000, 10)}, "it has seen the pod"
    )
    for memory, cores in ((20_000, 40), (5000, 5)):
        resized(card, memory, cores)
        # a later pod that it counts shows that it has seen the writes before
        card.create(pod(f"later-{memory}", gpu=1, gpumem=100, gpucores=1))
        card.bound()
        eventually(
            lambda: (f"later-{memory}", key[1]) in holds(upstream.page(), card.namespace),
            "it has seen both",
        )
        assert holds(upstream.page(), card.namespace)[key] == (10_000, 10)


@pytest.fixture(scope="module")
def upstream(local) -> Iterator[UpstreamScheduler]:
    """HAMi's scheduler, which runs for all tests of the module."""
    with UpstreamScheduler.started(local) as scheduler:
        yield scheduler


# -- the annotations of one, read by the other

ONE = {"gpu": 1, "gpumem": 3000, "gpucores": 30}
REQUESTS = {
    "all-memory": pod("", gpu=1),
    "two": pod("", gpu=2, gpumem=3000),
    "eight": pod("", gpu=8, gpumem=1000, gpucores=10),
    "one-mebibyte": pod("", gpu=1, gpumem=1),
    "percent": pod("", gpu=1, percent=33),
    "all-percent": pod("", gpu=1, percent=100),
    "percent-of-two": pod("", gpu=2, percent=50, gpucores=50),
    "memory-and-percent": pod("", gpu=1, gpumem=5000, percent=10),
    "memory-only": pod("", gpumem=3000),
    "cores-only": pod("", gpucores=20),
    "all-cores": pod("", gpu=1, gpumem=100, gpucores=100),
    "no-cores": pod("", gpu=1, gpumem=100, gpucores=0),
    "priority": pod("", **ONE, priority=1),
    "two-containers": pod(
        "", containers=[container("a", **ONE), container("b", gpu=2, gpumem=500, gpucores=5)]
    ),
    "use-type": pod("", **ONE, annotations={"nvidia.com/use-gputype": "A100"}),
    "no-use-type": pod("", **ONE, annotations={"nvidia.com/nouse-gputype": "V100,H100"}),
    "numa": pod("", gpu=2, gpumem=3000, annotations={"nvidia.com/numa-bind": "true"}),
    "binpack": pod(
        "",
        **ONE,
        annotations={
            "hami.io/gpu-scheduler-policy": "binpack",
            "hami.io/node-scheduler-policy": "binpack",
        },
    ),
    "spread": pod(
        "",
        **ONE,
        annotations={
            "hami.io/gpu-scheduler-policy": "spread",
            "hami.io/node-scheduler-policy": "spread",
        },
    ),
    "mode": pod("", **ONE, annotations={"nvidia.com/vgpu-mode": "hami-core"}),
    "init": pod("", containers=[container(**ONE)], inits=[init(gpu=1, gpumem=9000, gpucores=5)]),
    "between-plain": pod("", containers=[container("a"), container("b", **ONE), container("c")]),
    "init-plain": pod("", containers=[container(**ONE)], inits=[init()]),
    "sidecar": pod(
        "", containers=[container(**ONE)], inits=[sidecar(gpu=1, gpumem=2000, gpucores=20)]
    ),
    "sidecar-plain": pod("", containers=[container(**ONE)], inits=[sidecar()]),
}
LOST = {"between-plain", "init-plain", "sidecar-plain"}
"""HAMi's scheduler leaves out the entry of a container that requests nothing, so the next ones move up."""
DIFFERENT = {
    # by its position, HAMi takes the only entry for that of the init container, which has ended
    "init-plain": ([(3000, 30)], []),
    # HAMi counts the larger of sidecar and app, though they run at the same time; on separate devices, both
    "sidecar": ([(5000, 50)], [(3000, 30)]),
}
"""Pods that HAMi's scheduler has placed: what they hold by ours, which is right, and by HAMi's."""


def requesting(item, name, **spec):
    """Returns a pod that requests what *item* does."""
    return {
        **item,
        "metadata": {**item["metadata"], "name": name},
        "spec": {**item["spec"], **spec},
    }


def amounts(page, sandbox, name):
    """Returns what the pod holds of each device."""
    return sorted(
        amount for (holder, _), amount in holds(page, sandbox.namespace).items() if holder == name
    )


def decoded(sandbox, name):
    """Returns the shares in the annotation of the pod, by our codec, as ``holds`` does."""
    shares = parse_shares(ALLOCATED, sandbox.pod(name)["metadata"]["annotations"][ALLOCATED])
    return {
        (name, share.uuid): (share.memory_mib, share.cores) for share in itertools.chain(*shares)
    }


def admitted_spec(sandbox, name):
    """Returns containers of the pod as they were admitted: with the count that a webhook has added."""
    return {
        key: [
            {
                field: part[field]
                for field in ("name", "image", "resources", "restartPolicy")
                if field in part
            }
            for part in parts
        ]
        for key in ("initContainers", "containers")
        if (parts := sandbox.pod(name)["spec"].get(key))
    }


@pytest.mark.parametrize("row", REQUESTS)
def test_both_schedulers_count_what_either_has_placed(sandbox, scheduler, upstream, row):
    sandbox.add_gpu_nodes({"n": gpus(8, memory_mib=CARD)})
    sandbox.create(requesting(REQUESTS[row], "ours"))
    sandbox.started(1)
    sandbox.create(
        requesting(REQUESTS[row], "theirs", schedulerName=FOREIGN, **admitted_spec(sandbox, "ours"))
    )
    upstream.place(sandbox, "theirs")
    sandbox.started(2)

    def pages():
        return scheduler.metrics(), upstream.page()

    expected = DIFFERENT.get(row)
    eventually(
        lambda: (
            [amounts(page, sandbox, "theirs") for page in pages()] == list(expected)
            if expected
            else holds(pages()[0], sandbox.namespace) == holds(pages()[1], sandbox.namespace)
        ),
        lambda: (
            f"both count {expected or 'the same'}: {[holds(page, sandbox.namespace) for page in pages()]}"
        ),
    )
    ours, upstreams = (holds(page, sandbox.namespace) for page in pages())
    assert amounts(pages()[0], sandbox, "ours") == amounts(pages()[1], sandbox, "ours") != []
    if row not in ("init", *DIFFERENT):
        both = decoded(sandbox, "ours") | decoded(sandbox, "theirs")
        assert ours == upstreams == both
        assert amounts(pages()[0], sandbox, "ours") == amounts(pages()[0], sandbox, "theirs")
    if row in LOST:
        sandbox.delete("theirs")  # the auditor would object


def test_a_pod_goes_to_the_device_that_it_names(sandbox, scheduler, upstream):
    sandbox.add_gpu_nodes({"n": gpus(8, memory_mib=CARD)})
    uuid = sandbox.uuid("n", 3)
    notes = {"nvidia.com/use-gpuuuid": uuid}
    sandbox.create(
        pod("ours", **ONE, annotations=notes),
        pod("theirs", **ONE, annotations=notes, scheduler=FOREIGN),
    )
    sandbox.started(1)
    upstream.place(sandbox, "theirs")
    sandbox.started(2)
    both = {(name, uuid): (3000, 30) for name in ("ours", "theirs")}
    for page in (scheduler.metrics, upstream.page):
        eventually(lambda page=page: holds(page(), sandbox.namespace) == both, "it counts both")


# -- webhooks

PODS = 400
STRICTER = re.compile(
    r"is reserved for the device plugin|must be an integer|^annotation \S+=.*: expected |"
    r"^hami.io/vgpu-node is written by the HAMi scheduler alone",
    re.DOTALL,
)
"""Why ours refuses what HAMi's admits: variables that lift limits, amounts that HAMi's rounds or cuts, what others may
not write, and words in annotations that HAMi ignores, or takes for another policy than the default."""
CLAIMS = "hami-scheduler-claims"
ASKING = {name for key, name in RESOURCES.items() if key != "priority"}


def outcome(item):
    """Returns what a webhook may change: amounts as numbers; of variables with the same name the last, which counts."""
    if item is None:
        return None
    spec = item["spec"]
    parts = [*spec.get("initContainers", ()), *spec["containers"]]
    return {
        "schedulerName": spec.get("schedulerName"),
        "runtimeClassName": spec.get("runtimeClassName"),
        "env": [
            {
                variable["name"]: variable.get("valueFrom") or variable.get("value", "")
                for variable in part.get("env", ())
            }
            for part in parts
        ],
        "limits": [
            {
                name: parse_quantity(amount)
                for name, amount in part.get("resources", {}).get("limits", {}).items()
            }
            for part in parts
        ],
    }


def differs_by_intent(part):
    """Reports whether HAMi's webhook makes something else of a container, as docs/comparison.md says: it has a request
    without a limit, which becomes the limit, or amounts of 0 alone, which are no request."""
    resources = part.get("resources", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    amounts = {name: text for name, text in (requests | limits).items() if name in ASKING}
    if not amounts:
        return False
    return not amounts.keys() <= limits.keys() or not any(map(parse_quantity, amounts.values()))


def test_both_webhooks_make_the_same_of_each_pod(scheduler, upstream):
    different, refused, same = [], 0, 0
    for number in range(PODS):
        item = generated_pod(number)
        spec = item["spec"]
        if spec.get("schedulerName") == CLAIMS:
            continue  # HAMi has no such profile
        if any(map(differs_by_intent, (*spec.get("initContainers", ()), *spec["containers"]))):
            continue
        answer = scheduler.call("/webhook", review(item)).json()
        theirs, ours = outcome(upstream.admitted(item)), outcome(admitted(answer, item))
        if theirs == ours:
            same += 1
        elif ours is None and STRICTER.search(answer["response"]["status"]["message"]):
            refused += 1
        else:
            different.append((number, theirs, ours, answer["response"].get("status")))
    assert different == []
    assert same > PODS / 4, (same, refused)
    assert refused < PODS / 2, (same, refused)
