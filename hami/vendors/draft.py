"""A new pod in admission: the draft of the pod and of its containers, which vendors change through setters."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hami.codec.documents import entries
from hami.codec.forms import Switches
from hami.codec.keys import OVERWRITE_ENV, OVERWRITE_ENV_CONTAINERS
from hami.codec.pods import convert_pod
from hami.codec.register import parse_bool
from hami.errors import MalformedInput, PodRefused
from hami.model import Container, Pod, PodScope
from hami.quantity import rounded_up
from hami.vendors.resources import Resources

_LISTS = ("initContainers", "containers")


class PodDraft:
    """A pod with the changes of admission. The object that came in is never modified.

    *wire*, *decoded*: the pod as it came in. *namespace*: where it is created. *requests_devices*: a vendor has found
    that a container requests its devices. *warnings*: for the pod's author. *spec*: the changes beside the containers.
    """

    def __init__(self, wire: Mapping[str, Any], namespace: str = "") -> None:
        """Decodes *wire*, a pod from JSON, in *namespace*, if it does not say so itself. Raises: MalformedInput."""
        self.decoded = convert_pod(wire)
        self.namespace = namespace or self.decoded.ref.namespace
        self.requests_devices = False
        self.warnings: list[str] = []
        self.wire = wire
        self.spec = SpecDraft(self.decoded, self._wire_spec)
        self._annotations: dict[str, str] = {}

    @cached_property
    def containers(self) -> tuple[ContainerDraft, ...]:
        """The containers that are part of the pod from the beginning, init containers first."""
        wires = itertools.chain.from_iterable(map(self._wire_containers, _LISTS))
        return tuple(
            ContainerDraft(
                pod=self,
                wire=wire,
                decoded=container,
                limits=dict(container.limits),
                requests=dict(container.requests),
            )
            for wire, container in zip(wires, self.decoded.containers, strict=True)
        )

    def ephemeral_containers(self, before: Collection[str]) -> list[ContainerDraft]:
        """Returns the ephemeral containers that are not among those of *before* (names), which never change."""
        drafts = []
        for wire in entries(self._wire_spec.get("ephemeralContainers")):
            container = Container(name=str(wire.get("name")))
            if container.name not in before:
                drafts.append(
                    ContainerDraft(pod=self, wire=wire, decoded=container, limits={}, requests={})
                )
        return drafts

    @property
    def _wire_spec(self) -> Mapping[str, Any]:
        return self.wire.get("spec") or {}

    def _wire_containers(self, name: str) -> list[Mapping[str, Any]]:
        return self._wire_spec.get(name) or []

    def annotation(self, key: str) -> str | None:
        """Returns the annotation *key*, including changes."""
        return self._annotations.get(key, self.decoded.annotations.get(key))

    def hides_devices(self, container: str, default: bool) -> bool:
        """Reports whether *container* (its name) is to see no devices if it requests none.

        *default*: if neither the container's entry nor the pod says so, in a text that can be read.
        """
        if not self.says_who_sees_devices:
            return default
        own = self._switches.get(container, "")
        of_pod = self.decoded.annotations.get(OVERWRITE_ENV, "")
        for text in (own, of_pod):
            boolean = parse_bool(text.strip().lower())
            if boolean is not None:
                return boolean
        return default

    @property
    def says_who_sees_devices(self) -> bool:
        """Reports whether the pod says whether containers that request no devices see some."""
        annotations = self.decoded.annotations
        return OVERWRITE_ENV in annotations or OVERWRITE_ENV_CONTAINERS in annotations

    @cached_property
    def _switches(self) -> Mapping[str, str]:
        text = self.decoded.annotations.get(OVERWRITE_ENV_CONTAINERS, "")
        if not text.strip():
            return {}
        return Switches.parse(text) or {}

    def set_annotation(self, key: str, value: str) -> None:
        """Sets an annotation."""
        if self.annotation(key) != value:
            self._annotations[key] = value

    def set_requests_devices(self) -> None:
        """Records that a container requests devices."""
        self.requests_devices = True

    def changed(self) -> Pod:
        """Returns the decoded pod with the changes in its annotations, in its priority class and in the amounts of its
        containers."""
        return replace(
            self.decoded,
            scope=self.spec.scope(),
            annotations={**self.decoded.annotations, **self._annotations},
            containers=tuple(
                replace(draft.decoded, limits=draft.limits, requests=draft.requests)
                for draft in self.containers
            ),
        )

    def render(self) -> Mapping[str, Any]:
        """Returns the pod with the changes, for the API server; the same object if there are none."""
        rendered = iter([draft.render() for draft in self.containers])
        lists, changed = dict[str, Any](), dict[str, Any]()
        for name in _LISTS:
            wires = self._wire_containers(name)
            containers = list(itertools.islice(rendered, len(wires)))
            if any(map(operator.is_not, containers, wires)):
                lists[name] = containers
        spec = self.spec.render(lists)
        if spec is not self._wire_spec:
            changed["spec"] = spec
        if self._annotations:
            annotations = {**self.decoded.annotations, **self._annotations}
            changed["metadata"] = {**(self.wire.get("metadata") or {}), "annotations": annotations}
        if not changed:
            return self.wire
        return {**self.wire, **changed}


class SpecDraft:
    """The changes of admission in a pod's specification, beside its containers."""

    def __init__(self, decoded: Pod, wire: Mapping[str, Any]) -> None:
        self._decoded = decoded
        self._wire = wire
        self._changes: dict[str, Any] = {}

    def set_scheduler(self, name: str) -> None:
        """Sets the scheduler that places the pod."""
        if self._decoded.scheduler_name != name:
            self._changes["schedulerName"] = name

    def set_runtime_class(self, name: str) -> None:
        """Sets the runtime class, if *name* is not empty and the pod has none."""
        if name and not self._wire.get("runtimeClassName"):
            self._changes.setdefault("runtimeClassName", name)

    def set_priority_class(self, name: str) -> None:
        """Sets the priority class."""
        self._changes["priorityClassName"] = name

    def scope(self) -> PodScope:
        """Returns the scope of the pod with the changes."""
        name = self._changes.get("priorityClassName")
        if name is None:
            return self._decoded.scope
        return replace(self._decoded.scope, priority_class=name)

    def render(self, more: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the specification with the changes, and with *more*; the same object if there are none.

        With another priority class, it has no priority and no preemptionPolicy: the API server has filled them in for
        the former class, fills them in again, and would refuse others than those of the class.
        """
        changes = {**self._changes, **more}
        if not changes:
            return self._wire
        spec = {**self._wire, **changes}
        if "priorityClassName" in changes:
            spec.pop("priority", None)
            spec.pop("preemptionPolicy", None)
        return spec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContainerDraft:
    """A container with the changes of admission, as one vendor sees it.

    *wire*, *decoded*: the container as it came in. *resources*: those of the vendor. *limits*, *requests*: the
    quantities as text, with the changes. *env*: the environment variables that admission sets.
    """

    pod: PodDraft
    decoded: Container
    wire: Mapping[str, Any]
    resources: Resources = Resources()
    limits: dict[str, str]
    requests: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)

    def seen_with(self, resources: Resources) -> ContainerDraft:
        """Returns the same draft for the vendor with *resources*: its changes are changes of this one."""
        return replace(self, resources=resources)

    @property
    def name(self) -> str:
        """The container's name."""
        return self.decoded.name

    @property
    def is_privileged(self) -> bool:
        """Reports whether the container runs privileged and so sees all devices of its node."""
        context = self.wire.get("securityContext")
        if not isinstance(context, dict):
            return False
        return context.get("privileged") is True

    @property
    def given(self) -> dict[str, str]:
        """The amounts for the vendor, by resource name."""
        return self.resources.amounts(self.limits, self.requests)

    def rounded(self, name: str) -> int | None:
        """Returns the amount of *name*, rounded up; ``None`` if it is not given. Raises: PodRefused."""
        # most containers do not name it, and `given` costs more
        if name not in self.limits and name not in self.requests:
            return None
        text = self.given.get(name)
        if text is None:
            return None
        return self.parse(name, text)

    def parse(self, name: str, text: str) -> int:
        """Returns *text*, an amount of *name*, rounded up. Raises: PodRefused."""
        try:
            return rounded_up(text)
        except MalformedInput as error:
            raise self.invalid(name, text, error.problem) from error

    def invalid(self, name: str, value: object, problem: str) -> PodRefused:
        """Returns the error for an invalid amount of *name*."""
        return PodRefused(f"invalid {name} value {value} in container {self.name}: {problem}")

    def set_limit(self, name: str, value: int) -> None:
        """Sets the limit of *name*."""
        self.limits[name] = str(value)

    def set_request(self, name: str, value: int) -> None:
        """Sets the request of *name*."""
        self.requests[name] = str(value)

    def set_amount(self, name: str, value: int) -> None:
        """Sets the limit of *name*, and the request if there is one: Kubernetes requires both to be equal."""
        self.set_limit(name, value)
        if name in self.requests:
            self.set_request(name, value)

    def set_env(self, name: str, value: str) -> None:
        """Sets an environment variable, in place of one of the same name. Raises: MalformedInput as `entries`."""
        self.entries("env")
        self.env[name] = value

    @property
    def variables(self) -> list[tuple[str, str | None]]:
        """The environment variables that the container sets itself, in order; ``None`` if not a literal."""
        variables = []
        for entry in self.entries("env"):
            name, value = entry.get("name"), entry.get("value")
            if isinstance(name, str):
                variables.append((name, value if isinstance(value, str) else None))
        return variables

    def entries(self, field: str) -> list[Mapping[str, Any]]:
        """Returns a field of the container that is a list of mappings, such as ``env``. Raises: MalformedInput."""
        entries = self.wire.get(field) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise MalformedInput(field, entries, "expected a list of mappings")
        return entries

    def render(self) -> Mapping[str, Any]:
        """Returns the container with the changes, for the API server; the same object if there are none."""
        changed: dict[str, Any] = {}
        resources = dict(self.wire.get("resources") or {})
        for part, before, after in (
            ("limits", self.decoded.limits, self.limits),
            ("requests", self.decoded.requests, self.requests),
        ):
            added = {name: text for name, text in after.items() if before.get(name) != text}
            if added:
                resources[part] = {**(resources.get(part) or {}), **added}
                changed["resources"] = resources
        if self.env:
            env = self._rendered_env()
            if env != self.entries("env"):
                changed["env"] = env
        if not changed:
            return self.wire
        return {**self.wire, **changed}

    def _rendered_env(self) -> list[Mapping[str, Any]]:
        names = list(self.env)
        env = [entry for entry in self.entries("env") if entry.get("name") not in names]
        for name, value in self.env.items():
            env.append({"name": name, "value": value})
        return env
