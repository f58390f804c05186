"""The text of a pod as a claim."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

from hami.codec.claim_templates import render_template, template_name
from hami.codec.claims import Inexpressible
from hami.codec.device_config import DeviceConfig, NvidiaConfig, chart_config
from hami.codec.keys import CLAIM_REQUEST
from hami.dra.translate import Translation, has_claim, translate
from hami.errors import MalformedInput
from hami.vendors.catalog import vendors
from tests.builders import ONLY_NVIDIA

SIZES = (46068, 81920)
TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
POLICY, NODES = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
MIG = {"nvidia.com/vgpu-mode": "mig"}
OF = 'device.attributes["gpu.hami.io"]'


def limits(gpu=None, **amounts):
    given = ({} if gpu is None else {"gpu": gpu}) | amounts
    return {f"nvidia.com/{name.replace('_', '-')}": str(amount) for name, amount in given.items()}


def asking(name="main", gpu=None, *, fields=(), **amounts):
    """A container with these limits."""
    return {"name": name, "resources": {"limits": limits(gpu, **amounts)}, **dict(fields)}


def init(name="init", gpu=None, **amounts):
    return asking(name, gpu, **amounts)


def sidecar(name="sidecar", gpu=None, **amounts):
    return asking(name, gpu, fields={"restartPolicy": "Always"}, **amounts)


def pod(*containers, inits=(), spec=(), **annotations):
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "containers": list(containers),
            **({"initContainers": list(inits)} if inits else {}),
            **dict(spec),
        },
    }


def annotated(annotations, *containers):
    return pod(*containers or [asking(gpu=1, gpumem=1000)], **annotations)


def translated(wire, catalog=ONLY_NVIDIA, policy="spread", sizes=SIZES):
    return translate(wire, catalog, policy, sizes)


def devices(wire, **options):
    """What the template of the pod asks for."""
    translation = translated(wire, **options)
    assert isinstance(translation, Translation), translation
    return render_template(translation.text)["spec"]["spec"]["devices"]


def exactly(name="main", count=1, selectors=(), **capacity):
    return {
        "name": name,
        "exactly": {
            "deviceClassName": "gpu.hami.io",
            "count": count,
            **(
                {"selectors": [{"cel": {"expression": expression}} for expression in selectors]}
                if selectors
                else {}
            ),
            **({"capacity": {"requests": capacity}} if capacity else {}),
        },
    }


def instances(count=1, selectors=(), **capacity):
    return {
        "name": "main",
        "exactly": exactly("", count, selectors, **capacity)["exactly"]
        | {"deviceClassName": "mig.hami.io"},
    }


def of_size(size, memory, count=1, **capacity):
    found = exactly("", count, [f"{OF}.memoryMiB == {size}"], memory=memory, **capacity)["exactly"]
    return {"name": f"m{size}", **found}


def numa(*names):
    return [
        {"requests": [name], "matchAttribute": "resource.kubernetes.io/numaNode"} for name in names
    ]


GOLDEN = [  # the examples by which vendors are compared with HAMi: limits, annotations, requests, constraints
    param(
        {"gpu": 1, "gpumem": 3000, "gpucores": 30},
        {},
        [exactly(memory="3000Mi", cores="30")],
        None,
        id="N1 memory and cores",
    ),
    param({"gpu": 1}, {}, [exactly(cores="100", share="100")], None, id="N2 a whole card"),
    param(
        {"gpu": 2, "gpumem_percentage": 50, "gpucores": 30},
        {},
        [
            {
                "name": "main",
                "firstAvailable": [
                    of_size(81920, "40Gi", 2, cores="30"),
                    of_size(46068, "23034Mi", 2, cores="30"),
                ],
            }
        ],
        None,
        id="N3 halves of two cards",
    ),
    param({"gpumem": 8000}, {}, [exactly(memory="8000Mi")], None, id="N4 memory alone"),
    param(
        {"gpu": 1, "gpumem_percentage": 0},
        {},
        [exactly()],
        None,
        id="N5 zero percent is all memory",
    ),
    param(
        {"gpu": 2, "gpumem": 100, "gpucores": 10},
        {"nvidia.com/numa-bind": "true"},
        [exactly(count=2, memory="100Mi", cores="10")],
        numa("main"),
        id="N9 one NUMA node",
    ),
    param(
        {"gpu": 2, "gpumem": 8000}, MIG, [instances(count=2, memory="8000Mi")], None, id="N10 MIG"
    ),
    param(
        {"gpu": 1},
        {},
        [exactly(cores="100", share="100")],
        None,
        id="N11 a cordoned card has a taint",
    ),
]


@pytest.mark.parametrize(("amounts", "annotations", "requests", "constraints"), GOLDEN)
def test_golden_examples(amounts, annotations, requests, constraints):
    assert devices(annotated(annotations, asking(**amounts))) == (
        {"requests": requests} | ({"constraints": constraints} if constraints else {})
    )


@pytest.mark.parametrize(
    ("amounts", "annotations", "selectors"),
    [
        param({"gpu": 1}, {}, [f"{OF}.memoryMiB * 2 > {OF}.parentMemoryMiB"], id="the whole GPU"),
        param(
            {"gpumem_percentage": 50, "gpucores": 30},
            {},
            [f"{OF}.memoryMiB >= {OF}.parentMemoryMiB * 50 / 100"],
            id="percent, of GPUs of any size",
        ),
        param(
            {"gpumem_percentage": 100},
            {UUID: "GPU-1", NOUSE_UUID: "GPU-2", TYPE: "A100"},
            [
                f"{OF}.memoryMiB * 2 > {OF}.parentMemoryMiB",
                f'{OF}.productName.lowerAscii().contains("a100")',
                f'{OF}.parentUUID in ["GPU-1"]',
                f'!({OF}.parentUUID in ["GPU-2"])',
            ],
            id="selected GPUs",
        ),
    ],
)
def test_memory_of_mig_instances(amounts, annotations, selectors):
    for sizes in (SIZES, ()):  # they need not be known
        assert devices(annotated(MIG | annotations, asking(**amounts)), sizes=sizes)[
            "requests"
        ] == [instances(selectors=selectors)]


def test_init_containers_use_the_instance_of_a_later_one():
    wire = pod(asking(gpu=1, gpumem=10), inits=[init(gpu=1, gpumem=8000)], **MIG)
    assert devices(wire)["requests"] == [instances(memory="8000Mi")]
    assert claims_of(wire) == {
        "init": "main",
        "main": "main",
    }


def test_a_pod_that_takes_either_mode_gets_a_share():
    assert devices(annotated({"nvidia.com/vgpu-mode": "mig,hami-core"}))["requests"] == [
        exactly(selectors=[f'"mig,hami-core".contains({OF}.mode)'], memory="1000Mi")
    ]


@pytest.mark.parametrize(
    ("amounts", "annotations", "reason"),
    [
        param(
            {"gpu": 1, "gpumem": 100, "gpucores": 10},
            {POLICY: "topology-aware"},
            f"annotation {POLICY}=topology-aware: kube-scheduler cannot compare",
            id="N7 topology",
        ),
        param(
            {"gpu": 2, "gpumem": 100, "gpucores": 10},
            {POLICY: "topology-aware"},
            f"annotation {POLICY}=topology-aware",
            id="N8 topology of two",
        ),
    ],
)
def test_golden_examples_that_no_claim_says(amounts, annotations, reason):
    answer = translated(annotated(annotations, asking(**amounts)))
    assert isinstance(answer, Inexpressible)
    assert reason in answer.reason


def test_golden_example_of_an_unreadable_amount():
    """N6."""
    with pytest.raises(Exception, match="invalid nvidia.com/gpumem value 16Gi in container main"):
        translated(pod(asking(gpu=1, gpumem="16Gi")))


def test_a_pod_keeps_everything_but_its_amounts():
    wire = pod(
        {
            "name": "main",
            "image": "x",
            "resources": {
                "limits": {"cpu": "1", **limits(1, gpumem=3000, priority=1)},
                "requests": limits(1, gpumem=3000),
                "claims": [{"name": "nic"}],
            },
        },
        {"name": "log"},
        spec={
            "schedulerName": "default-scheduler",
            "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
        },
        team="a",
    )
    before = json.dumps(wire)
    translation = translated(wire)
    template = template_name(translation.text)
    assert json.dumps(wire) == before
    assert translation.pod["metadata"] == {
        "name": "p",
        "annotations": {"team": "a", CLAIM_REQUEST: translation.text},
    }
    assert translation.pod["spec"] == {
        "schedulerName": "default-scheduler",
        "resourceClaims": [
            {"name": "nic", "resourceClaimName": "nic"},
            {"name": "hami", "resourceClaimTemplateName": template},
        ],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "env": [{"name": "CUDA_TASK_PRIORITY", "value": "1"}],
                "resources": {
                    "limits": {"cpu": "1"},
                    "claims": [{"name": "nic"}, {"name": "hami", "request": "main"}],
                },
            },
            {"name": "log"},
        ],
    }
    assert translation.template == template
    assert has_claim(translation.pod)
    assert not has_claim(wire)


def claims_of(wire):
    spec = translated(wire).pod["spec"]
    return {
        container["name"]: container["resources"]["claims"][0]["request"]
        for container in (*spec.get("initContainers", ()), *spec["containers"])
        if "claims" in container["resources"]
    }


def test_each_container_has_its_request():
    wire = pod(
        asking("a", gpu=1, gpumem=10),
        asking("b", gpu=0),
        asking("c", gpumem=20),
        inits=[sidecar(gpu=1, gpumem=30)],
    )
    assert devices(wire)["requests"] == [
        exactly("sidecar", memory="30Mi"),
        exactly("a", memory="10Mi"),
        exactly("c", memory="20Mi"),
    ]
    assert claims_of(wire) == {"sidecar": "sidecar", "a": "a", "c": "c"}
    assert translated(wire).pod["spec"]["containers"][1]["resources"] == {}


@pytest.mark.parametrize(
    ("inits", "containers", "requests", "users"),
    [
        param(
            [init(gpu=1, gpumem=50)],
            [asking("a", gpu=1, gpumem=10), asking("b", gpu=1, gpumem=20, gpucores=5)],
            [exactly("a", memory="10Mi"), exactly("b", memory="50Mi", cores="5")],
            {"init": "b", "a": "a", "b": "b"},
            id="the largest container is raised",
        ),
        param(
            [init(gpu=2, gpumem=5)],
            [asking("a", gpu=1, gpumem=10)],
            [exactly("a", count=2, memory="10Mi")],
            {"init": "a", "a": "a"},
            id="more cards",
        ),
        param(
            [init(gpu=1)],
            [asking("a", gpu=1, gpumem=10)],
            [exactly("a", cores="100", share="100")],
            {"init": "a", "a": "a"},
            id="a whole card",
        ),
        param(
            [init(gpu=1, gpumem_percentage=60)],
            [asking("a", gpu=1, gpumem_percentage=50)],
            [{"name": "a", "firstAvailable": [of_size(81920, "48Gi"), of_size(46068, "27640Mi")]}],
            {"init": "a", "a": "a"},
            id="percent",
        ),
        param(
            [init("i", gpu=1, gpumem=10), init("j", gpu=1, gpumem=30)],
            [asking("a", gpu=0)],
            [exactly("j", memory="30Mi")],
            {"i": "j", "j": "j"},
            id="only init containers",
        ),
        param(
            [sidecar(gpu=1, gpumem=99), init(gpu=1, gpumem=30)],
            [asking("a", gpu=1, gpumem=10)],
            [exactly("sidecar", memory="99Mi"), exactly("a", memory="30Mi")],
            {"sidecar": "sidecar", "init": "a", "a": "a"},
            id="a sidecar runs beside them",
        ),
    ],
)
def test_init_containers_use_the_cards_of_a_later_one(inits, containers, requests, users):
    wire = pod(*containers, inits=inits)
    assert devices(wire)["requests"] == requests
    assert claims_of(wire) == users


def test_init_containers_with_another_unit_of_memory():
    answer = translated(pod(asking(gpu=1, gpumem=10), inits=[init(gpu=1, gpumem_percentage=50)]))
    assert "container main and init containers" in answer.reason


@pytest.mark.parametrize(
    ("annotations", "expressions"),
    [
        (
            {TYPE: "A100, T4"},
            [
                f'{OF}.productName.lowerAscii().contains("a100") || '
                f'{OF}.productName.lowerAscii().contains("t4")'
            ],
        ),
        ({NOUSE_TYPE: "T4"}, [f'!({OF}.productName.lowerAscii().contains("t4"))']),
        ({UUID: "GPU-1"}, [f'{OF}.uuid in ["GPU-1"]']),
        ({NOUSE_UUID: "GPU-1,GPU-2"}, [f'!({OF}.uuid in ["GPU-1", "GPU-2"])']),
        ({"nvidia.com/vgpu-mode": "hami-core"}, [f'"hami-core".contains({OF}.mode)']),
        ({POLICY: "binpack"}, []),
        ({NODES: "kube"}, []),
        ({"hami.io/preemptible": "false"}, []),
    ],
)
def test_annotations_that_a_claim_says(annotations, expressions):
    assert devices(annotated(annotations))["requests"] == [
        exactly(selectors=expressions, memory="1000Mi")
    ]


def test_mutex_is_no_matter_for_whole_cards():
    assert devices(annotated({POLICY: "mutex"}, asking(gpu=1)))["requests"] == [
        exactly(cores="100", share="100")
    ]


MANY = ",".join(f"GPU-{number}" for number in range(65))


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (
            annotated({POLICY: "spread"}),
            f"annotation {POLICY}=spread: kube-scheduler takes the first",
        ),
        (annotated({POLICY: "numa,binpack"}), f"annotation {POLICY}=numa,binpack"),
        (annotated({POLICY: "mutex"}), "mutex"),
        (annotated({POLICY: "mutex"} | MIG, asking(gpu=1)), "mutex"),
        (annotated({NODES: "spread"}), f"annotation {NODES}=spread: kube-scheduler chooses nodes"),
        (
            annotated({"hami.io/device-scoring-weights": "slot=1,core=1,memory=1"}),
            "annotation hami.io/device-scoring-weights=slot=1,core=1,memory=1",
        ),
        (annotated({UUID: MANY}), f"annotation {UUID}=GPU-0,GPU-1"),
        (annotated({NOUSE_TYPE: MANY}), f"annotation {NOUSE_TYPE}="),
        (annotated({UUID: ","}), "empty list"),
        (annotated({TYPE: "x" * 65}), "64 characters"),
        (
            annotated({TYPE: ",".join("\N{GRINNING FACE}" * 60 for _ in range(64))}),
            "an expression of",
        ),
        (pod(asking(gpu=33, gpumem=1)), "at most 32"),
        (
            pod(
                {
                    "name": "main",
                    "resources": {"limits": {**limits(1), "nvidia.com/mig-1g.5gb": "1"}},
                }
            ),
            "container main: nvidia.com/mig-1g.5gb=1",
        ),
        (pod(asking(gpu=1, gpumem=1), spec={"nodeName": "n1"}), "spec.nodeName=n1"),
        (
            pod(asking(gpu=1, gpumem=1, fields={"securityContext": {"privileged": True}})),
            "container main is privileged",
        ),
        (
            pod(
                asking(gpu=1, gpumem=1),
                spec={"resourceClaims": [{"name": "hami", "resourceClaimName": "x"}]},
            ),
            "a claim named hami already",
        ),
    ],
)
def test_pods_that_no_claim_serves(wire, reason):
    answer = translated(wire)
    assert isinstance(answer, Inexpressible)
    assert reason in answer.reason


LONG = {"nvidia.com/use-gputype": ",".join(f"{number:02}{'x' * 60}" for number in range(64))}


@pytest.mark.parametrize(
    "wire, reason",
    [
        param(
            pod(asking("a", gpu=20), asking("b", gpu=13)),
            "nvidia.com/gpu=33 in all containers of the pod: a claim has at most 32 GPUs",
            id="GPUs",
        ),
        param(
            annotated(
                LONG | {"nvidia.com/nouse-gpuuuid": LONG[TYPE]},
                *(asking(f"c{number}", gpu=1, gpumem_percentage=50) for number in range(32)),
            ),
            "which each of 128 alternatives of requests repeats, make a claim of",
            id="a claim that etcd does not take",
        ),
        param(
            annotated({"a": "x" * 262_100}),
            "metadata.annotations: 262176 bytes with that of the claim, and a pod has at most 262144",
            id="annotations",
        ),
    ],
)
def test_sizes_that_the_api_server_refuses(wire, reason):
    answer = translated(wire, sizes=range(1000, 5000, 1000))
    assert isinstance(answer, Inexpressible)
    assert reason in answer.reason


def test_init_containers_do_not_add_to_the_gpus_of_a_claim():
    assert isinstance(translated(pod(asking(gpu=32), inits=[init(gpu=32)])), Translation)


def test_a_default_policy_that_no_claim_says():
    assert (
        "--gpu-scheduler-policy=topology-aware"
        in translated(pod(asking(gpu=1)), policy="topology-aware").reason
    )


def test_several_vendors_in_a_pod():
    wire = pod(
        asking("a", gpu=1, gpumem=1), {"name": "b", "resources": {"limits": {"amd.com/gpu": "1"}}}
    )
    assert "container b: amd.com/gpu=1" in translated(wire, catalog=vendors(chart_config())).reason


@pytest.mark.parametrize(
    ("sizes", "reason"), [((), "there is no GPU yet"), (range(1000, 1009), "there are 9")]
)
def test_percent_needs_to_know_a_few_sizes(sizes, reason):
    assert reason in translated(pod(asking(gpumem_percentage=50)), sizes=sizes).reason
    assert isinstance(translated(pod(asking(gpumem=50)), sizes=sizes), Translation)


def test_names_of_resources_are_those_of_the_configuration():
    config = NvidiaConfig(
        resource_count_name="example.com/gpu", resource_memory_name="example.com/mib"
    )
    wire = pod(
        {"name": "main", "resources": {"limits": {"example.com/gpu": "1", "example.com/mib": "5"}}}
    )
    translation = translated(wire, catalog=vendors(DeviceConfig(nvidia=config)))
    assert translation.pod["spec"]["containers"][0]["resources"] == {
        "claims": [{"name": "hami", "request": "main"}]
    }


@pytest.mark.parametrize(
    "wire",
    [
        pod({"name": "main"}),
        pod(asking(gpu=0)),
        pod(asking(priority=1)),
        pod({"name": "main", "resources": {"limits": {"amd.com/gpu": "1"}}}),
    ],
)
def test_nothing_to_translate(wire):
    assert translated(wire, catalog=vendors(chart_config())) is None


def test_one_text_for_equal_pods_and_others_for_different_ones():
    def template(memory, **annotations):
        return translated(pod(asking(gpu=1, gpumem=memory), **annotations)).template

    assert template(1000, a="b") == template(1000) != template(1001)


EXPRESSION = re.compile(  # what may stand outside of literals
    r'(device\.attributes\[""\]\.'
    r'(productName\.lowerAscii\(\)\.contains\(""\)|(uuid|parentUUID) in \[""(, "")*\]|memoryMiB == [0-9]+)'
    r'|device\.attributes\[""\]\.memoryMiB >= device\.attributes\[""\]\.parentMemoryMiB \* 50 / 100'
    r'|""\.contains\(device\.attributes\[""\]\.mode\)| \|\| |!\(|\))*'
)
LITERAL = re.compile(
    r'"((?:[^"\\\n\r]|\\[bfnrt"\\]|\\u00[01][0-9a-f])*)"'
)  # of CEL: a part of its grammar
TEXTS = st.text(
    st.one_of(st.sampled_from("\"\\\n\r`'|)]u"), st.characters(exclude_categories=["Cs"])),
    max_size=70,
)


@given(types=TEXTS, uuids=TEXTS, mode=TEXTS | TEXTS.map("mig{}".format), no=st.booleans())
def test_no_value_leaves_its_literal(types, uuids, mode, no):
    keys = (NOUSE_TYPE, NOUSE_UUID) if no else (TYPE, UUID)
    given_ = {keys[0]: types, keys[1]: uuids, "nvidia.com/vgpu-mode": mode}
    answer = translated(annotated(given_, asking(gpumem_percentage=50)))
    if isinstance(answer, Inexpressible):
        return
    words = {item.strip() for text in (types, uuids) for item in text.split(",")}
    known = {mode, "gpu.hami.io"} | words | {word.lower() for word in words}
    (request,) = render_template(answer.text)["spec"]["spec"]["devices"]["requests"]
    for part in request.get("firstAvailable") or [request["exactly"]]:
        for selector in part.get("selectors", ()):
            expression = selector["cel"]["expression"]
            assert {json.loads(found[0]) for found in LITERAL.finditer(expression)} <= known
            assert EXPRESSION.fullmatch(LITERAL.sub('""', expression)), expression


@given(
    st.text(max_size=50)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "requests",
                        "name",
                        "count",
                        "memory",
                        "cores",
                        "useTypes",
                        "cardSizes",
                        "percent",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_an_annotation_of_anybody_is_read_or_refused(text):
    try:
        template = render_template(text)
    except MalformedInput:
        return
    assert template["metadata"]["name"] == template_name(text)


ONE = {"requests": [{"name": "main", "count": 1}]}


@pytest.mark.parametrize(
    "change",
    [
        {"requests": []},
        {"requests": [{"name": "main", "count": 0}]},
        {"requests": [{"name": "Main", "count": 1}]},
        {"requests": [{"name": "main", "count": 33}]},
        {"requests": [{"name": "main", "count": 1}] * 2},
        {"requests": [{"name": "main", "count": 1, "cores": 101}]},
        {"requests": [{"name": "main", "count": 1, "x": 1}]},
        {"requests": [{"name": "main", "count": 1, "percent": 50}]},
        {"tolerations": [{"operator": "Exists"}]},
        {"cardSizes": [0]},
        {"cardSizes": list(range(1, 10))},
        {"useTypes": ["x" * 65]},
        {"useUuids": ["x"] * 65},
        {"requests": [{"name": "a", "count": 20}, {"name": "b", "count": 20}]},
        {"config": []},
        {"useTypes": ["x" * 64] * 600},
    ],
)
def test_annotations_that_the_webhook_does_not_write(change):
    render_template(json.dumps(ONE))
    with pytest.raises(MalformedInput, match=CLAIM_REQUEST):
        render_template(json.dumps(ONE | change))
