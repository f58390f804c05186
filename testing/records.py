"""Random small clusters and pods that wait, as records."""

from dataclasses import replace
from datetime import UTC, datetime

from hami.inspect.cluster import ClusterRecord, InspectedCluster
from testing.builders import APP, INIT, SIDECAR, gpu, gpus, node, pod, quota
from testing.seeds import some_scope, some_scopes

NOON = datetime(2026, 8, 21, 12, tzinfo=UTC)
MODELS = {"NVIDIA A100": 80_000, "NVIDIA T4": 16_000, "NVIDIA A40": 46_000}
PENDING = "waits"


def record(nodes, pods=(), quotas=()):
    """Returns a record."""
    return ClusterRecord(taken=NOON, nodes=tuple(nodes), pods=tuple(pods), quotas=tuple(quotas))


def held(name, on, *shares, namespace="default", **fields):
    """Returns a pod that holds *shares* (uuid, MiB, cores) of the node *on*, all of one container."""
    text = "".join(f"{uuid},NVIDIA,{memory},{cores}:" for uuid, memory, cores in shares) + ";"
    return pod(
        gpus(len(shares), 1, 0),
        name=name,
        namespace=namespace,
        node_name=on,
        phase="Running",
        annotations={"hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": text},
        **fields,
    )


def some_nodes(chance):
    """Returns one to four nodes with one to four cards."""
    nodes = []
    for number in range(chance.randrange(1, 5)):
        model = chance.choice(list(MODELS))
        devices = [
            gpu(
                f"GPU-{number}-{index}",
                model=model,
                memory_mib=MODELS[model],
                index=index,
                numa=index // 2,
                slots=chance.choice((1, 2, 10)),
                healthy=chance.random() > 0.1,
            )
            for index in range(chance.randrange(1, 5))
        ]
        cordoned = [device.uuid for device in devices if chance.random() < 0.1]
        notes = {"hami.io/device-cordon": ",".join(cordoned)} if cordoned else {}
        nodes.append(
            replace(
                node(f"n{number}", *devices, annotations=notes), unschedulable=chance.random() < 0.1
            )
        )
    return nodes


def some_pods(chance, nodes, cluster):
    """Returns pods that hold parts of the cards, without taking one of them twice."""
    pods = []
    for host in nodes:
        for usage in cluster.view.usages(host.name).get("NVIDIA", ()):
            memory, cores = usage.device.memory_mib, 100
            for number in range(chance.randrange(usage.device.slots + 1)):
                share = chance.randrange(memory + 1), chance.randrange(cores + 1)
                memory, cores = memory - share[0], cores - share[1]
                pods.append(
                    held(
                        f"p{number}-{usage.device.uuid}",
                        host.name,
                        (usage.device.uuid, *share),
                        namespace=chance.choice(("default", "other")),
                        scope=some_scope(chance),
                    )
                )
    return pods


def some_pending(chance):
    """Returns a pod that waits, with one or two containers."""

    def some(kind):
        memory = chance.choice((None, chance.randrange(1, 100_000)))
        return gpus(
            chance.choice((1, 1, 1, 2, 3)),
            memory,
            chance.choice((None, chance.randrange(101))),
            percent=chance.choice((None, chance.randrange(1, 101))) if memory is None else None,
            kind=kind,
        )

    containers = [some(APP), *(some(kind) for kind in (INIT, SIDECAR) if chance.random() < 0.15)]
    notes = {}
    if chance.random() < 0.25:
        notes["nvidia.com/use-gputype"] = chance.choice(("A100", "T4", "H100"))
    if chance.random() < 0.1:
        notes["nvidia.com/use-gpuuuid"] = "GPU-0-0"
    if chance.random() < 0.1:
        notes["hami.io/gpu-scheduler-policy"] = "mutex"
    if chance.random() < 0.1:
        notes["nvidia.com/numa-bind"] = "true"
    return pod(
        *containers,
        name=PENDING,
        annotations=notes,
        phase="Pending",
        scheduler_name="hami-scheduler",
        scope=some_scope(chance),
    )


def some_quotas(chance):
    """Returns a quota now and then."""
    if chance.random() < 0.8:
        return []
    return [
        quota(
            gpumem=chance.randrange(100_000),
            gpucores=chance.randrange(200),
            scopes=some_scopes(chance),
        )
    ]


def some_record(chance):
    """Returns a record with a pod that waits, named PENDING."""
    nodes = some_nodes(chance)
    pods = some_pods(chance, nodes, InspectedCluster(record(nodes)))
    return record(nodes, [*pods, some_pending(chance)], some_quotas(chance))
