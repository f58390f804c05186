"""What Kueue counts for pods with devices, by the settings of the examples, and what HAMi charges: where
docs/queues.md says that both agree, they do for generated pods, and elsewhere they differ within its bounds.

The model of Kueue is made after its source, v0.16 to v0.19: pkg/workload/resources.go, UseLimitsAsMissingRequestsInPod;
pkg/workload/workload.go, totalRequestsFromPodSets; k8s.io/component-helpers, resource/helpers.go, PodRequests.
"""

import math
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path

from hami.cli.people import make_admit
from hami.codec.documents import parse_own_yaml
from hami.inspect.cluster import InspectedCluster
from hami.inspect.manifests import read_manifests
from hami.model import Pod
from hami.scheduling.refusal import Choice
from hami.scheduling.usage import total_charge
from hami.state import dry_run
from testing.builders import gpu, node
from testing.cases import cases
from testing.records import held, record
from testing.yaml_text import read_documents

FOLDER = Path(__file__).parent.parent / "examples"
SETTINGS = parse_own_yaml((FOLDER / "kueue-configuration.yaml").read_text())["resources"]
GPU, MEMORY, CORES, PERCENT = (
    f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpucores", "gpumem-percentage")
)
TOTAL_MEMORY, TOTAL_CORES = "nvidia.com/total-gpumem", "nvidia.com/total-gpucores"
NODE_MIB = 81_559  # of each device; an H100 of 80 GB as the driver reports it
WITH_PERCENT = {
    **SETTINGS,
    "transformations": [
        *SETTINGS["transformations"],
        {
            "input": PERCENT,
            "strategy": "Replace",
            "multiplyBy": GPU,
            "outputs": {TOTAL_MEMORY: str(NODE_MIB / 100)},
        },
    ],
}
WITHOUT_MULTIPLIER = {
    **SETTINGS,
    "transformations": [
        {key: value for key, value in item.items() if key != "multiplyBy"}
        for item in SETTINGS["transformations"]
    ],
}
BINPACK = {
    "hami.io/gpu-scheduler-policy": "binpack"
}  # so that large and small containers get different devices
VIEW = InspectedCluster(
    record(
        [
            node(
                "n",
                *(
                    gpu(f"GPU-{index}", index=index, memory_mib=NODE_MIB, slots=20)
                    for index in range(8)
                ),
            )
        ],
        [
            held(
                f"other-{index}",
                "n",
                (f"GPU-{index}", NODE_MIB - 4000 * (index + 1), 20),
                namespace="other",
            )
            for index in range(4)
        ],
    )
).view
ADMIT = make_admit("hami-scheduler")
PODS = 1000


# Kueue


def kueue_requests(spec, settings):
    """What Kueue counts for one pod with *spec*, by resource, in units of the resource."""
    excluded = tuple(settings.get("excludeResourcePrefixes", ()))
    requests = {
        name: amount for name, amount in pod_requests(spec).items() if not name.startswith(excluded)
    }
    transformations = {item["input"]: item for item in settings["transformations"]}
    counted = Counter()
    for name, amount in requests.items():
        item = transformations.get(name)
        if item is None or item.get("strategy", "Retain") == "Retain":
            counted[name] += amount
        if item is not None:
            multiplier = requests.get(item.get("multiplyBy"), 1)
            for output, factor in item["outputs"].items():
                counted[output] += amount * multiplier * Decimal(factor)
    return {name: math.ceil(amount) for name, amount in counted.items()}


def pod_requests(spec):
    """What the containers of a pod request at the most at a time, resource by resource; limits count where requests are
    missing."""
    sidecars, initial = Counter(), Counter()
    for container in spec.get("initContainers", ()):
        amounts = container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars += amounts
            initial |= sidecars
        else:
            initial |= amounts + sidecars
    running = sum(map(container_requests, spec["containers"]), sidecars)
    return running | initial


def container_requests(container):
    resources = container.get("resources", {})
    amounts = {**resources.get("limits", {}), **resources.get("requests", {})}
    return Counter({name: int(text) for name, text in amounts.items()})


# HAMi


def charged(spec):
    """The MiB and percent that HAMi charges for a pod with *spec*, and that its quotas count; ``None`` if it does not
    fit the node."""
    wire = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": spec,
        "metadata": {"name": "p", "namespace": "default", "annotations": BINPACK},
    }
    pod = ADMIT(VIEW, wire, "default")
    assert isinstance(pod, Pod), pod
    answer, view = dry_run.assume(VIEW, pod, ["n"])
    if not isinstance(answer, Choice):
        return None
    ((vendor, charges),) = view.bookings[pod.ref.uid].charges
    assert vendor == "NVIDIA"
    assert view.used["default", vendor] == total_charge(charges)
    total = total_charge(charges)
    return total.memory_mib, total.cores


# Pods


def some_container(chance, **limits):
    """A container with these limits, now and then also as requests, which must be the same."""
    amounts = {name: str(amount) for name, amount in limits.items() if amount is not None}
    both = (
        {"limits": amounts, "requests": amounts} if chance.random() < 0.3 else {"limits": amounts}
    )
    return {"name": "c", "resources": both} if amounts else {"name": "c"}


def some_amounts(chance, count=None):
    """GPUs and memory of each, and cores of each now and then."""
    return {
        GPU: count or chance.choice((1, 1, 1, 2, 4)),
        MEMORY: chance.randrange(1, 12_000),
        CORES: chance.choice((None, chance.randrange(1, 30))),
    }


def pod_of(inits=(), sidecars=(), apps=()):
    """The specification of a pod; sidecars and init containers alternate as long as there are both."""
    sidecars = [{**container, "restartPolicy": "Always"} for container in sidecars]
    first = [container for pair in zip(inits, sidecars) for container in pair]
    rest = (*inits[len(sidecars) :], *sidecars[len(inits) :])
    containers = [*first, *rest]
    return {
        "initContainers": [
            {**container, "name": f"i{number}"} for number, container in enumerate(containers)
        ],
        "containers": [
            {**container, "name": f"c{number}"} for number, container in enumerate(apps)
        ],
    }


def in_one_container(chance, **limits):
    """A pod of one to three containers of any kind, of which one has *limits*."""
    kinds = [chance.choice(("inits", "sidecars", "apps")) for _ in range(chance.randrange(3))] + [
        "apps"
    ]
    containers = {"inits": [], "sidecars": [], "apps": []}
    with_devices = chance.randrange(len(kinds))
    for number, kind in enumerate(kinds):
        containers[kind].append(
            some_container(chance, **(limits if number == with_devices else {}))
        )
    return pod_of(**containers)


def with_memory(chance):
    return in_one_container(chance, **some_amounts(chance))


def running_together(chance):
    return pod_of(
        sidecars=[
            some_container(chance, **some_amounts(chance)) for _ in range(chance.randrange(3))
        ],
        apps=[
            some_container(chance, **some_amounts(chance)) for _ in range(chance.randrange(1, 3))
        ],
    )


def all_alike(chance):
    amounts = some_amounts(chance)
    return pod_of(
        sidecars=[some_container(chance, **amounts) for _ in range(chance.randrange(3))],
        apps=[some_container(chance, **amounts) for _ in range(chance.randrange(1, 4))],
    )


def one_gpu_each(chance):
    return pod_of(
        sidecars=[
            some_container(chance, **some_amounts(chance, 1)) for _ in range(chance.randrange(3))
        ],
        apps=[
            some_container(chance, **some_amounts(chance, 1)) for _ in range(chance.randrange(1, 3))
        ],
    )


def with_inits(chance):
    return {
        **(together := running_together(chance)),
        "initContainers": [
            *together["initContainers"],
            *(
                {**some_container(chance, **some_amounts(chance)), "name": f"p{number}"}
                for number in range(chance.randrange(1, 3))
            ),
        ],
    }


def without_memory(chance):
    return in_one_container(chance, **{GPU: chance.choice((1, 2, 4))})


def without_count(chance):
    return in_one_container(chance, **{**some_amounts(chance), GPU: None})


def with_percent(chance):
    return in_one_container(
        chance, **{GPU: chance.choice((1, 2, 4)), PERCENT: chance.randrange(1, 101)}
    )


def with_both(chance):
    return in_one_container(chance, **some_amounts(chance) | {PERCENT: chance.randrange(1, 101)})


def devices_of(spec):
    """The GPUs, MiB of each and percent of each of all containers that request GPUs."""
    amounts = [container_requests(item) for item in (*spec["initContainers"], *spec["containers"])]
    return [(item[GPU], item[MEMORY], item[CORES]) for item in amounts if item[GPU]]


KINDS = [
    with_memory,
    with_memory,
    running_together,
    all_alike,
    one_gpu_each,
    with_inits,
    without_memory,
    without_count,
    with_percent,
    with_both,
]


def check(kind, spec, memory, cores):
    """Compares what Kueue counts for a pod of *kind* with *memory* and *cores*, which HAMi charges."""
    counted = kueue_requests(spec, SETTINGS)
    kueue = counted.get(TOTAL_MEMORY, 0), counted.get(TOTAL_CORES, 0)
    devices = devices_of(spec)
    gpus = sum(count for count, _, _ in devices)
    match kind.__name__:
        case "with_memory":
            assert kueue == (memory, cores)
            assert counted[GPU] == gpus
        case "running_together":
            assert kueue == (
                gpus * sum(mib for _, mib, _ in devices),
                gpus * sum(percent for _, _, percent in devices),
            )
            assert kueue[0] >= memory
            assert kueue[1] >= cores
        case "all_alike":
            assert kueue == (len(devices) * memory, len(devices) * cores)
        case "one_gpu_each":
            counted = kueue_requests(spec, WITHOUT_MULTIPLIER)
            assert (counted[TOTAL_MEMORY], counted.get(TOTAL_CORES, 0)) == (memory, cores)
        case "with_inits":
            assert max(count * mib for count, mib, _ in devices) <= min(kueue[0], memory)
            assert memory <= sum(count * mib for count, mib, _ in devices)
            assert cores <= sum(count * percent for count, _, percent in devices)
        case "without_memory":
            assert kueue == (0, 0)
            assert (memory, cores) == (NODE_MIB * gpus, 100 * gpus)
        case "without_count":
            assert kueue == (memory, cores)
            assert GPU not in counted
        case "with_percent":
            assert kueue == (0, 0)
            assert PERCENT in counted
            total = kueue_requests(spec, WITH_PERCENT)
            assert 0 <= total[TOTAL_MEMORY] - memory <= gpus
            assert PERCENT not in total
            assert cores == (100 * gpus if total.get(TOTAL_MEMORY) == NODE_MIB * gpus else 0)
        case "with_both":
            assert kueue[0] == memory
            assert kueue_requests(spec, WITH_PERCENT)[TOTAL_MEMORY] > memory
        case _:
            raise AssertionError(kind)


def test_kueue_counts_what_hami_charges_where_the_page_says_so():
    chance, placed = random.Random(28), Counter()
    while placed.total() < PODS:
        kind = chance.choice(KINDS)
        spec = kind(chance)
        if (charge := charged(spec)) is not None:
            check(kind, spec, *charge)
            placed[kind] += 1
    assert min(placed.values()) > PODS / len(KINDS) / 2


def test_init_containers_can_make_either_of_both_count_more():
    chance, less, more = random.Random(28), 0, 0
    for _ in range(200):
        spec = with_inits(chance)
        if (charge := charged(spec)) is not None:
            counted = kueue_requests(spec, SETTINGS)[TOTAL_MEMORY]
            less, more = less + (counted < charge[0]), more + (counted > charge[0])
    assert less
    assert more


def test_kueue_sees_deployments_and_bare_pods_after_admission():
    """It makes workloads of their pods, not of templates: what admission adds counts, the whole memory does not."""
    wire = {"metadata": {"name": "p"}, "spec": pod_of(apps=[{"resources": {"limits": {GPU: "2"}}}])}
    admitted = ADMIT(VIEW, wire, "default").containers[0].limits
    assert kueue_requests(
        {"containers": [{"resources": {"limits": dict(admitted)}}]}, SETTINGS
    ) == {GPU: 2, TOTAL_CORES: 200}


@cases(
    "limits, counted",
    ("as the settings say", {GPU: 2, MEMORY: 8000}, {GPU: 2, TOTAL_MEMORY: 16_000}),
    (
        "priority is no amount",
        {GPU: 1, MEMORY: 8000, "nvidia.com/priority": 1},
        {GPU: 1, TOTAL_MEMORY: 8000},
    ),
    ("others stay", {"cpu": 2, GPU: 1}, {"cpu": 2, GPU: 1}),
)
def test_what_kueue_counts(limits, counted):
    resources = {"limits": {name: str(amount) for name, amount in limits.items()}}
    assert kueue_requests({"containers": [{"resources": resources}]}, SETTINGS) == counted


def queue():
    """The quota of the example: amounts by resource."""
    documents = read_documents((FOLDER / "kueue.yaml").read_text())
    (group,) = next(item for item in documents if item["kind"] == "ClusterQueue")["spec"][
        "resourceGroups"
    ]
    (flavor,) = group["flavors"]
    quota = {item["name"]: item["nominalQuota"] for item in flavor["resources"]}
    assert list(quota) == group["coveredResources"]
    return quota


def test_the_queue_of_the_example_has_room_for_one_job_at_a_time():
    text = (FOLDER / "kueue.yaml").read_text()
    jobs = []
    for source in read_manifests(text, "kueue.yaml")[0]:
        counted = kueue_requests(source.pod["spec"], SETTINGS)
        assert counted.keys() == queue().keys()
        jobs.append(Counter({name: source.count * amount for name, amount in counted.items()}))
    assert all(job <= Counter(queue()) for job in jobs)
    together = sum(jobs, Counter())
    assert [name for name, amount in together.items() if amount > queue()[name]] == [TOTAL_MEMORY]
