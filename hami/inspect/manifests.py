"""Pods of manifests, as ``kubectl apply`` would take them: bare, or made by Deployments, Jobs and their kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from hami.codec.documents import convert, parse_yaml_documents
from hami.codec.pods import convert_pod
from hami.errors import HamiError, MalformedInput

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


class _ListManifest(msgspec.Struct):
    items: list[dict[str, Any]]


_REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
KINDS = ("Pod", *_REPLICATED, "Job", "CronJob")
"""Kinds of which it is known how many pods run."""
TEMPLATE_KINDS = (
    "CronJob", "Job", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Pod")
"""Kinds that are pods, or have a template of pods; owners before what they own."""


@dataclass(frozen=True, slots=True)
class PodSource:
    """A workload of a manifest. *name*: such as ``deployment/web``. *count*: how many run at a time.

    *pod*: one of them as the API server gets it, without a name. *namespace*: empty if the manifest names none.
    """

    kind: str
    name: str
    namespace: str
    count: int
    pod: Mapping[str, Any]

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
        manifest = convert(document, _Manifest, _namer(place))
        if manifest.kind in KINDS:
            sources.append(pod_source(document, place))
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
            items = convert(document, _ListManifest, _namer(place)).items
            yield from ((f"{place}: items[{index}]", item) for index, item in enumerate(items))
        else:
            yield place, document


def pod_source(document: Any, place: str) -> PodSource:
    """Returns what makes pods in *document*, an object of one of TEMPLATE_KINDS; a DaemonSet counts as one pod.

    Raises: MalformedInput, which names *place* and field.
    """
    name = _namer(place)
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
            template, count = spec.template, 1 if spec.replicas is None else spec.replicas
    if count > MAX_PODS:
        raise MalformedInput(place, count, f"expected at most {MAX_PODS} pods")
    meta = {key: value for key, value in (template.metadata or {}).items() if key in ("annotations", "labels")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.spec}
    try:
        convert_pod(pod)
    except MalformedInput as error:
        raise MalformedInput(place, "", error.problem, message=f"{place}: {error}") from error
    own = manifest.metadata
    return PodSource(manifest.kind, own.name or own.generate_name or "unnamed", own.namespace, count, pod)


def _running(job: _WorkloadSpec) -> tuple[_Template, int]:
    """Returns the pod of a Job, and how many run at a time."""
    parallelism = 1 if job.parallelism is None else job.parallelism
    return job.template, parallelism if job.completions is None else min(parallelism, job.completions)


def _namer(place: str) -> Any:
    return lambda path: f"{place}: {path}" if path else place
