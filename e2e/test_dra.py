"""Claims for cards: the stock kube-scheduler allocates them from ResourceSlices. No program of HAMi runs here; slices
and claims are rendered and read by `hami.codec`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from hami.codec.claim_spec import Inexpressible, render_claim_spec
from hami.codec.claims import AllocatedClaim, CorePolicy, parse_claim
from hami.codec.documents import parse_own_yaml
from hami.codec.slices import (
    DRIVER,
    device_name,
    is_instance,
    is_published,
    parse_slice,
    pool_name,
    render_slices,
)
from hami.errors import MalformedInput
from hami.inspect.claims import NOT_JUDGED
from hami.model import Device, Request, Selector
from hami.quantity import MIB, parse_quantity
from testing.accounts import (
    CLAIM_CONTROLLER,
    account,
    binding,
    is_refused,
    may,
    refusal,
    wait_permitted,
)
from testing.cards import A100_PROFILES
from testing.cases import cases
from testing.claims import FIRST, claiming, component, missing, template
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import eventually
from testing.kube import Kube, path_of
from testing.people import DEVICE_CONFIG, hami
from testing.pods import container, pod
from testing.sandbox import Sandbox
from testing.yaml_text import read_documents

Object = dict[str, Any]
pytestmark = pytest.mark.since(*FIRST)
FILES = [MANIFESTS / f"{name}.yaml" for name in ("device-plugin-rbac", "policy-roles")]
EXAMPLES = re.findall(
    r"^```yaml\n(.*?)^```$", (MANIFESTS.parents[1] / "docs" / "dra.md").read_text(), re.M | re.S
)
SYSTEM, PLUGIN = "kube-system", "hami-device-plugin"
A100, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA-Tesla T4"
ANY_CARD = Selector()
WAITS = "cannot allocate all claims"
PRIORITY = "CUDA_TASK_PRIORITY"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane without HAMi, with kube-scheduler's own profile, and with the objects of the component."""

    def with_default(config: Object) -> None:
        config["profiles"] = [{"schedulerName": "default-scheduler"}]

    if reason := missing():
        pytest.skip(reason)
    with LocalCluster.started(adjust=with_default, extender=False, durable=False) as started:
        for file in FILES:
            started.kube.apply_yaml(file.read_text())
        for item in component():
            started.kube.apply(item)
        wait_enforced(started.kube)
        yield started
        started.kube.close()


def wait_enforced(kube: Kube) -> None:
    """Waits until the API server applies the policies, which it loads a moment after they are created."""
    kube.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "editor"},
            "subjects": [
                {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "editor"}
            ],
            "roleRef": {
                "kind": "ClusterRole",
                "apiGroup": "rbac.authorization.k8s.io",
                "name": "edit",
            },
        }
    )
    (own,) = render_slices("n0", [card()])
    claim = template(
        "c",
        {
            "devices": {
                "requests": [
                    {
                        "name": "main",
                        "exactly": {
                            "deviceClassName": DRIVER,
                            "tolerations": [{"operator": "Exists"}],
                        },
                    }
                ]
            }
        },
    )
    waits = urgent(resourceClaims=[{"name": "hami", "resourceClaimTemplateName": "c"}])
    for user, group, item in (
        (f"system:serviceaccount:{SYSTEM}:{PLUGIN}", "system:masters", own),
        ("editor", "system:authenticated", claim),
        ("editor", "system:authenticated", waits),
    ):
        client = kube.impersonating(user, group)
        eventually(partial(is_refused, client.dry_run, item, "default"), "the policy applies")
        client.close()


@pytest.fixture
def sandbox(cluster: LocalCluster) -> Iterator[Sandbox]:
    with Sandbox.opened(cluster.kube, keeps_namespace=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def audited(sandbox: Sandbox) -> Iterator[None]:
    """Checks after each test that no card has given more than it has."""
    yield
    limits = {
        (item["spec"]["pool"]["name"], card["name"]): card["capacity"]
        for item in slices(sandbox)
        for card in item["spec"].get("devices", ())
        if "consumesCounters" not in card
    }
    used: dict[tuple[str, str], Counter[str]] = {}
    for claim in claims(sandbox):
        for device in (device for request in claim.requests for device in request.devices):
            used.setdefault((device.pool, device.device), Counter()).update(
                memory=device.memory_mib * MIB, cores=device.cores, share=device.share_milli
            )
    for card, amounts in (
        (card, amounts) for card, amounts in used.items() if not is_instance(card[1])
    ):
        most = {name: parse_quantity(capacity["value"]) for name, capacity in limits[card].items()}
        assert amounts["memory"] <= most["memory"], card
        assert amounts["cores"] <= most["cores"], card
        assert amounts["share"] <= 1000 * most["share"], card
    consumed = Counter(
        (item["spec"]["pool"]["name"], part["counterSet"], counter)
        for item in slices(sandbox)
        for device in item["spec"].get("devices", ())
        if (item["spec"]["pool"]["name"], device["name"]) in used
        for part in device.get("consumesCounters", ())
        for counter in part["counters"]
    )
    assert all(number == 1 for number in consumed.values()), consumed


def card(index: int = 0, **fields: Any) -> Device:
    """A card, by default an A100 of ten slots."""
    return Device(
        **{
            "uuid": f"GPU-{index}",
            "vendor": "NVIDIA",
            "model": A100,
            "slots": 10,
            "memory_mib": 81_920,
            "index": index,
        }
        | fields
    )


def ask(count: int = 1, **fields: Any) -> Request:
    """What a container requests, by default 1000 MiB."""
    amounts = fields if "memory_percent" in fields else {"memory_mib": 1000} | fields
    return Request(vendor="NVIDIA", count=count, **amounts)


def publish(sandbox: Sandbox, **nodes: list[Device]) -> None:
    """Adds nodes with these cards."""
    sandbox.add_gpu_nodes({name: () for name in nodes})
    for name, cards in nodes.items():
        found = sandbox.node(name)["metadata"]
        for item in render_slices(found["name"], cards, node_uid=found["uid"]):
            sandbox.kube.create(item)


def slices(sandbox: Sandbox) -> list[Object]:
    """The slices of the sandbox's nodes as the API server has them."""
    return [
        item
        for item in sandbox.kube.list("ResourceSlice")
        if item["spec"]["nodeName"].startswith(f"{sandbox.namespace}-")
    ]


def create(
    sandbox: Sandbox,
    name: str,
    requests: Mapping[str, Request] | Request,
    selector: Selector = ANY_CARD,
    *,
    numa_bind: bool = False,
    config: list[Object] | None = None,
) -> None:
    """Creates a pod with a container for each request, and the template of its claim."""
    requests = {"main": requests} if isinstance(requests, Request) else requests
    published = [
        part
        for item in slices(sandbox)
        if (part := parse_slice(json.dumps(item).encode())) is not None
    ]
    sizes = {card.memory_mib for part in published for card in part.devices}
    spec = render_claim_spec(requests, selector, sizes, numa_bind=numa_bind)
    if config:
        spec["devices"]["config"] = config
    sandbox.kube.create(template(name, spec), sandbox.namespace)
    sandbox.create(
        claiming(pod(name, containers=[container(request) for request in requests]), name)
    )


def claims(sandbox: Sandbox) -> list[AllocatedClaim]:
    """The claims of the sandbox, as the codec reads them."""
    return [
        parse_claim(json.dumps(item).encode())
        for item in sandbox.kube.list("ResourceClaim", sandbox.namespace)
    ]


def claim_of(sandbox: Sandbox, name: str) -> AllocatedClaim:
    """The claim of a pod. It names the pod by its uid."""
    found = sandbox.pod(name)
    (claim,) = [claim for claim in claims(sandbox) if name in [pod.name for pod in claim.pods]]
    assert [pod.uid for pod in claim.pods] == [found["metadata"]["uid"]]
    assert {device.pool for request in claim.requests for device in request.devices} == {
        pool_name(found["spec"]["nodeName"])
    }
    return claim


def place(sandbox: Sandbox, name: str, *args: Any, **more: Any) -> list[str]:
    """Creates a pod, waits until it is bound, and returns its cards, ``node/index`` in the order of its claim."""
    create(sandbox, name, *args, **more)
    bound(sandbox, name)
    node = sandbox.short(sandbox.pod(name)["spec"]["nodeName"])
    return [
        f"{node}/{device.device.removeprefix('gpu-')}"
        for request in claim_of(sandbox, name).requests
        for device in request.devices
    ]


def bound(sandbox: Sandbox, name: str) -> None:
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods[name]["spec"].get("nodeName"),
        sandbox.namespace,
        what=f"{name} is bound",
    )


def wait_refused(sandbox: Sandbox, name: str) -> None:
    """Waits until kube-scheduler has said that no node has what the pod asks."""
    sandbox.event(name, "FailedScheduling", WAITS)
    assert not sandbox.pod(name)["spec"].get("nodeName")


def said(cluster: LocalCluster, sandbox: Sandbox, *words: str) -> Any:
    """Returns what a command for people prints as JSON; it says nothing else."""
    options = "-n", sandbox.namespace, "-o", "json", "--device-config-file", DEVICE_CONFIG
    answer = hami(cluster.kubeconfig, *words, *options)
    assert not answer.errors
    return answer.document


# -- slices


def test_the_api_server_keeps_slices_as_they_are_rendered(sandbox):
    """Else the device plugin would write them again and again. The server adds the time to taints."""
    cards = [
        card(0, slots=1, memory_mib=2),
        card(1, slots=15, memory_mib=81_921, cores=250),
        card(2, cores=0),
        card(3, model="é" * 50, numa=7, slots=316),
        card(4, cordoned=True, healthy=False),
        card(5, mode="mps"),
        card(6, memory_mib=2**31 - 1, slots=2**31 - 1),
    ]
    publish(sandbox, n0=cards)
    name = sandbox.node("n0")["metadata"]["name"]
    (found,) = slices(sandbox)
    (wanted,) = render_slices(name, cards, pci_bus_ids={"GPU-5": "0000:3b:00.0"}, generation=2)
    assert [taint["timeAdded"] for taint in found["spec"]["devices"][4]["taints"]]
    assert is_published(found, render_slices(name, cards)[0])
    assert not is_published(found, wanted)
    assert [len(item["spec"]["devices"]) for item in slices(sandbox)] == [7]
    changed = found | {"spec": wanted["spec"]}
    assert is_published(
        sandbox.kube.call(
            "PUT", path_of("ResourceSlice", None, found["metadata"]["name"]), changed
        ),
        wanted,
    )


def test_a_pool_may_have_several_slices_which_leave_with_their_node(sandbox):
    publish(sandbox, n0=[card(index, cordoned=index < 64) for index in range(65)])
    assert len(slices(sandbox)) == 2
    assert place(sandbox, "last", ask()) == ["n0/64"]
    sandbox.delete("last")
    sandbox.kube.wait(
        "ResourceClaim", lambda found: not found, sandbox.namespace, what="its claim is gone"
    )
    sandbox.remove_node("n0")
    eventually(lambda: not slices(sandbox), "they are gone")


@cases("number", ("one card", 1), ("more sets of counters than a slice may have", 9))
def test_the_api_server_keeps_slices_of_cards_in_mig_mode(sandbox, number):
    cards = [divided(index, cordoned=index == 0) for index in range(number)]
    publish(sandbox, n0=cards)
    found = {item["metadata"]["name"]: item for item in slices(sandbox)}
    wanted = render_slices(sandbox.node("n0")["metadata"]["name"], cards)
    assert len(found) == len(wanted)
    assert all(is_published(found[item["metadata"]["name"]], item) for item in wanted)
    assert sum(len(item["spec"].get("devices", ())) for item in found.values()) == 18 * number


def test_a_slice_may_have_cards_at_first_and_counters_later(sandbox):
    """As when the mode of a node is changed."""
    publish(sandbox, n0=[card(0)])
    (found,) = slices(sandbox)
    for cards, generation in (([divided()], 2), ([card(0)], 3)):
        wanted = render_slices(found["spec"]["nodeName"], cards, generation=generation)[0]
        found = sandbox.kube.call(
            "PUT",
            path_of("ResourceSlice", None, found["metadata"]["name"]),
            found | {"spec": wanted["spec"]},
        )
        assert is_published(found, wanted)


# -- claims


@pytest.mark.parametrize("slots", [1, 3, 10, 15])
def test_a_card_has_as_many_tenants_as_slots(sandbox, slots):
    publish(sandbox, n0=[card(slots=slots)])
    for number in range(slots):
        assert place(sandbox, f"p{number}", ask(cores=1)) == ["n0/0"]
    create(sandbox, "waits", ask(cores=1))
    wait_refused(sandbox, "waits")
    assert {
        device.cores
        for number in range(slots)
        for device in claim_of(sandbox, f"p{number}").requests[0].devices
    } == {1}


def test_a_request_for_all_cores_passes_a_used_card_by_and_keeps_others_away(sandbox):
    publish(sandbox, n0=[card(0), card(1)])
    assert place(sandbox, "first", ask()) == ["n0/0"]
    assert place(sandbox, "alone", ask(cores=100)) == ["n0/1"]
    assert place(sandbox, "second", ask()) == ["n0/0"]
    create(sandbox, "waits", ask(cores=100))
    wait_refused(sandbox, "waits")


def test_memory_and_cores_are_limits(sandbox):
    publish(sandbox, n0=[card(0), card(1)])
    assert place(sandbox, "a", ask(memory_mib=50_000, cores=60)) == ["n0/0"]
    assert place(sandbox, "memory", ask(memory_mib=50_000)) == ["n0/1"]
    assert place(sandbox, "cores", ask(cores=60)) == ["n0/1"]
    assert place(sandbox, "b", ask(memory_mib=31_920, cores=40)) == ["n0/0"]
    (device,) = claim_of(sandbox, "b").requests[0].devices
    assert (device.memory_mib, device.cores, device.share_milli) == (31_920, 40, 10_000)
    assert device.share_id
    create(sandbox, "whole", ask(memory_percent=100))
    wait_refused(sandbox, "whole")


def test_a_percentage_is_of_the_memory_of_the_card(sandbox):
    publish(sandbox, a=[card()], t=[card(model=T4, memory_mib=15_360, slots=4)])
    half = ask(memory_percent=50)
    assert [place(sandbox, f"p{number}", half) for number in range(4)] == [
        ["a/0"],
        ["a/0"],
        ["t/0"],
        ["t/0"],
    ]
    create(sandbox, "p4", half)
    wait_refused(sandbox, "p4")
    assert [claim_of(sandbox, name).requests[0].devices[0].memory_mib for name in ("p0", "p2")] == [
        40_960,
        7_680,
    ]
    assert {request.name for claim in claims(sandbox) for request in claim.requests} == {"main"}


def test_the_cards_of_a_container_differ_and_may_be_bound_to_one_numa_node(sandbox):
    publish(sandbox, n0=[card(index, numa=index // 2) for index in range(4)])
    assert place(sandbox, "alone", ask(cores=100)) == ["n0/0"]
    assert place(sandbox, "two", ask(2, memory_mib=2000)) == ["n0/1", "n0/2"]
    assert place(sandbox, "near", ask(2), numa_bind=True) == ["n0/2", "n0/3"]
    create(sandbox, "waits", ask(3), numa_bind=True)
    wait_refused(sandbox, "waits")


def test_containers_have_requests_of_their_own(sandbox):
    """They may be on one card."""
    publish(sandbox, n0=[card()])
    assert place(sandbox, "both", {"one": ask(), "two": ask(memory_mib=2000, cores=20)}) == [
        "n0/0",
        "n0/0",
    ]
    one, two = claim_of(sandbox, "both").requests
    assert [(one.name, one.devices[0].memory_mib), (two.name, two.devices[0].memory_mib)] == [
        ("one", 1000),
        ("two", 2000),
    ]
    assert one.devices[0].share_id != two.devices[0].share_id


def test_cordoned_and_unhealthy_cards_get_no_claims(sandbox):
    cards = [card(0), card(1), card(2)]
    publish(sandbox, n0=[card(0, cordoned=True), card(1, healthy=False), card(2)])
    assert place(sandbox, "alone", ask(cores=100)) == ["n0/2"]
    create(sandbox, "waits", ask())
    wait_refused(sandbox, "waits")
    (found,) = slices(sandbox)
    (wanted,) = render_slices(found["spec"]["nodeName"], cards, generation=2)
    path = path_of("ResourceSlice", None, found["metadata"]["name"])
    sandbox.kube.call("PUT", path, found | {"spec": wanted["spec"]})
    bound(sandbox, "waits")
    assert claim_of(sandbox, "waits").requests[0].devices[0].device == "gpu-0"


@cases(
    "selector, index",
    ("one-of-several-types", Selector(use_types=("V100", "t4")), 1),
    ("not-a-type", Selector(nouse_types=("a100",)), 1),
    ("uuid", Selector(use_uuids=("GPU-1",)), 1),
    ("not-a-uuid", Selector(nouse_uuids=("GPU-0",)), 1),
    ("mode", Selector(mode="mig,hami-core"), 0),
    ("characters", Selector(nouse_types=('"', "\\", "'\n\t\x01", "é😀", "{{")), 0),
    (
        "the-longest-lists",
        Selector(
            use_types=("A100", *("x" * 64 for _ in range(63))),
            nouse_types=("y" * 64,) * 64,
            use_uuids=("GPU-0", *("z" * 64 for _ in range(63))),
            nouse_uuids=("z" * 64,) * 64,
        ),
        0,
    ),
)
def test_cards_are_selected(sandbox, selector, index):
    publish(sandbox, n0=[card(0), card(1, model=T4)])
    assert place(sandbox, "p", ask(), selector) == [f"n0/{index}"]


# -- MIG instances


def divided(index: int = 0, **fields: Any) -> Device:
    """A card in MIG mode, an A100 of 80 GB."""
    uuid = f"GPU-5A1C0D1E-0000-4000-8000-{index:012}"
    return card(index, uuid=uuid, mode="mig", mig_profiles=A100_PROFILES, **fields)


def instance(profile: str = "", **fields: Any) -> Object:
    """A request for an instance, as users write it."""
    selectors = (
        [{"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{profile}'"}}]
        if profile
        else []
    )
    return {
        "name": "main",
        "exactly": {"deviceClassName": "mig.hami.io", "selectors": selectors, **fields},
    }


def take(sandbox: Sandbox, name: str, *requests: Object, **constraints: Any) -> None:
    """Creates a pod with a container for each request."""
    sandbox.kube.create(
        template(name, {"devices": {"requests": list(requests), **constraints}}), sandbox.namespace
    )
    sandbox.create(
        claiming(pod(name, containers=[container(request["name"]) for request in requests]), name)
    )


def taken(sandbox: Sandbox, name: str, *requests: Object, **constraints: Any) -> list[str]:
    """Creates a pod, waits until it is bound, and returns its instances, ``index-profile-place``."""
    take(sandbox, name, *requests, **constraints)
    bound(sandbox, name)
    names = [
        device.device for request in claim_of(sandbox, name).requests for device in request.devices
    ]
    return [
        f"{int(card[-12:])}-{place}"
        for card, _, place in (text.partition("-mig-") for text in names)
    ]


def test_a_card_is_filled_with_instances_that_do_not_overlap(sandbox):
    publish(sandbox, n0=[divided()])
    assert taken(sandbox, "half", instance("3g.40gb")) == ["0-3g-40gb-4"]
    assert taken(sandbox, "quarter", instance("2g.20gb")) == ["0-2g-20gb-0"]
    assert taken(sandbox, "small", instance()) == ["0-1g-10gb-3"]
    for name, profile in (("whole", "7g.80gb"), ("wide", "2g.20gb")):
        take(sandbox, name, instance(profile))
        wait_refused(sandbox, name)
    assert taken(sandbox, "last", instance("1g.10gb")) == ["0-1g-10gb-2"]
    take(sandbox, "full", instance())
    wait_refused(sandbox, "full")
    sandbox.delete("full")
    sandbox.delete("quarter")
    bound(sandbox, "wide")


def test_an_instance_is_the_smallest_with_enough_memory(sandbox):
    publish(sandbox, n0=[divided()])
    amounts = [
        instance(capacity={"requests": {"memory": amount}}) for amount in ("1Gi", "10Gi", "20Gi")
    ]
    assert [taken(sandbox, f"p{number}", request) for number, request in enumerate(amounts)] == [
        ["0-1g-10gb-6"],
        ["0-1g-20gb-4"],
        ["0-3g-40gb-0"],
    ]


def test_instances_of_one_card_and_of_different_ones(sandbox):
    publish(sandbox, n0=[divided(0), divided(1)])
    same = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    assert taken(sandbox, "first", instance("4g.40gb")) == ["0-4g-40gb-0"]
    assert taken(
        sandbox,
        "pair",
        {**instance("3g.40gb"), "name": "a"},
        {**instance("2g.20gb"), "name": "b"},
        constraints=same,
    ) == ["1-3g-40gb-4", "1-2g-20gb-0"]
    apart = [{"distinctAttribute": f"{DRIVER}/parentUUID"}]
    assert taken(sandbox, "apart", instance("1g.10gb", count=2), constraints=apart) == [
        "0-1g-10gb-6",
        "1-1g-10gb-3",
    ]


def test_each_class_has_its_own_kind_of_devices(sandbox):
    publish(sandbox, a=[card(0)], m=[divided(1)])
    assert place(sandbox, "share", ask(cores=100)) == ["a/0"]
    create(sandbox, "waits", ask())
    wait_refused(sandbox, "waits")
    assert taken(sandbox, "instance", instance("7g.80gb")) == ["1-7g-80gb-0"]
    take(sandbox, "more", instance())
    wait_refused(sandbox, "more")


def test_the_commands_show_instances_that_claims_hold(cluster, sandbox):
    publish(sandbox, n0=[divided()])
    assert taken(sandbox, "p", instance("1g.10gb"))
    assert taken(sandbox, "q", instance("3g.40gb"))

    node = sandbox.node("n0")["metadata"]["name"]
    (row,) = (row for row in said(cluster, sandbox, "top", "cards")["items"] if row["node"] == node)
    assert [
        row[key] for key in ("mode", "memoryMib", "memoryUsedMib", "slots", "slotsUsed", "pods")
    ] == ["mig", 81_920, 9728 + 40_192, 7, 2, [f"{sandbox.namespace}/{name}" for name in "pq"]]
    (held,) = said(cluster, sandbox, "explain", "pod", "p")["cards"]
    assert [held[key] for key in ("container", "index", "uuid", "memoryMib", "cores", "pods")] == [
        "main",
        0,
        row["uuid"],
        9728,
        15,
        [f"{sandbox.namespace}/q"],
    ]
    assert {"OverCommitted", "CardGone", "TwoAllocationModes"}.isdisjoint(
        item["rule"] for item in said(cluster, sandbox, "audit")["items"]
    )


def test_the_largest_claims_that_admission_makes_are_taken(sandbox):
    """Of the number of requests, their alternatives, the lists and the size of all; the next larger one is refused."""
    lists = [tuple(f"{number:02}{letter * 58}" for number in range(64)) for letter in "abcd"]
    selector = Selector(
        **dict(zip(("use_types", "nouse_types", "use_uuids", "nouse_uuids"), lists, strict=True))
    )
    half = ask(memory_percent=50, cores=5)
    made = 0
    for sizes, selected in ((8, selector), (1, selector), (8, ANY_CARD)):
        spec = None
        with pytest.raises(Inexpressible):
            for count in range(1, 34):
                requests = {f"{number:02}{'c' * 61}": half for number in range(count)}
                sizes_mib = [1000 * size for size in range(1, sizes + 1)]
                spec = render_claim_spec(requests, selected, sizes_mib, numa_bind=True)
        assert spec is not None
        sandbox.kube.create(template(f"t{made}", spec), sandbox.namespace)
        sandbox.kube.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"c{made}"},
                "spec": spec,
            },
            sandbox.namespace,
        )
        made += 1
    sandbox.kube.delete_all("ResourceClaim", sandbox.namespace)


def test_what_a_class_gives_a_claim_can_only_lower(sandbox):
    def parameters(**values: object) -> Object:
        return {
            "opaque": {
                "driver": DRIVER,
                "parameters": {"apiVersion": "hami.io/v1", "kind": "ShareConfig", **values},
            }
        }

    publish(sandbox, n0=[card()])
    generous = sandbox.kube.get("DeviceClass", DRIVER)
    generous = {
        **generous,
        "metadata": {"name": sandbox.namespace},
        "spec": {**generous["spec"], "config": [parameters(priority=0, corePolicy="disable")]},
    }
    sandbox.kube.create(generous)
    try:
        for name, config in (
            ("high", []),
            ("low", [parameters(priority=3, corePolicy="force")]),
            ("wishes", [parameters(priority=0)]),
        ):
            spec = render_claim_spec({"main": ask()})
            spec["devices"]["requests"][0]["exactly"]["deviceClassName"] = sandbox.namespace
            spec["devices"]["config"] = config
            sandbox.kube.create(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": name},
                    "spec": spec,
                },
                sandbox.namespace,
            )
            made = pod(
                name, containers=[{**container(), "resources": {"claims": [{"name": "hami"}]}}]
            )
            made["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimName": name}]
            sandbox.create(made)
        sandbox.bound(3)
        texts = {
            item["metadata"]["name"]: json.dumps(item).encode()
            for item in sandbox.kube.list("ResourceClaim", sandbox.namespace)
        }
        (high,), (low,) = (parse_claim(texts[name]).requests for name in ("high", "low"))
        assert (high.priority, high.core_policy) == (0, CorePolicy.DISABLE)
        assert (low.priority, low.core_policy) == (3, CorePolicy.FORCE)
        with pytest.raises(MalformedInput, match="config.*priority: expected 1 or more in a claim"):
            parse_claim(texts["wishes"])
    finally:
        sandbox.kube.delete("DeviceClass", sandbox.namespace)
        sandbox.empty()
        sandbox.kube.delete_all("ResourceClaim", sandbox.namespace)
        sandbox.kube.wait(
            "ResourceClaim", lambda found: not found, sandbox.namespace, what="the claims are gone"
        )


# -- the commands for people


def test_the_commands_show_what_claims_hold(cluster, sandbox):
    publish(sandbox, n0=[card(0), card(1, model=T4, memory_mib=15_360)])
    for name, asked in (("a", ask(memory_mib=3000, cores=30)), ("b", ask(memory_mib=2000))):
        assert place(sandbox, name, asked) == ["n0/0"]

    node = sandbox.node("n0")["metadata"]["name"]
    rows = {
        row["uuid"]: row
        for row in said(cluster, sandbox, "top", "cards")["items"]
        if row["node"] == node
    }
    assert [rows["GPU-0"][key] for key in ("memoryUsedMib", "coresUsed", "slotsUsed", "pods")] == [
        5000,
        30,
        2,
        [f"{sandbox.namespace}/{name}" for name in "ab"],
    ]
    assert rows["GPU-1"]["memoryUsedMib"] == 0
    (held,) = said(cluster, sandbox, "explain", "pod", "a")["cards"]
    assert (held["container"], held["uuid"], held["memoryMib"], held["pods"]) == (
        "main",
        "GPU-0",
        3000,
        [f"{sandbox.namespace}/b"],
    )
    assert {"OverCommitted", "CardGone", "TwoAllocationModes"}.isdisjoint(
        item["rule"] for item in said(cluster, sandbox, "audit")["items"]
    )


def test_a_claim_is_not_judged_but_shown_with_what_kube_scheduler_said(cluster, sandbox):
    publish(sandbox, n0=[card()])
    create(sandbox, "waits", ask(memory_mib=90_000))
    wait_refused(sandbox, "waits")
    options = "-n", sandbox.namespace, "-o", "json", "--device-config-file", DEVICE_CONFIG
    report = hami(cluster.kubeconfig, "explain", "pod", "waits", *options).document
    (claim,) = report["claims"]
    assert claim.startswith("ResourceClaim waits-gpu-")
    assert WAITS in report["events"][-1]["message"]
    typed = json.dumps(claiming(pod("another", containers=[container()]), "waits"))
    simulated = hami(cluster.kubeconfig, "simulate", "-f", "-", *options, typed=typed)
    (outcome,) = simulated.document["outcomes"]
    assert (outcome["placed"], outcome["stopped"]) == (0, NOT_JUDGED)
    counted = hami(cluster.kubeconfig, "capacity", "-f", "-", *options, typed=typed)
    assert NOT_JUDGED in counted.errors


# -- a resource that stands for claims

RESOURCE = "example.com/gpu"


@pytest.fixture
def resource(cluster: LocalCluster) -> Iterator[None]:
    """Our class stands for a resource, as with the value dra.extendedResource of the chart."""

    def stands_for(name: str | None) -> None:
        cluster.kube.merge_patch("DeviceClass", DRIVER, {"spec": {"extendedResourceName": name}})

    stands_for(RESOURCE)
    yield  # nodes and pods stay until `audited` has looked at them
    stands_for(None)


def test_a_pod_that_names_a_resource_only_gets_a_card(cluster, sandbox, resource):
    """kube-scheduler makes the claim, for all memory of a card; the commands show it."""
    publish(sandbox, n0=[card(0), card(1, cordoned=True)])
    for name in ("a", "b"):
        sandbox.create(pod(name, containers=[container(**{RESOURCE: 1})]))
    (placed,) = sandbox.bound(1)
    (left,) = {"a", "b"} - {placed}
    sandbox.event(left, "FailedScheduling", "")
    item = sandbox.pod(placed)
    assert "resourceClaims" not in item["spec"]
    assert item["status"]["extendedResourceClaimStatus"]["requestMappings"] == [
        {"containerName": "main", "resourceName": RESOURCE, "requestName": "container-0-request-0"}
    ]
    (device,) = claim_of(sandbox, placed).requests[0].devices
    assert (device.device, device.memory_mib, device.cores, device.share_milli) == (
        "gpu-0",
        81_920,
        0,
        10_000,
    )

    options = "-n", sandbox.namespace, "-o", "json", "--device-config-file", DEVICE_CONFIG
    node = sandbox.node("n0")["metadata"]["name"]
    rows = {
        row["uuid"]: row
        for row in hami(cluster.kubeconfig, "top", "cards", *options).document["items"]
        if row["node"] == node
    }
    assert [
        (row["memoryUsedMib"], row["slotsUsed"], row["pods"])
        for row in (rows["GPU-0"], rows["GPU-1"])
    ] == [(81_920, 1, [f"{sandbox.namespace}/{placed}"]), (0, 0, [])]
    (held,) = hami(cluster.kubeconfig, "explain", "pod", placed, *options).document["cards"]
    assert (held["uuid"], held["memoryMib"]) == ("GPU-0", 81_920)
    report = hami(cluster.kubeconfig, "explain", "pod", left, *options).document
    assert report["claims"] == [f"resource {RESOURCE} of DeviceClass {DRIVER}"]
    typed = json.dumps(pod("c", containers=[container(**{RESOURCE: 1})]))
    simulated = hami(
        cluster.kubeconfig, "simulate", "-f", "-", "--drain", node, *options, typed=typed
    )
    assert [
        (outcome["workload"], outcome["stopped"]) for outcome in simulated.document["outcomes"]
    ] == [(f"pod/{placed}", NOT_JUDGED), ("pod/c", NOT_JUDGED)]


# -- documentation


def pieces() -> list[Object]:
    """The requests that the page shows on their own, each in a list."""
    blocks = [parse_own_yaml(text) for text in EXAMPLES if "\n---\n" not in text]
    return [
        item
        for block in blocks
        if isinstance(block, list)
        for item in block
        if "mig.hami.io" not in str(item)
    ]


def test_the_documented_claim_for_an_instance_is_allocated(sandbox):
    publish(sandbox, n0=[divided()])
    (request,) = (
        item for text in EXAMPLES if "mig.hami.io" in text for item in parse_own_yaml(text)
    )
    assert taken(sandbox, "p", request) == ["0-3g-40gb-4"]


def test_the_documented_claims_are_allocated(sandbox):
    publish(sandbox, n0=[card(0), card(1), card(2, model=T4, memory_mib=15_360)])
    (whole,) = [text for text in EXAMPLES if "\n---\n" in text]
    claim, slice = read_documents(whole)
    sandbox.kube.create(claim, sandbox.namespace)
    sandbox.create(slice)
    bound(sandbox, "slice")
    (device,) = claim_of(sandbox, "slice").requests[0].devices
    assert (device.memory_mib, device.cores, device.share_milli) == (3000, 30, 10_000)
    constraints, config = (
        parse_own_yaml(text) for text in EXAMPLES if text.startswith(("constraints:", "config:"))
    )
    cards = {}
    for number, request in enumerate(pieces()):
        name = f"other-{number}"
        claim["metadata"]["name"] = slice["metadata"]["name"] = name
        claim["spec"]["spec"]["devices"] = {"requests": [request], **constraints, **config}
        slice["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = name
        sandbox.kube.create(claim, sandbox.namespace)
        sandbox.create(slice)
        bound(sandbox, name)
        (allocated,) = claim_of(sandbox, name).requests
        assert (allocated.priority, allocated.core_policy) == (2, CorePolicy.FORCE)
        cards[name] = allocated.devices[0]
    assert [(found.device, found.memory_mib) for found in cards.values()] == [
        ("gpu-1", 81_920),
        ("gpu-0", 40_960),
    ]


# -- policies


@pytest.fixture
def device_plugin(sandbox: Sandbox) -> Iterator[Kube]:
    """A client with the token of the device plugin on node n0."""
    sandbox.add_gpu_nodes({"n0": (), "n1": ()})
    client = sandbox.kube.with_token(
        sandbox.kube.token(
            PLUGIN,
            SYSTEM,
            bound_to={
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": sandbox.node("n0")["metadata"],
            },
        )
    )
    wait_permitted(sandbox, client, "create", "resourceslices", "resource.k8s.io")
    yield client
    client.close()


def test_a_device_plugin_writes_the_slices_of_its_own_node_only(sandbox, device_plugin):
    own, other = (sandbox.node(name)["metadata"]["name"] for name in ("n0", "n1"))
    (mine,), (foreign,) = render_slices(own, [card()]), render_slices(other, [card()])
    assert "ResourceSlices" in refusal(device_plugin.create, foreign)
    for changed in ({"driver": "gpu.nvidia.com"}, {"pool": {**mine["spec"]["pool"], "name": own}}):
        spec = {**mine["spec"], **changed}
        refusal(device_plugin.create, {**mine, "spec": spec})
    made = device_plugin.create(mine)
    path = path_of("ResourceSlice", None, made["metadata"]["name"])
    device_plugin.call(
        "PUT", path, made | {"spec": render_slices(own, [card(), card(1)], generation=2)[0]["spec"]}
    )
    kept = sandbox.kube.create(foreign)["metadata"]["name"]
    refusal(device_plugin.delete, "ResourceSlice", kept)
    assert {item["metadata"]["name"] for item in device_plugin.list("ResourceSlice")} >= {
        made["metadata"]["name"],
        kept,
    }
    device_plugin.delete("ResourceSlice", made["metadata"]["name"])
    assert sandbox.kube.find("ResourceSlice", kept)
    assert not sandbox.kube.find("ResourceSlice", made["metadata"]["name"])


def test_a_kubelet_may_read_a_claim_before_the_api_server_knows_that_it_is_for_its_node(sandbox):
    """Else it asks again only after a minute."""
    sandbox.add_gpu_nodes({"n0": ()})
    name = f"system:node:{sandbox.node('n0')['metadata']['name']}"
    spec = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": DRIVER}}]}}
    sandbox.kube.create(
        {**template("c", spec), "kind": "ResourceClaim", "spec": spec}, sandbox.namespace
    )
    right = {
        "group": "resource.k8s.io",
        "resource": "resourceclaims",
        "namespace": sandbox.namespace,
    }
    eventually(
        lambda: may(sandbox.kube, name, groups=["system:nodes"], verb="get", **right),
        "it may read claims",
    )
    kubelet = sandbox.kube.impersonating(name, "system:nodes")
    assert kubelet.get("ResourceClaim", "c", sandbox.namespace)["metadata"]["name"] == "c"
    assert not any(
        may(sandbox.kube, name, groups=["system:nodes"], verb=verb, **right)
        for verb in ("list", "watch", "create", "update", "patch", "delete")
    )
    kubelet.close()


@cases(
    "toleration, allowed",
    ("of-hami", {"key": "hami.io/cordoned", "operator": "Exists"}, False),
    ("all", {"operator": "Exists"}, False),
    ("of-others", {"key": "example.com/slow", "operator": "Exists"}, True),
)
def test_tenants_tolerate_no_taints_of_cards(sandbox, toleration, allowed):
    tenant = account(sandbox, "tenant", "edit")
    wait_permitted(sandbox, tenant, "create", "resourceclaims", "resource.k8s.io")
    request = {"deviceClassName": DRIVER, "tolerations": [toleration]}
    choice = {"firstAvailable": [{"name": "a", **request}]}
    for name, requests in (("exactly", {"exactly": request}), ("choice", choice)):
        spec = {"devices": {"requests": [{"name": "main", **requests}]}}
        claim = {**template(name, spec), "kind": "ResourceClaim", "spec": spec}
        for item in (claim, template(name, spec)):
            if allowed:
                tenant.create(item, sandbox.namespace)
            else:
                assert "devicetaints" in refusal(tenant.create, item, sandbox.namespace)
            sandbox.kube.delete(item["kind"], name, sandbox.namespace)
            sandbox.kube.create(item, sandbox.namespace)  # an administrator may
    tenant.close()


@cases(
    "user, allowed",
    ("of-kubernetes", CLAIM_CONTROLLER, True),
    ("one-letter-differs", CLAIM_CONTROLLER.replace("kube-system", "kubexsystem"), False),
    ("another-namespace", CLAIM_CONTROLLER.replace("kube-system", "default"), False),
)
def test_kubernetes_own_controller_of_claims_is_one_account(sandbox, user, allowed):
    """The templates from which it makes claims were judged."""
    sandbox.kube.create(
        binding(
            sandbox,
            "",
            "edit",
            subjects=[{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
        ),
        sandbox.namespace,
    )
    eventually(
        lambda: may(
            sandbox.kube,
            user,
            verb="create",
            group="resource.k8s.io",
            resource="resourceclaims",
            namespace=sandbox.namespace,
        ),
        "it may create claims",
    )
    client = sandbox.kube.impersonating(user, "system:authenticated")
    spec = {
        "devices": {
            "requests": [
                {
                    "name": "main",
                    "exactly": {"deviceClassName": DRIVER, "tolerations": [{"operator": "Exists"}]},
                }
            ]
        }
    }
    claim = {**template("c", spec), "kind": "ResourceClaim", "spec": spec}
    if allowed:
        client.create(claim, sandbox.namespace)
    else:
        assert "devicetaints" in refusal(client.create, claim, sandbox.namespace)
    client.close()


def test_a_tenant_whom_an_administrator_allows_it_uses_a_cordoned_card(sandbox):
    """The claim is created by kube-controller-manager, from a template."""
    publish(sandbox, n0=[card(cordoned=True)])
    spec = render_claim_spec({"main": ask()})
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = [
        {"key": "hami.io/cordoned", "operator": "Exists"}
    ]
    tenant = account(sandbox, "tenant", "edit", "hami-taint-tolerator")
    wait_permitted(sandbox, tenant, "tolerate", "devicetaints", "hami.io")
    tenant.create(template("p", spec), sandbox.namespace)
    made = pod("p", containers=[{**container(), "resources": {"claims": [{"name": "hami"}]}}])
    made["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimTemplateName": "p"}]
    sandbox.create(made)
    bound(sandbox, "p")
    assert claim_of(sandbox, "p").requests[0].devices[0].device == device_name("GPU-0")
    tenant.close()


def test_a_claim_is_for_one_pod_at_a_time(sandbox):
    """The node would not be asked about a second one. It is bound once the first has ended."""
    publish(sandbox, n0=[card()])
    spec = render_claim_spec({"main": ask()})
    sandbox.kube.create(
        {**template("shared", {}), "kind": "ResourceClaim", "spec": spec}, sandbox.namespace
    )
    for name in ("a", "b"):
        made = pod(name, containers=[{**container(), "resources": {"claims": [{"name": "hami"}]}}])
        made["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimName": "shared"}]
        sandbox.create(made)
        if name == "a":
            bound(sandbox, name)
    assert "is reserved for pod a: such a claim is for one pod at a time" in sandbox.event(
        "b", "FailedScheduling"
    )
    sandbox.delete("a")
    bound(sandbox, "b")


def urgent(value: str = "0", **spec: Any) -> Object:
    """A pod whose container sets the variable of its priority to *value*. *spec*: more of the pod."""
    made = pod("p", containers=[{**container(), "env": [{"name": PRIORITY, "value": value}]}])
    return {**made, "spec": {**made["spec"], **spec}}


@pytest.mark.parametrize("value", ["0", "", "00", "-1"])
def test_priority_over_others_on_a_card_needs_a_right(sandbox, value):
    """It is the variable that counts on the node."""
    claims = [{"name": "hami", "resourceClaimTemplateName": "none-yet"}]
    assert "priorities" in refusal(sandbox.create, urgent(value, resourceClaims=claims))
    sandbox.create(urgent("1", resourceClaims=claims))


@pytest.mark.parametrize("part", ["containers", "initContainers"])
@cases(
    "resource",
    ("class", f"deviceclass.resource.kubernetes.io/{DRIVER}"),
    ("resource of a class", "example.com/any"),
    ("device plugin", "nvidia.com/gpu"),
    ("no device", "cpu"),
)
def test_whatever_a_pod_requests_priority_over_others_needs_a_right(sandbox, resource, part):
    """A claim comes from more than the pod's list of claims."""
    made = pod("p", inits=[container("init")])
    requesting = made["spec"][part][0]
    requesting["resources"] = {"limits": {resource: "1"}}
    for entry in ({"value": "0"}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}):
        requesting["env"] = [{"name": PRIORITY, **entry}]
        assert "priorities" in refusal(sandbox.create, made)
    requesting["env"] = [{"name": PRIORITY, "value": "1"}]
    sandbox.create(made)


def test_an_ephemeral_container_has_no_priority_over_others_without_a_right(sandbox):
    sandbox.create(urgent("1"))

    def debug(name: str, value: str) -> Object:
        spec = {"name": name, "image": "x", "env": [{"name": PRIORITY, "value": value}]}
        return sandbox.kube.call(
            "PATCH",
            path_of("Pod", sandbox.namespace, "p", "ephemeralcontainers"),
            {"spec": {"ephemeralContainers": [spec]}},
            content_type="application/strategic-merge-patch+json",
        )

    assert "priorities" in refusal(debug, "a", "0")
    debug("b", "1")


def test_a_kubelet_creates_a_mirror_pod_of_any_priority(sandbox):
    """The pod is from a file of its node, and runs in any case."""
    sandbox.add_gpu_nodes({"n0": ()})
    node = sandbox.node("n0")["metadata"]
    made = urgent(nodeName=node["name"], automountServiceAccountToken=False)
    made["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node["name"],
            "uid": node["uid"],
            "controller": True,
        }
    ]
    assert "priorities" in refusal(sandbox.create, made)
    kubelet = sandbox.kube.impersonating(f"system:node:{node['name']}", "system:nodes")
    kubelet.create(made, sandbox.namespace)
    kubelet.close()
    sandbox.delete("p")


def test_an_account_with_the_right_may_have_it(sandbox):
    sandbox.kube.create(binding(sandbox, "default", "hami-priority-user"), sandbox.namespace)
    user = f"system:serviceaccount:{sandbox.namespace}:default"
    eventually(
        lambda: may(
            sandbox.kube,
            user,
            verb="use",
            group="hami.io",
            resource="priorities",
            namespace=sandbox.namespace,
        ),
        "it has the right",
    )
    sandbox.create(
        urgent(resourceClaims=[{"name": "hami", "resourceClaimTemplateName": "none-yet"}])
    )
