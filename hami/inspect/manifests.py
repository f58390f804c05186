"""Pods of manifests, as ``kubectl apply`` would take them: bare, or made by Deployments, Jobs and their kind, or by the
workloads of JobSet, LeaderWorkerSet, Ray, the Kubeflow trainers and Kueue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from hami.codec.documents import convert, parse_yaml_documents, places_in
from hami.codec.objects import PriorityClass
from hami.codec.pods import convert_pod
from hami.errors import HamiError, MalformedInput

T = TypeVar("T")

MAX_PODS = 100_000  # of one workload

_COUNT = Annotated[int, msgspec.Meta(ge=0)] | None
_OBJECT = Annotated[dict[str, Any], msgspec.Meta(description="a mapping")]


class _ManifestMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""


class _Manifest(msgspec.Struct):
    kind: str
    metadata: _ManifestMeta = _ManifestMeta()


class _Template(msgspec.Struct):
    spec: _OBJECT
    metadata: dict[str, Any] | None = None


class _WorkloadSpec(msgspec.Struct):
    """The specification of a workload. *replicas*: of those that always run; the other two: of Jobs."""

    template: _Template
    replicas: _COUNT = None
    parallelism: _COUNT = None
    completions: _COUNT = None


class _Workload(msgspec.Struct):
    spec: _WorkloadSpec


class _CronJobSpec(msgspec.Struct, rename="camel"):
    job_template: _Workload


class _CronJob(msgspec.Struct):
    spec: _CronJobSpec


class _PodGroup(msgspec.Struct, rename="camel"):
    """Pods of one template in a larger workload. *num_of_hosts*: pods of each replica, for Ray."""

    template: _Template
    name: str = ""
    group_name: str = ""
    replicas: _COUNT = None
    count: _COUNT = None
    num_of_hosts: _COUNT = None

    @property
    def pods(self) -> int:
        return _or_one(self.replicas) * _or_one(self.num_of_hosts)


class _RaySpec(msgspec.Struct, rename="camel"):
    head_group_spec: _PodGroup
    worker_group_specs: list[_PodGroup] = []


class _RayOwnerSpec(msgspec.Struct, rename="camel"):
    """The specification of a RayJob or a RayService, which contain that of a cluster."""

    ray_cluster_spec: _RaySpec | None = None
    ray_cluster_config: _RaySpec | None = None


class _ReplicatedJob(msgspec.Struct):
    name: str
    template: _Workload
    replicas: _COUNT = None


class _JobSetSpec(msgspec.Struct, rename="camel"):
    replicated_jobs: list[_ReplicatedJob]


class _LeaderWorkerTemplate(msgspec.Struct, rename="camel"):
    worker_template: _Template
    leader_template: _Template | None = None
    size: _COUNT = None


class _LeaderWorkerSpec(msgspec.Struct, rename="camel"):
    leader_worker_template: _LeaderWorkerTemplate
    replicas: _COUNT = None


class _KueueSpec(msgspec.Struct, rename="camel"):
    pod_sets: list[_PodGroup]


class _Spec(msgspec.Struct):
    spec: dict[str, Any]


class _ListManifest(msgspec.Struct):
    items: list[dict[str, Any]]


_REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
_TRAINERS = ("PyTorchJob", "TFJob", "MPIJob", "JAXJob", "XGBoostJob", "PaddleJob")
_SINGLE = ("Pod", *_REPLICATED, "Job", "CronJob")
KINDS = (
    *_SINGLE,
    "JobSet",
    "LeaderWorkerSet",
    "RayCluster",
    "RayJob",
    "RayService",
    *_TRAINERS,
    "Workload",
)
"""Kinds of which it is known how many pods run."""
TEMPLATE_KINDS = (
    "CronJob",
    "Job",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ReplicationController",
    "Pod",
)
"""Kinds that are pods, or have a template of pods; owners before what they own."""


@dataclass(frozen=True, slots=True)
class PodSource:
    """A workload of a manifest. *name*: such as ``deployment/web``. *count*: how many run at a time.

    *pod*: one of them as the API server gets it, without a name. *namespace*: empty if the manifest names none.
    *claims*: what *pod* names that kube-scheduler allocates to claims, in words, once it has been read.
    """

    kind: str
    name: str
    namespace: str
    count: int
    pod: Mapping[str, Any]
    claims: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Kind and name, as kubectl writes them."""
        return f"{self.kind.lower()}/{self.name}"


def read_manifests(text: str, source: str) -> tuple[list[PodSource], list[str]]:
    """Returns what makes pods in *text*, and the titles of other objects, which are left out.

    Raises: MalformedInput, which names file, document and field; HamiError if nothing in it makes pods.
    """
    sources: list[PodSource] = []
    others: list[str] = []
    for place, document in read_documents(text, source):
        manifest = convert(document, _Manifest, places_in(place))
        if manifest.kind in _SINGLE:
            sources.append(pod_source(document, place))
        elif manifest.kind in KINDS:
            sources += _grouped(document, manifest, place)
        else:
            others.append(f"{manifest.kind.lower()}/{manifest.metadata.name}")
    if not sources:
        raise HamiError(f"{source}: nothing in it makes pods; expected {', '.join(KINDS)}")
    return sources, others


def read_documents(text: str, source: str) -> Iterator[tuple[str, Any]]:
    """Yields each object of *text*, also those of Lists, with its place for errors. Raises: MalformedInput."""
    for number, document in enumerate(parse_yaml_documents(text, source), start=1):
        place = f"{source}: document {number}"
        if document is None:
            continue
        if isinstance(document, dict) and document.get("kind") == "List":
            items = convert(document, _ListManifest, places_in(place)).items
            yield from ((f"{place}: items[{index}]", item) for index, item in enumerate(items))
        else:
            yield place, document


def pod_source(document: Any, place: str) -> PodSource:
    """Returns what makes pods in *document*, an object of one of TEMPLATE_KINDS; a DaemonSet counts as one pod.

    Raises: MalformedInput, which names *place* and field.
    """
    name = places_in(place)
    manifest = convert(document, _Manifest, name)
    match manifest.kind:
        case "Pod":
            template, count = convert(document, _Template, name), 1
        case "Job":
            template, count = _running(convert(document, _Workload, name).spec)
        case "CronJob":
            template, count = _running(convert(document, _CronJob, name).spec.job_template.spec)
        case _:
            spec = convert(document, _Workload, name).spec
            template, count = spec.template, _or_one(spec.replicas)
    return _source(manifest, "", template, count, place)


_Groups = Iterator[tuple[str, _Template, int]]
"""The groups of pods of a workload: name, template and number of pods."""


def _grouped(document: Any, manifest: _Manifest, place: str) -> list[PodSource]:
    """Returns each group of pods of a workload that has several. Raises: MalformedInput."""
    groups = _GROUPS.get(manifest.kind, _training_groups)
    sources: list[PodSource] = []
    for group, template, count in groups(document, place):
        if count:
            sources.append(_source(manifest, group, template, count, place))
    return sources


def _job_set_groups(document: Any, place: str) -> _Groups:
    for job in _spec_of(document, _JobSetSpec, place).replicated_jobs:
        template, count = _running(job.template.spec)
        yield job.name, template, count * _or_one(job.replicas)


def _leader_worker_groups(document: Any, place: str) -> _Groups:
    spec = _spec_of(document, _LeaderWorkerSpec, place)
    templates, replicas = spec.leader_worker_template, _or_one(spec.replicas)
    yield "leader", templates.leader_template or templates.worker_template, replicas
    yield "worker", templates.worker_template, replicas * max(0, _or_one(templates.size) - 1)


def _ray_cluster_groups(document: Any, place: str) -> _Groups:
    return _ray_groups(_spec_of(document, _RaySpec, place))


def _ray_owner_groups(document: Any, place: str) -> _Groups:
    spec = _spec_of(document, _RayOwnerSpec, place)
    ray = spec.ray_cluster_spec or spec.ray_cluster_config
    if ray is not None:  # else the job runs in a cluster that exists
        yield from _ray_groups(ray)


def _ray_groups(ray: _RaySpec) -> _Groups:
    yield "head", ray.head_group_spec.template, 1
    for group in ray.worker_group_specs:
        yield group.group_name, group.template, group.pods


def _kueue_groups(document: Any, place: str) -> _Groups:
    for group in _spec_of(document, _KueueSpec, place).pod_sets:
        yield group.name or "main", group.template, _or_one(group.count)


def _training_groups(document: Any, place: str) -> _Groups:
    for key, specs in convert(document, _Spec, places_in(place)).spec.items():
        if key.endswith("ReplicaSpecs"):
            roles = convert(specs, dict[str, _PodGroup], places_in(place, f"spec.{key}"))
            for role, group in roles.items():
                yield role.lower(), group.template, group.pods


_GROUPS: dict[str, Callable[[Any, str], _Groups]] = {
    "JobSet": _job_set_groups,
    "LeaderWorkerSet": _leader_worker_groups,
    "RayCluster": _ray_cluster_groups,
    "RayJob": _ray_owner_groups,
    "RayService": _ray_owner_groups,
    "Workload": _kueue_groups,
}
"""The kinds whose groups are not in fields that end in ``ReplicaSpecs``."""


def _spec_of(document: Any, type: type[T], place: str) -> T:
    return convert(convert(document, _Spec, places_in(place)).spec, type, places_in(place, "spec"))


def _or_one(count: int | None) -> int:
    return 1 if count is None else count


def _source(
    manifest: _Manifest, group: str, template: _Template, count: int, place: str
) -> PodSource:
    """Returns the pods of *group*, empty if the workload has only one. Raises: MalformedInput."""
    if count > MAX_PODS:
        raise MalformedInput(place, count, f"expected at most {MAX_PODS} pods")
    meta = {
        key: value
        for key, value in (template.metadata or {}).items()
        if key in ("annotations", "labels")
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.spec}
    try:
        convert_pod(pod)
    except MalformedInput as error:
        raise MalformedInput(place, "", error.problem, message=f"{place}: {error}") from error
    own = manifest.metadata
    title = "/".join(filter(None, (own.name or own.generate_name or "unnamed", group)))
    return PodSource(manifest.kind, title, own.namespace, count, pod)


def _running(job: _WorkloadSpec) -> tuple[_Template, int]:
    """Returns the pod of a Job, and how many run at a time."""
    parallelism = _or_one(job.parallelism)
    if job.completions is not None:
        parallelism = min(parallelism, job.completions)
    return job.template, parallelism


def with_priority(pod: Mapping[str, Any], classes: Mapping[str, PriorityClass]) -> dict[str, Any]:
    """Returns *pod* with the priority that the API server would give it: that of its class, or the default one."""
    spec = dict(pod.get("spec") or {})
    default = next((one for one in classes.values() if one.global_default), None)
    if (priority := classes.get(spec.get("priorityClassName") or "", default)) is not None:
        spec.setdefault("priority", priority.value)
        spec.setdefault("preemptionPolicy", priority.preemption_policy)
    return {**pod, "spec": spec}
