"""Admission without a call: policies of the API server against the webhook, which must make the same of each pod."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hami.codec.device_config import parse_device_config
from hami.vendors.entry_points import full_catalog
from testing.cases import cases
from testing.cluster import MANIFESTS
from testing.eventually import eventually
from testing.gpu_operator import RUNTIME_CLASS
from testing.kube import ApiError, Kube
from testing.pods import RESOURCES, container, pod
from testing.sandbox import Sandbox, named
from testing.scheduler import Certificates, Scheduler, webhook_configuration
from testing.yaml_text import read_documents
from tools.admission import FOLDER, generated_files

pytestmark = pytest.mark.since(1, 36)
Object = dict[str, Any]
OTHER = {
    "defaultGPUNum": 2,
    "runtimeClassName": "nvidia",
    "gpuCorePolicy": "force",
    "memoryFactor": 1000,
    "defaultCores": 5,
}
PODS = 2500
"""For each device configuration."""
MODE, USER = "hami-e2e/admission", "user"
AMOUNTS = (
    "1",
    "1",
    "1",
    "2",
    "0",
    "3",
    "50",
    "99",
    "100",
    "101",
    "1000",
    "3000",
    "1k",
    "1e2",
    "1e3",
    "100000m",
    "99500m",
    "500m",
    "0.5",
    "-1",
    "1Mi",
    "2147483647",
    "2147483648",
    "4G",
    "9999999999999999999",
    "1E",
)
VARIABLES = (
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
    "CUDA_DISABLE_CONTROL",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_SM_LIMIT_1",
    "CUDA_DEVICE_MEMORY_LIMITS",
    "CUDA_OVERSUBSCRIBE",
    "NVIDIA_GPU_MEMORY_REQUEST",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "LD_PRELOAD",
    "A",
)
LIMITS = ("100", "100", "60", "3", "1", "0", "101", "", "60 ", "060", "+60", "6e1", "all")
WORDS = {
    "hami.io/node-scheduler-policy": (
        "spread",
        "Spread",
        "KUBE ",
        "binpak",
        "spread,binpack",
        "",
        "x" * 300,
    ),
    "hami.io/gpu-scheduler-policy": (
        "numa",
        "BinPack, Numa,",
        "mutex,binpak",
        " , ",
        "",
        "topology-aware",
    ),
    "hami.io/device-scoring-weights": (
        "slot=1,core=1,memory=3",
        "Slot=1, core = 1,memory=0",
        "slot=0,core=0,memory=0",
        "slot=1,slot=1,memory=3",
        "slot=1,core=1",
        "slot=-1,core=1,memory=1",
        "",
    ),
    "nvidia.com/numa-bind": ("true", "TRUE", "1", "yes", "", " false"),
    "nvidia.com/vgpu-mode": ("mig", "MIG", "hami-core,mig", "vgpu", ""),
    "nvidia.com/use-gputype": (
        "A100",
        "A100,V100",
        '["A100"]',
        ",",
        "",
        "Tesla V100-PCIE-32GB",
        "a;b",
    ),
    "nvidia.com/nouse-gpuuuid": ("GPU-a", "GPU-a,\nGPU-b\n", "GPU-a\nGPU-b", "'GPU-a'", " "),
}
SCHEDULERS = (
    None,
    None,
    None,
    "default-scheduler",
    "hami-scheduler",
    "hami-scheduler-claims",
    "other",
)


def generated_pod(number: int) -> Object:
    """Returns the same pod each time, of which about one in three is refused."""
    chance = random.Random(number)

    def part(name: str) -> Object:
        names = [name for name in RESOURCES if chance.random() < 0.4]
        amounts = {
            name: chance.choice(AMOUNTS[:12] if chance.random() < 0.9 else AMOUNTS)
            for name in names
        }
        if "priority" in amounts:
            amounts["priority"] = chance.choice(("1", "1", "2", "1e2"))  # others need a right
        made = container(name, privileged=chance.random() < 0.03, **amounts)
        if chance.random() < 0.1:  # a request without a limit becomes one beside limits
            made.setdefault("resources", {})["requests"] = {
                RESOURCES[name]: chance.choice(AMOUNTS[:6])
                for name in chance.sample(sorted(RESOURCES), 2)
            }
        if chance.random() < 0.3:
            made["env"] = [variable(chance.choice(VARIABLES)) for _ in range(chance.randint(1, 3))]
        return made

    def variable(name: str) -> Object:
        value = chance.choice(("none", "void", "all", "", "0", None))
        return (
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
            if value is None
            else {"name": name, "value": value}
        )

    made = pod(
        f"p{number}",
        containers=[part(f"c{index}") for index in range(chance.randint(1, 3))],
        inits=[part(f"i{index}") for index in range(chance.choice((0, 0, 1, 2)))],
        scheduler=chance.choice(SCHEDULERS),
        node_name="n0" if chance.random() < 0.02 else None,
    )
    if chance.random() < 0.05:
        made["spec"]["runtimeClassName"] = "nvidia"
    if chance.random() < 0.15:
        made["metadata"]["annotations"]["nvidia.com/gpucores-limit"] = chance.choice(LIMITS)
    for key, texts in WORDS.items():
        if chance.random() < 0.08:
            made["metadata"]["annotations"][key] = chance.choice(texts)
    if chance.random() < 0.03:
        made["metadata"]["labels"]["hami.io/webhook"] = "ignore"
    if chance.random() < 0.02:
        made["metadata"]["annotations"]["hami.io/vgpu-node"] = "n0"
    return made


def admitted(kube: Kube, namespace: str, item: Object) -> Object | None:
    """Returns the specification of a pod that is admitted and not kept, with its annotations; ``None`` if it is
    refused."""
    try:
        made = kube.dry_run(item, namespace)
    except ApiError as error:
        assert error.status in (400, 403, 422), error
        return None
    return {**made["spec"], "annotations": made["metadata"].get("annotations", {})}


@pytest.fixture
def user(sandbox: Sandbox) -> Kube:
    """A client with the role ``edit`` in the namespaces of the test: administrators may write all keys."""
    grant_edit(sandbox.kube, sandbox.namespace)
    return sandbox.kube.impersonating(USER, "system:authenticated")


@pytest.fixture(params=["shipped", "other"])
def settings(
    request: pytest.FixtureRequest, sandbox: Sandbox, scheduler: Scheduler, tmp_path: Path
) -> list[Object]:
    """The policies for a device configuration, which the webhook has, too."""
    if request.param == "shipped":
        return read_documents((FOLDER / "policies.yaml").read_text())
    text = (MANIFESTS / "device-config.yaml").read_text()
    limits = {namespace: 40 for namespace in (sandbox.namespace, mutated_namespace(sandbox))}
    for name, value in {**OTHER, "gpucoresLimits": json.dumps(limits)}.items():
        text, count = re.subn(
            rf"^  {name}: .*$", f"  {name}: {value}", text, count=1, flags=re.MULTILINE
        )
        text = text if count else text.replace("nvidia:\n", f"nvidia:\n  {name}: {value}\n", 1)
    config = parse_device_config(text, "other")
    file = tmp_path / "device-config.yaml"
    file.write_text(text)
    scheduler.run_with(device_config_file=str(file))
    made = generated_files(full_catalog(config), config.nvidia)[FOLDER / "policies.yaml"]
    return read_documents(made)


@pytest.fixture
def mutated(
    settings: list[Object],
    certificates: Certificates,
    scheduler: Scheduler,
    sandbox: Sandbox,
    user: Kube,
) -> Iterator[str]:
    """A namespace in which policies admit pods, and the webhook does not."""
    kube, namespace = sandbox.kube, mutated_namespace(sandbox)
    kube.create(named("Namespace", namespace, labels={MODE: "policies"}))
    kube.create(RUNTIME_CLASS)
    grant_edit(kube, namespace)
    webhooks = webhook_configuration(certificates, scheduler.port)
    for webhook in webhooks["webhooks"]:
        webhook["namespaceSelector"]["matchExpressions"].append(
            {"key": MODE, "operator": "NotIn", "values": ["policies"]}
        )
    kube.apply(webhooks)
    for document in settings:
        if (constraints := document["spec"].get("matchConstraints")) is not None:
            constraints["namespaceSelector"]["matchExpressions"] = [
                {"key": MODE, "operator": "In", "values": ["policies"]}
            ]
        kube.apply(document)
    good, bad = pod("probe", gpu=1), pod("probe", gpu=1, percent=101)
    eventually(
        lambda: (
            (admitted(user, namespace, good) or {}).get("schedulerName") == "hami-scheduler"
            and admitted(user, namespace, bad) is None
            and admitted(user, sandbox.namespace, good) is not None
        ),
        "the policies and the rights of the user are in force",
    )
    yield namespace
    for document in settings:
        kube.delete(document["kind"], document["metadata"]["name"])
    kube.apply(webhook_configuration(certificates, scheduler.port))
    kube.delete("RuntimeClass", "nvidia")
    kube.delete("Namespace", namespace)


def mutated_namespace(sandbox: Sandbox) -> str:
    return f"{sandbox.namespace}-p"


def grant_edit(kube: Kube, namespace: str) -> None:
    kube.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "edit"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "edit",
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        },
        namespace,
    )


NO_REQUEST = (
    "is no request of devices: write nvidia.com/gpumem under resources.limits of a container"
)
WARNINGS = [
    (
        "annotation-named-like-a-resource",
        pod("p", annotations={"nvidia.com/gpumem": "4Gi"}),
        f"annotation nvidia.com/gpumem {NO_REQUEST}",
    ),
    (
        "label-named-like-a-resource",
        pod("p", labels={"nvidia.com/gpumem": "4000"}),
        f"label nvidia.com/gpumem {NO_REQUEST}",
    ),
    (
        "unknown-annotation",
        pod("p", annotations={"hami.io/wish": "x"}, gpu=1),
        "annotation hami.io/wish has no effect: HAMi knows none of that name",
    ),
    (
        "label-as-annotation",
        pod("p", annotations={"hami.io/webhook": "ignore"}, gpu=1),
        "annotation hami.io/webhook has no effect: write it as a label",
    ),
    (
        "word-of-nodes",
        pod("p", annotations={"hami.io/device-cordon": "GPU-1"}),
        "annotation hami.io/device-cordon has no effect: write it on nodes",
    ),
    (
        "annotation-as-label",
        pod("p", labels={"hami.io/gpu-scheduler-policy": "spread"}, gpu=1),
        "label hami.io/gpu-scheduler-policy has no effect: write it as an annotation",
    ),
    (
        "another-scheduler",
        pod("p", gpu=1, scheduler="volcano"),
        "schedulerName volcano is not HAMi's: the pod gets no devices from HAMi; leave it out, or write hami-scheduler",
    ),
    ("a-request", pod("p", gpu=1, gpumem=4000, gpucores=100), None),
    ("nothing", pod("p", annotations={"app": "x"}), None),
]
WITH_MPS = container(gpu=1) | {"env": [{"name": "CUDA_MPS_LOG_DIRECTORY", "value": "/x"}]}
OF_CONTAINERS = [
    ("memory", pod("p", gpu=1, gpumem="1Gi"), "nvidia.com/gpumem with a unit"),
    ("cores", pod("p", gpu=1, gpumem=1, gpucores=101), "more than 100 of nvidia.com/gpucores"),
    ("mps", pod("p", containers=[WITH_MPS]), "a variable that starts with CUDA_MPS_"),
]


@pytest.mark.parametrize("settings", ["shipped"], indirect=True)
@cases("item, warning", *WARNINGS)
def test_policies_warn_of_the_same_as_the_webhook(sandbox, user, mutated, item, warning):
    def shown(namespace: str) -> list[str]:
        return [
            text.rpartition("hami-nvidia-wishes': ")[2] for text in user.warnings(item, namespace)
        ]

    assert shown(sandbox.namespace) == ([] if warning is None else [warning])
    eventually(
        lambda: shown(mutated) == shown(sandbox.namespace),
        lambda: f"the policy warns: {shown(mutated)}",
    )


@pytest.mark.parametrize("settings", ["shipped"], indirect=True)
@cases("item, warning", *OF_CONTAINERS)
def test_policies_warn_of_amounts_that_no_device_has_and_of_mps(user, mutated, item, warning):
    eventually(
        lambda: [warning in text for text in user.warnings(item, mutated)] == [True],
        lambda: f"the policy warns: {user.warnings(item, mutated)}",
    )


def test_policies_make_the_same_of_each_pod_as_the_webhook(sandbox, user, mutated):
    def both(number: int) -> tuple[int, Object | None, Object | None]:
        item = generated_pod(number)
        return number, admitted(user, sandbox.namespace, item), admitted(user, mutated, item)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(both, range(PODS)))
    differing = [number for number, by_webhook, by_policies in results if by_webhook != by_policies]
    assert not differing, [result for result in results if result[0] in differing[:3]]
    refused = sum(by_webhook is None for _, by_webhook, _ in results)
    assert PODS / 5 < refused < PODS * 4 / 5
