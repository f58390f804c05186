"""The changes of admission to one container, which vendors make through a draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hami.codec.objects import quantities
from hami.errors import MalformedInput
from hami.quantity import rounded_up
from hami.vendors.resources import Resources


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of admission for one container.

    *container*: the container with its changes (the same object if there are none). *found*: it requests devices of
    this vendor. *pod_spec*, *annotations*: fields to set in the pod's spec and annotations.
    """

    container: Mapping[str, Any]
    found: bool = False
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class Draft:
    """The changes of admission to one container. The original objects are never modified.

    *limits*, *requests*: the container's quantities as text, with the changes.
    """

    def __init__(self, resources: Resources, pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
        self.resources = resources
        self.name = str(container.get("name") or "")
        given = container.get("resources") or {}
        self.limits = quantities(given.get("limits"))
        self.requests = quantities(given.get("requests"))
        self._pod = pod
        self._container = container
        self._added: dict[str, dict[str, str]] = {"limits": {}, "requests": {}}
        self._env: dict[str, str] = {}
        self._annotations: dict[str, str] = {}
        self._pod_spec: dict[str, Any] = {}

    @property
    def given(self) -> dict[str, str]:
        """The amounts for the vendor, by resource name."""
        return self.resources.amounts(self.limits, self.requests)

    def rounded(self, name: str) -> int | None:
        """Returns the amount of *name*, rounded up; ``None`` if it is not given. Raises: MalformedInput."""
        text = self.given.get(name)
        return None if text is None else self.parse(name, text)

    def parse(self, name: str, text: str) -> int:
        """Returns *text*, an amount of *name*, rounded up. Raises: MalformedInput."""
        try:
            return rounded_up(text)
        except MalformedInput as error:
            raise self.invalid(name, text, error.problem) from error

    def invalid(self, name: str, value: object, problem: str) -> MalformedInput:
        """Returns the error for an invalid amount of *name*, with a message for the pod's author."""
        message = f"invalid {name} value {value} in container {self.name}: {problem}"
        return MalformedInput(name, value, problem, message)

    def annotation(self, key: str) -> str | None:
        """Returns the pod annotation *key*, including changes."""
        annotations = (self._pod.get("metadata") or {}).get("annotations") or {}
        value = self._annotations.get(key, annotations.get(key))
        return None if value is None else str(value)

    def set_limit(self, name: str, value: int) -> None:
        """Sets the limit of *name*."""
        self.limits[name] = self._added["limits"][name] = str(value)

    def set_request(self, name: str, value: int) -> None:
        """Sets the request of *name*."""
        self.requests[name] = self._added["requests"][name] = str(value)

    def set_amount(self, name: str, value: int) -> None:
        """Sets the limit of *name*, and the request if there is one: Kubernetes requires both to be equal."""
        if self.limits.get(name) != str(value):
            self.set_limit(name, value)
        if self.requests.get(name, str(value)) != str(value):
            self.set_request(name, value)

    def set_env(self, name: str, value: str) -> None:
        """Sets an environment variable, in place of one of the same name."""
        self._env[name] = value

    @property
    def variables(self) -> list[tuple[str, str | None]]:
        """The environment variables that the container sets itself, in order; ``None`` if not a literal."""
        return [(name, value if isinstance(value := entry.get("value"), str) else None)
                for entry in self.entries("env") if isinstance(name := entry.get("name"), str)]

    def replaces(self, name: str) -> bool:
        """Reports whether admission sets the environment variable *name*, so that the container's own has no effect."""
        return name in self._env

    def set_annotation(self, key: str, value: str) -> None:
        """Sets an annotation of the pod."""
        self._annotations[key] = value

    def set_runtime_class(self, name: str) -> None:
        """Sets the pod's runtime class, if *name* is not empty and the pod has none."""
        if name and not (self._pod.get("spec") or {}).get("runtimeClassName"):
            self._pod_spec["runtimeClassName"] = name

    def result(self, found: bool) -> Admission:
        """Returns the result of admission. *found*: the container requests devices of the vendor."""
        changed = dict(self._container)
        added = {part: amounts for part, amounts in self._added.items() if amounts}
        if added:
            resources = dict(self._container.get("resources") or {})
            changed["resources"] = resources | {
                part: {**(resources.get(part) or {}), **amounts} for part, amounts in added.items()}
        if self._env:
            kept = [entry for entry in self.entries("env") if entry.get("name") not in list(self._env)]
            changed["env"] = [*kept, *({"name": name, "value": value} for name, value in self._env.items())]
        container = changed if added or self._env else self._container
        return Admission(container, found, self._pod_spec, self._annotations)

    def entries(self, field: str) -> list[Mapping[str, Any]]:
        """Returns a field of the container that is a list of mappings, such as ``env``. Raises: MalformedInput."""
        found = self._container.get(field) or []
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise MalformedInput(field, found, "expected a list of mappings")
        return found
