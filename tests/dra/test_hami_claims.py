"""The text of a pod with a claim of its own, which HAMi's scheduler allocates."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis.strategies import randoms

from hami.codec.claim_amounts import is_claim_name
from hami.codec.claim_spec import Inexpressible
from hami.codec.device_config import DeviceConfig, NvidiaConfig, chart_config
from hami.codec.keys import CLAIM_AMOUNTS, CLAIM_RESOURCE, GPU_POLICY
from hami.codec.pods import convert_pod
from hami.dra.hami_claims import give_claim, make_claim_name, take_claim
from hami.dra.pod_claims import has_claim
from hami.dra.shared_requests import share_requests
from hami.errors import MalformedInput
from hami.model import ContainerKind
from hami.scheduling.pod_request import ContainerRequest, make_pod_request
from hami.vendors.admission import admit_pod
from hami.vendors.catalog import vendors
from hami.vendors.draft import PodDraft
from hami.vendors.vocabulary import Vocabulary
from testing.builders import ONLY_NVIDIA
from testing.cases import cases
from tests.dra.pods import UUID, annotated, asking, init, limits, pod, sidecar

NAME, SCHEDULER = "hami-" + "0" * 32, "hami-scheduler-claims"
MANY = ",".join(f"GPU-{number}" for number in range(100))


def admitted(wire, catalog=ONLY_NVIDIA):
    draft = PodDraft(wire)
    admit_pod(Vocabulary(catalog), draft)
    return draft.render()


def claiming(wire, catalog=ONLY_NVIDIA, scheduler=SCHEDULER):
    given = give_claim(admitted(wire, catalog), catalog, "spread", NAME, scheduler)
    assert isinstance(given, dict), given
    return given


def amounts(wire, catalog=ONLY_NVIDIA):
    return json.loads(claiming(wire, catalog)["metadata"]["annotations"][CLAIM_AMOUNTS])


def users(wire):
    spec = claiming(wire)["spec"]
    resources = {
        container["name"]: container.get("resources", {})
        for container in (*spec.get("initContainers", ()), *spec["containers"])
    }
    return {
        name: [claim["request"] for claim in given["claims"]]
        for name, given in resources.items()
        if "claims" in given
    }


def decided(wire, catalog=ONLY_NVIDIA, policy="spread"):
    return make_pod_request(convert_pod(wire), catalog, policy)


def test_a_pod_keeps_everything_but_its_amounts():
    wire = pod(
        {
            "name": "main",
            "image": "x",
            "resources": {
                "limits": {"cpu": "1", **limits(1, gpumem=3000, priority=1)},
                "requests": limits(1, gpumem=3000),
            },
        },
        {"name": "log"},
        spec={"schedulerName": "hami-scheduler"},
        team="a",
    )
    before = json.dumps(wire)
    claimed = claiming(wire)
    assert json.dumps(wire) == before
    assert claimed["metadata"]["annotations"] == {
        "team": "a",
        CLAIM_AMOUNTS: '{"main":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3000"}}',
    }
    assert claimed["spec"] == {
        "schedulerName": SCHEDULER,
        "resourceClaims": [{"name": "hami", "resourceClaimName": NAME}],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "env": [{"name": "CUDA_TASK_PRIORITY", "value": "1"}],
                "resources": {
                    "limits": {"cpu": "1", CLAIM_RESOURCE: "1"},
                    "requests": {CLAIM_RESOURCE: "1"},
                    "claims": [{"name": "hami", "request": "main"}],
                },
            },
            {"name": "log"},
        ],
    }
    assert has_claim(claimed)
    assert not has_claim(wire)


def test_names_are_not_guessed():
    assert is_claim_name(make_claim_name())
    assert make_claim_name() != make_claim_name()


def test_without_a_name_of_the_scheduler_that_of_the_pod_stays():
    wire = pod(asking(gpu=1), spec={"schedulerName": "x"})
    assert claiming(wire, scheduler="")["spec"]["schedulerName"] == "x"


@cases(
    "inits, containers, expected, uses",
    (
        "a whole card",
        [],
        [asking("a", gpu=1), asking("b", gpu=0)],
        {"a": limits(1, gpucores=100)},
        {"a": ["a"]},
    ),
    (
        "percent, whatever sizes there are",
        [],
        [asking("a", gpumem_percentage=50)],
        {"a": limits(1, gpumem_percentage=50)},
        {"a": ["a"]},
    ),
    (
        "the largest container is raised",
        [init(gpu=1, gpumem=50)],
        [asking("a", gpu=1, gpumem=10), asking("b", gpu=1, gpumem=20, gpucores=5)],
        {"a": limits(1, gpumem=10), "b": limits(1, gpumem=50, gpucores=5)},
        {"init": ["b"], "a": ["a"], "b": ["b"]},
    ),
    (
        "whole cards",
        [init(gpu=1)],
        [asking("a", gpu=2, gpumem=10)],
        {"a": limits(2, gpucores=100)},
        {"init": ["a"], "a": ["a"]},
    ),
    (
        "more percent",
        [init(gpu=1, gpumem_percentage=60)],
        [asking("a", gpu=1, gpumem_percentage=50)],
        {"a": limits(1, gpumem_percentage=60, gpucores=0)},
        {"init": ["a"], "a": ["a"]},
    ),
    (
        "only init containers",
        [init("i", gpu=1, gpumem=10), init("j", gpu=1, gpumem=30)],
        [asking("a", gpu=0)],
        {"j": limits(1, gpumem=30, gpucores=0)},
        {"i": ["j"], "j": ["j"]},
    ),
    (
        "a sidecar runs beside them",
        [sidecar(gpu=1, gpumem=99), init(gpu=1, gpumem=30)],
        [asking("a", gpu=1, gpumem=10)],
        {"sidecar": limits(1, gpumem=99), "a": limits(1, gpumem=30, gpucores=0)},
        {"sidecar": ["sidecar"], "init": ["a"], "a": ["a"]},
    ),
)
def test_the_request_of_each_container(inits, containers, expected, uses):
    wire = pod(*containers, inits=inits)
    assert (amounts(wire), users(wire)) == (expected, uses)


def test_the_first_container_with_amounts_has_the_mark():
    spec = claiming(
        pod(asking("a", gpu=0), asking("b", gpu=1), asking("c", gpu=1), inits=[init(gpu=1)])
    )["spec"]
    marked = [
        container["name"]
        for container in (*spec["initContainers"], *spec["containers"])
        if CLAIM_RESOURCE in container["resources"].get("limits", ())
    ]
    assert marked == ["b"]


@pytest.mark.parametrize(
    "annotations",
    [
        {GPU_POLICY: "topology-aware"},
        {GPU_POLICY: "mutex"},
        {GPU_POLICY: "numa,binpack"},
        {UUID: MANY},
        {"hami.io/node-scheduler-policy": "spread"},
        {"hami.io/device-scoring-weights": "slot=1,core=1,memory=1"},
        {"nvidia.com/vgpu-mode": "mig"},
    ],
)
def test_what_no_template_can_say(annotations):
    claimed = claiming(annotated(annotations))
    assert claimed["metadata"]["annotations"].items() >= annotations.items()


OTHER_CLAIM = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}


@cases(
    "wire, reason",
    (
        pod(asking("a", gpu=1), {"name": "b", "resources": {"limits": {"amd.com/gpu": "1"}}}),
        "container b: amd.com/gpu",
    ),
    (
        pod({"name": "a", "resources": {"limits": {**limits(1), "nvidia.com/mig-1g.5gb": "1"}}}),
        "container a: nvidia.com/mig-1g.5gb=1",
    ),
    (pod(asking(gpu=1), spec=OTHER_CLAIM), "spec.resourceClaims"),
    (pod(asking("a", gpu=20), asking("b", gpu=13)), "at most 32"),
    (
        pod(asking(gpu=1, gpumem=1), inits=[init(gpu=1, gpumem_percentage=5)]),
        "container main and init containers",
    ),
    (pod(asking("A", gpu=1)), CLAIM_AMOUNTS),
    (
        annotated({"a": "x" * 262_100}),
        "metadata.annotations: 2621.. bytes with that of the claim, and a pod has at most 262144",
    ),
)
def test_pods_that_no_claim_serves(wire, reason):
    catalog = vendors(chart_config())
    with pytest.raises(Inexpressible, match=reason):
        give_claim(admitted(wire, catalog), catalog, "spread", NAME, SCHEDULER)


@pytest.mark.parametrize(
    "wire",
    [
        pod({"name": "main"}),
        pod(asking(gpu=0)),
        pod({"name": "main", "resources": {"limits": {"amd.com/gpu": "1"}}}),
    ],
)
def test_nothing_to_translate(wire):
    assert give_claim(wire, vendors(chart_config()), "spread", NAME, SCHEDULER) is None


def some_pod(rng, unit):
    def some(name, **fields):
        given = {
            "gpu": rng.choice((None, 0, 1, 1, 2, 4)),
            unit: rng.choice((None, 0, 30, 50, 100)),
            "gpucores": rng.choice((None, 1, 30, 100)),
            "priority": rng.choice((None, 1)),
        }
        return asking(
            name, **{key: value for key, value in given.items() if value is not None}, fields=fields
        )

    inits = [
        some(f"i{place}", **rng.choice(({}, {"restartPolicy": "Always"})))
        for place in range(rng.randrange(4))
    ]
    notes = {
        key: rng.choice(values)
        for key, values in {
            GPU_POLICY: ("mutex", "topology-aware"),
            UUID: ("GPU-1,GPU-2",),
            "nvidia.com/numa-bind": ("true",),
            "hami.io/device-scoring-weights": ("slot=0,core=1,memory=3",),
        }.items()
        if rng.random() < 0.3
    }
    return pod(*(some(f"c{place}") for place in range(rng.randint(1, 3))), inits=inits, **notes)


CONFIGURATIONS = [
    ONLY_NVIDIA,
    vendors(
        DeviceConfig(
            nvidia=NvidiaConfig(
                memory_factor=2, default_memory=7, default_cores=5, overwrite_env=True, strict=True
            )
        )
    ),
]


@pytest.mark.parametrize("catalog", CONFIGURATIONS, ids=["plain", "with defaults"])
@pytest.mark.parametrize("unit", ["gpumem", "gpumem_percentage"])
@given(rng=randoms(use_true_random=True))
def test_the_decision_sees_the_same_pod(rng, unit, catalog):
    """Init containers apart: what they need is in the request of the container that uses their cards after them."""
    try:
        before = admitted(some_pod(rng, unit), catalog)
    except MalformedInput:
        assume(False)
    original = decided(before, catalog)
    try:
        after = give_claim(before, catalog, "spread", NAME, SCHEDULER)
    except Inexpressible as error:  # a default for memory has another unit
        assert "in MiB and in percent" in str(error)
        assert catalog is not ONLY_NVIDIA
        return
    assume(after is not None)
    decoded = convert_pod(before)
    requests = share_requests(decoded, original).requests
    expected = tuple(
        ContainerRequest(
            container.kind, tuple(requests[name] for name in [container.name] if name in requests)
        )
        for container in decoded.containers
    )
    assert decided(after, catalog) == replace(original, containers=expected, by_claims=True)
    if not any(part.requests for part in original.containers if part.kind is ContainerKind.INIT):
        assert expected == original.containers


@pytest.mark.parametrize("catalog", CONFIGURATIONS, ids=["plain", "with defaults"])
@pytest.mark.parametrize("unit", ["gpumem", "gpumem_percentage"])
@given(rng=randoms(use_true_random=True))
def test_a_claim_that_is_taken_away_and_given_again_is_the_same(rng, unit, catalog):
    try:
        claimed = give_claim(
            admitted(some_pod(rng, unit), catalog), catalog, "spread", NAME, SCHEDULER
        )
    except MalformedInput:
        assume(False)
    assume(isinstance(claimed, dict))
    taken = take_claim(claimed, convert_pod(claimed), catalog)
    assert taken.name == NAME
    assert not has_claim(taken.plain)
    again = give_claim(
        admitted(taken.plain, catalog), catalog, "spread", taken.name, SCHEDULER, taken.users
    )
    assert again == claimed


def forged(change):
    """A pod with a claim that somebody else has written: *change* changes it."""
    wire = json.loads(
        json.dumps(
            claiming(
                pod(
                    asking("a", gpu=1, gpumem=10),
                    asking("log"),
                    inits=[sidecar(gpu=1, gpumem=10), init(gpu=1, gpumem=5)],
                )
            )
        )
    )
    change(
        wire,
        {
            container["name"]: container
            for container in (*wire["spec"]["initContainers"], *wire["spec"]["containers"])
        },
    )
    return wire


def annotate(wire, text):
    wire["metadata"]["annotations"][CLAIM_AMOUNTS] = text


def use(container, *requests):
    container.setdefault("resources", {})["claims"] = [
        {"name": "hami", **request} for request in requests
    ]


@cases(
    "change, problem",
    ("unreadable amounts", lambda wire, by_name: annotate(wire, "{}"), CLAIM_AMOUNTS),
    ("no amounts", lambda wire, by_name: wire["metadata"]["annotations"].clear(), "missing"),
    (
        "another resource",
        lambda wire, by_name: annotate(wire, '{"a": {"cpu.org/x": "1"}}'),
        "expected a resource of NVIDIA GPUs",
    ),
    (
        "a request without amounts",
        lambda wire, by_name: annotate(wire, '{"a": {"nvidia.com/gpu": "1"}}'),
        "container sidecar uses sidecar of the claim",
    ),
    (
        "amounts without a request",
        lambda wire, by_name: by_name["a"]["resources"].pop("claims"),
        "container a uses nothing",
    ),
    (
        "amounts of both allocation modes",
        (
            lambda wire, by_name: by_name["sidecar"]["resources"]["limits"].update(
                {"nvidia.com/gpu": "1"}
            )
        ),
        "container sidecar requests nvidia.com/gpu beside its claim",
    ),
    (
        "the request of another container",
        lambda wire, by_name: use(by_name["a"], {"request": "sidecar"}),
        "container a uses sidecar",
    ),
    (
        "the request of a sidecar",
        lambda wire, by_name: use(by_name["log"], {"request": "sidecar"}),
        "container log uses sidecar",
    ),
    ("the whole claim", lambda wire, by_name: use(by_name["log"], {}), "container log uses None"),
    (
        "an init container beside a sidecar",
        lambda wire, by_name: use(by_name["init"], {"request": "sidecar"}),
        "container init uses sidecar",
    ),
    (
        "two requests",
        lambda wire, by_name: use(by_name["a"], {"request": "a"}, {"request": "sidecar"}),
        "container a uses a, sidecar",
    ),
)
def test_a_claim_that_admission_does_not_give(change, problem):
    wire = forged(change)
    with pytest.raises(MalformedInput, match=re.escape(problem)):
        take_claim(wire, convert_pod(wire), ONLY_NVIDIA)


def test_containers_may_share_a_request():
    """Both are looked at as if they requested it, and it counts once."""
    wire = forged(lambda wire, by_name: use(by_name["log"], {"request": "a"}))
    taken = take_claim(wire, convert_pod(wire), ONLY_NVIDIA)
    assert taken.users == {"sidecar": "sidecar", "init": "a", "a": "a", "log": "a"}
    limited = {one["name"]: one["resources"]["limits"] for one in taken.plain["spec"]["containers"]}
    assert limited["log"] == limited["a"] == limits(1, gpumem=10, gpucores=0)
    again = give_claim(
        admitted(taken.plain), ONLY_NVIDIA, "spread", taken.name, SCHEDULER, taken.users
    )
    assert again == wire
    assert [len(part.requests) for part in decided(again).containers] == [1, 0, 1, 0]


def test_a_claim_that_is_not_changed():
    wire = forged(lambda wire, by_name: None)
    assert take_claim(wire, convert_pod(wire), ONLY_NVIDIA).users == {
        "sidecar": "sidecar",
        "init": "a",
        "a": "a",
    }
