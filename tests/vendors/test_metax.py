"""What the table of all vendors does not say of MetaX: inventories, scores of nodes, and what pods on a card know."""

import json
from dataclasses import replace

import pytest

from hami.codec.device_config import chart_config
from hami.errors import MalformedInput
from hami.model import Node, NodePolicy, Pod, PodRef, QuotaLimits, Share
from hami.scheduling.refusal import Choice
from hami.state.table import Table
from hami.state.verdicts import Verdicts
from hami.vendors.catalog import vendors
from hami.vendors.spec import Candidate, Catalog
from testing.builders import booking_of, container, pod_request, within_quota
from testing.cases import cases
from testing.stores import decide
from testing.vendor_chart import CHART, on_node
from testing.vendor_placing import cache_of
from testing.vendor_rows import given
from tests.vendors.rows_metax import CLASS, OFFLINE, OFFLINES, ONLINE, ONLINES, QOS, S1, sgpu

GPU, SGPU = CHART["Metax-GPU"], CHART["Metax-SGPU"]
LOSSES, SCORES = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
AWARE = "metax-tech.com/sgpu-topology-aware"
BINPACK, SPREAD = NodePolicy.BINPACK, NodePolicy.SPREAD
TABLE = '{"1": 100, "2": 200}'


def gpus(annotations, count=8):
    return on_node(GPU, annotations=annotations, count=count)


def cards(count):
    """Shares of so many cards."""
    return tuple(Share(f"n-metax-{index}", "Metax-GPU", 65536, 100) for index in range(count))


@cases(
    "annotations, count, policy, score",
    ("binpack", {LOSSES: TABLE}, 2, BINPACK, 1800),
    # upstream writes 2000 - 100 = 1900, for under spread the lowest of its scores wins; here the highest does
    ("spread", {SCORES: TABLE}, 1, SPREAD, 2000 - 1900),
    ("no table", {}, 1, BINPACK, 0),
    ("no table is not the best", {}, 1, SPREAD, 0),
    ("binpack goes by losses", {SCORES: TABLE}, 1, BINPACK, 0),
    ("spread goes by scores", {LOSSES: TABLE}, 1, SPREAD, 0),
    ("a number of cards that the table does not have", {LOSSES: TABLE}, 3, BINPACK, 0),
    ("a table that is none", {LOSSES: "lots"}, 1, BINPACK, 0),
)
def test_score_of_whole_cards(annotations, count, policy, score):
    assert GPU.decision.node_score(gpus(annotations), (cards(count),), policy) == score


def test_score_counts_the_cards_of_all_containers():
    assert GPU.decision.node_score(gpus({LOSSES: TABLE}), (cards(1), (), cards(1)), BINPACK) == 1800


def chosen(policy, **nodes):
    """The node that a pod with two whole cards gets; *nodes* by name with their annotations."""
    index = Table()
    for name, annotations in nodes.items():
        index.set_devices(
            name,
            "Metax-GPU",
            tuple(usage.device for usage in on_node(GPU, name, annotations=annotations, count=8)),
        )
    asked = pod_request(container(given(GPU, 2)), vendors=(GPU,))
    answer = decide(Verdicts(index), asked, [*nodes], policy)
    assert isinstance(answer, Choice)
    return answer.node


@cases("policy, key, best", (BINPACK, LOSSES, "b-low"), (SPREAD, SCORES, "c-high"))
def test_the_best_linked_node_wins_under_either_policy(policy, key, best):
    nodes = {"a-none": {}, "b-low": {key: '{"2": 10}'}, "c-high": {key: '{"2": 500}'}}
    assert chosen(policy, **nodes) == best


def test_scores_that_change_are_seen():
    cache = cache_of()
    for version, table in enumerate(('{"1": 1}', '{"1": 2}', "{"), start=1):
        cache.nodes.upsert(
            Node(
                name="n",
                resource_version=str(version),
                annotations={SCORES: table},
                capacity={GPU.resources.count: "1"},
            )
        )
        (usage,) = cache.view().usages("n")["Metax-GPU"]
        assert usage.device.info == ({SCORES: {1: version}} if version < 3 else {})


CARD = {
    "uuid": "GPU-0",
    "totalDevCount": 16,
    "totalCompute": 100,
    "totalVRam": 65536,
    "healthy": True,
}


def reported(*cards):
    return on_node(SGPU, annotations={"metax-tech.com/node-gpu-devices": json.dumps(cards)})


def test_cards_that_are_reported():
    (one,) = reported({**CARD, "qosPolicy": "fixed-share", "linkZone": 3, "numa": 1})
    assert (one.device.slots, one.device.memory_mib, one.device.cores, one.device.numa) == (
        16,
        65536,
        100,
        1,
    )
    assert one.device.info == {"qos": "fixed-share", "model": "", "link_zone": 3}


def test_a_card_that_is_named_twice_counts_once():
    found = reported(CARD, {**CARD, "uuid": "GPU-1"}, {**CARD, "totalVRam": 1})
    assert [(usage.device.uuid, usage.device.memory_mib) for usage in found] == [
        ("GPU-0", 65536),
        ("GPU-1", 65536),
    ]


@cases(
    "text, problem",
    ("[]", "no sdevice found on node"),
    ("{}", "expected a list of cards"),
    ('[{"totalVRam":1}]', "uuid"),
)
def test_reports_that_cannot_be_used(text, problem):
    with pytest.raises(MalformedInput, match=problem):
        SGPU.decision.inventory(SGPU, Node(name="n", annotations={SGPU.annotations.register: text}))


def test_no_report_is_no_inventory():
    assert SGPU.decision.inventory(SGPU, Node(name="n")) is None


def taken(cores=60, annotations=None, aware=False, uuids=("a",)):
    """Shares of a pod, as ``make_share`` returns them."""
    vendor = aware_vendor(aware)
    asked = pod_request(
        container(given(SGPU, 1, 4, cores)), annotations=annotations, vendors=(vendor,)
    )
    (request,) = asked.containers[0].requests
    context = asked.fit_context("Metax-SGPU")
    return tuple(
        vendor.decision.make_share(Candidate(sgpu(uuid), request, context)) for uuid in uuids
    )


def aware_vendor(aware):
    return vendors(replace(chart_config(), sgpu_topology_aware=aware))["Metax-SGPU"]


ZONE = [sgpu(uuid, zone=1) for uuid in "abcd"]


@cases(
    "usages, shares, score",
    ("one of four", ZONE, taken(100, aware=True), -30),
    ("two of four", ZONE, taken(100, aware=True, uuids="ab"), 60),
    ("the pod wants it", ZONE, taken(100, {AWARE: "true"}), -30),
    ("the pod does not want it", ZONE, taken(100, {AWARE: "false"}, aware=True), 0),
    ("the pod does not say", ZONE, taken(100, {AWARE: "maybe"}, aware=True), -30),
    ("nobody wants it", ZONE, taken(100), 0),
    ("parts of cards", ZONE, taken(50, aware=True), 0),
    ("cards without links", [sgpu("a"), sgpu("b")], taken(100, aware=True, uuids="ab"), 0),
    ("two zones", [sgpu("a", zone=1), sgpu("b", zone=2)], taken(100, aware=True, uuids="ab"), 0),
    (
        "cards in use do not count",
        [*ZONE[:2], sgpu("c", 1, zone=1)],
        taken(100, aware=True, uuids="ab"),
        100,
    ),
    ("two online", [sgpu("a", 2, 0, 0, ONLINES)], taken(annotations=ONLINE), -40),
    ("two offline", [sgpu("a", 2, 0, 0, OFFLINES)], taken(annotations=ONLINE), -200),
    ("two of each", [sgpu("a", 4, 0, 0, ONLINES + OFFLINES)], taken(annotations=ONLINE), -44),
    (
        "other cards do not matter",
        [sgpu("a", 2, 0, 0, ONLINES), sgpu("b", 2, 0, 0, OFFLINES)],
        taken(annotations=ONLINE),
        -40,
    ),
    ("offline pods do not mind", [sgpu("a", 2, 0, 0, OFFLINES)], taken(annotations=OFFLINE), 0),
)
@pytest.mark.parametrize("policy", NodePolicy)
def test_score_of_sgpus_goes_before_usage(usages, shares, score, policy):
    assert SGPU.decision.node_score(usages, (shares,), policy) == 10_000 * score


@cases(
    "annotations, tag",
    ("bypassing the webhook", {}, "best-effort"),
    ("quality", {QOS: "fixed-share"}, "fixed-share"),
    ("offline", {CLASS: "offline", QOS: "burst-share"}, "offline burst-share"),
    ("online pods have no quality", {CLASS: "online", QOS: "burst-share"}, "online"),
    ("linked", {AWARE: "1"}, "best-effort linked"),
    ("words that are none", {CLASS: "any", QOS: "any"}, ""),
)
def test_what_other_pods_know_is_read_from_annotations(annotations, tag):
    shares = taken(annotations=annotations)
    assert {share.co_tenants for share in shares} == {(tag,)}
    pod = Pod(
        ref=PodRef("default", "pod1", "uid-1"),
        containers=(container(S1),),
        annotations=annotations | {SGPU.annotations.allocated: "a,Metax-SGPU,4096,60:;"},
    )
    booking, problems = booking_of(pod, "n", Catalog([SGPU]), lambda node: {})
    ((key, (charge,)),) = booking.charges
    assert (key, charge.co_tenants, problems) == ("Metax-SGPU", (tag,), ())


@cases("annotations, cores, fits", (ONLINE, 0, True), (OFFLINE, 59, False), (OFFLINE, 60, True))
def test_online_pods_need_no_cores_of_a_quota(annotations, cores, fits):
    cache = cache_of()
    cache.quotas.upsert(
        QuotaLimits(namespace="default", name="q", uid="u", limits={SGPU.resources.cores: cores})
    )
    asked = Pod(
        ref=PodRef("default", "pod1", "uid-1"),
        containers=(container(given(SGPU, 1, 4, 60)),),
        annotations=annotations,
    )
    assert within_quota(cache.admissions, "default", asked) is fits


def test_a_pod_counts_once_however_many_of_its_containers_share_a_card():
    index = Table()
    index.set_devices("n", "Metax-SGPU", (sgpu("a").device,))
    pod = Pod(
        ref=PodRef("default", "pod1", "uid-1"),
        containers=(container(S1), container(S1)),
        annotations=OFFLINE
        | {SGPU.annotations.allocated: "a,Metax-SGPU,4096,40:;a,Metax-SGPU,4096,40:;"},
    )
    index.bookings.put(booking_of(pod, "n", Catalog([SGPU]), index.usages)[0])
    (usage,) = index.usages("n")["Metax-SGPU"]
    assert (usage.co_tenants, usage.slots_used) == (("offline best-effort",), 2)


def test_quality_is_that_of_the_first_pod_until_the_card_is_free():
    index = Table()
    index.set_devices("n", "Metax-SGPU", (sgpu("a", qos="best-effort").device,))
    burst = pod_request(container(S1), annotations={QOS: "burst-share"}, vendors=(SGPU,))
    pod = Pod(
        ref=PodRef("default", "pod1", "uid-1"),
        containers=(container(S1),),
        annotations={QOS: "fixed-share", SGPU.annotations.allocated: "a,Metax-SGPU,1,1:;"},
    )
    index.bookings.put(booking_of(pod, "n", Catalog([SGPU]), index.usages)[0])
    refused = decide(Verdicts(index), burst, ["n"], BINPACK)
    assert str(refused.unfit["n"]) == "1/1 CardQosPolicyMismatch"
    index.bookings.pop("uid-1")
    assert isinstance(decide(Verdicts(index), burst, ["n"], BINPACK), Choice)


def test_scores_of_nodes_that_have_not_changed_are_not_computed_again():
    """Whole cards are scored on all nodes that fit, so each filter would cost as much as there are nodes."""
    computed = []
    vendor = replace(
        GPU,
        decision=replace(
            GPU.decision,
            node_score=lambda usages, placement, policy: computed.append(1) or float(len(usages)),
        ),
    )
    table = Table()
    for number in range(50):
        table.set_devices(
            f"n{number}",
            "Metax-GPU",
            tuple(usage.device for usage in on_node(GPU, f"n{number}", annotations={}, count=8)),
        )
    verdicts, asked = Verdicts(table), pod_request(container(given(GPU, 2)), vendors=(vendor,))
    for _ in range(3):
        assert decide(verdicts, asked, list(table.nodes), BINPACK).node == "n0"
    assert len(computed) == 50 * len(NodePolicy)
