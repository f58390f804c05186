"""Devices, requests and pods by the roll of a seeded die: small, so that they collide, with all kinds of state."""

from dataclasses import replace

from hami.model import Budget, NodePreference, NodeRequirement, PodScope, ScopeRequirement
from testing.builders import APP, INIT, SIDECAR, container, gpus, pod_request, usage

CPU = container({"cpu": "1"})
MODELS = ("NVIDIA A40", "NVIDIA A100", "NVIDIA L4")
POLICIES = (
    "spread",
    "binpack",
    "mutex",
    "topology-aware",
    "numa",
    "numa,spread",
    "binpack,numa",
    "mutex,binpack",
    "topology-aware,mutex",
)
MEMORIES = (
    (None, None),
    (0, 50),
    (100, None),
    (300, None),
    (500, 20),
    (1000, None),
    (None, 33),
)  # MiB and percent


def some_usages(rng, most=8, least=0):
    """The devices of a node, some of them in use, a few overcommitted."""
    uuids = [f"GPU-{place}" for place in range(rng.randint(least, most))]
    return [
        usage(
            uuid,
            slots_used=rng.choice((0, 0, 0, 1, 3)),
            memory_used_mib=rng.choice((0, 0, 0, 100, 500, 1000)),
            cores_used=rng.choice((0, 0, 0, 30, 50, 120)),
            index=place,
            **some_device(rng, uuids),
        )
        for place, uuid in enumerate(uuids)
    ]


def some_device(rng, uuids=()):
    """Fields of a device."""
    return {
        "slots": rng.choice((1, 2, 3, 10)),
        "memory_mib": rng.choice((500, 1000, 1001, 2000, 2000, 3000)),
        "cores": rng.choice((100, 100, 100, 150, 0)),
        "numa": rng.randrange(3),
        "model": rng.choice(MODELS),
        "by_claims": rng.random() < 0.05,
        "healthy": rng.random() < 0.9,
        "cordoned": rng.random() < 0.05,
        "mode": "mig" if rng.random() < 0.05 else "hami-core",
        "pair_scores": {uuid: rng.choice((0, 10, 50, 100)) for uuid in uuids},
    }


def some_request(rng, kind=APP, most=3):
    """A container that requests devices."""
    memory, percent = rng.choice(MEMORIES)
    cores = rng.choice((None, 0, 0, 10, 20, 30, 50, 100, 150))
    return gpus(rng.choice((1, 1, 2, most)), memory, cores, percent, kind)


def some_annotations(rng):
    """Annotations with which users select devices."""
    choices = {
        "nvidia.com/numa-bind": ["true"],
        "hami.io/gpu-scheduler-policy": POLICIES,
        "nvidia.com/use-gputype": ["A40", "a100,L4"],
        "nvidia.com/nouse-gputype": ["L4"],
        "nvidia.com/use-gpuuuid": ["GPU-0,GPU-1,GPU-2"],
        "nvidia.com/nouse-gpuuuid": ["GPU-1"],
        "nvidia.com/vgpu-mode": ["hami-core", "mig"],
        "hami.io/device-scoring-weights": ["slot=0,core=1,memory=3"],
    }
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.1}


def some_budget(rng):
    """The remaining budget of the namespace."""
    if rng.random() < 0.75:
        return Budget()
    return Budget(rng.choice((None, 400, 1000, 3000)), rng.choice((None, 100, 300)))


def some_pod_request(rng, containers=4):
    """The request of a pod with containers of all kinds, some of which request no devices."""
    if containers == 1:
        asking = [some_request(rng)]
    else:
        kinds = rng.choices((APP, INIT, SIDECAR), (2, 1, 1), k=rng.randint(1, containers))
        asking = [some_request(rng, kind, most=2) for kind in kinds] + [CPU] * rng.randrange(2)
    rng.shuffle(asking)
    made = pod_request(*asking, annotations=some_annotations(rng), policy=rng.choice(POLICIES))
    return replace(made, by_claims=rng.random() < 0.1)


def some_scope(rng):
    """The properties of a pod that select its quotas."""
    return PodScope(
        rng.choice(("", "", "high", "low")),
        rng.random() < 0.2,
        rng.random() < 0.2,
        rng.random() < 0.1,
    )


def some_scopes(rng):
    """The scopes of a quota, often none."""
    return rng.sample(
        (
            ScopeRequirement("Terminating"),
            ScopeRequirement("NotTerminating"),
            ScopeRequirement("NotBestEffort"),
            ScopeRequirement("PriorityClass", "Exists"),
            ScopeRequirement("PriorityClass", "NotIn", ("high",)),
        ),
        rng.choice((0, 0, 1, 2)),
    )


def some_preferences(rng):
    """Preferred node affinity: of the labels zone and disk, and of names."""

    def requirement():
        key, operator = (
            rng.choice(("zone", "disk", "")),
            rng.choice(("In", "In", "NotIn", "Exists", "DoesNotExist")),
        )
        values = ("n0", "n1", "n2") if not key else ("x", "y")
        return NodeRequirement(key, operator, frozenset(rng.sample(values, rng.randint(1, 2))))

    return tuple(
        NodePreference(
            rng.choice((1, 1, 50, 100)), tuple(requirement() for _ in range(rng.randint(1, 2)))
        )
        for _ in range(rng.choice((0, 0, 1, 3)))
    )
