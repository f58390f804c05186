"""Reads how HAMi is installed in a cluster, and which workloads it has, with the user's own rights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from hami.codec.documents import decode
from hami.codec.slices import API
from hami.errors import MalformedInput, NotFound
from hami.inspect.installation import (
    DEVICE_PLUGINS,
    SCHEDULERS,
    ExcessBinding,
    Installation,
    parse_device_class,
    parse_excess_binding,
    parse_plugins,
    parse_scheduler,
    parse_warning_policy,
)
from hami.inspect.manifests import TEMPLATE_KINDS
from hami.inspect.read import LIVE_PODS, OBJECT, MissingRight, Reader
from hami.kube.pages import parse_meta

T = TypeVar("T")

_GROUPS = {
    "CronJob": "/apis/batch/v1",
    "Job": "/apis/batch/v1",
    "ReplicationController": "/api/v1",
    "Pod": "/api/v1",
}
_APPS = "/apis/apps/v1"  # that of the other TEMPLATE_KINDS


class InstallationReader:
    """Reads with *reader*."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def installation(self) -> Installation:
        """Returns how HAMi is installed; what may not be listed counts as absent, with a note."""
        schedulers = self._few("deployments", _APPS, SCHEDULERS, parse_scheduler)
        plugins = self._few("daemonsets", _APPS, DEVICE_PLUGINS, parse_plugins)
        policies = self._few(
            "validatingadmissionpolicybindings",
            "/apis/admissionregistration.k8s.io/v1",
            "",
            parse_warning_policy,
        )
        classes = self._few("deviceclasses", API, "", parse_device_class)
        excess: list[ExcessBinding] = []
        if any(scheduler.extender for scheduler in schedulers):
            for resource in ("clusterrolebindings", "rolebindings"):
                excess += self._few(
                    resource,
                    "/apis/rbac.authorization.k8s.io/v1",
                    "",
                    partial(parse_excess_binding, schedulers=schedulers),
                )
        return Installation(
            device_classes=dict(classes),
            schedulers=tuple(schedulers),
            plugins=sum(nodes for nodes, _ in plugins),
            outdated_plugins=sum(outdated for _, outdated in plugins),
            warning_policies=tuple(sorted(set(policies))),
            excess_bindings=tuple(excess),
        )

    def _few(
        self, resource: str, group: str, label: str, parse: Callable[[msgspec.Raw], T | None]
    ) -> list[T]:
        """Returns the objects with *label* for which *parse* returns something."""
        parsed: dict[str, T] = {}

        def take(raw: msgspec.Raw) -> None:
            with contextlib.suppress(MalformedInput):
                path, value = parse_meta(raw).path, parse(raw)
                parsed.pop(path, None)  # of a list that has started again
                if value is not None:
                    parsed[path] = value

        try:
            self._reader.each(
                resource, f"{group}/{resource}", {"labelSelector": label} if label else {}, take
            )
        except NotFound:  # an API server without this resource
            return []
        except MissingRight as error:
            self._reader.note(f"{error}; findings about the installation may be missing")
        return list(parsed.values())

    def workloads(self, namespace: str, take: Callable[[Any, str], object]) -> None:
        """Passes all objects that make pods to *take*, owners before what they own, each with its name for errors.

        *namespace*: theirs, empty for all. A list that starts again passes an object twice. Kinds that may not be
        listed are left out with a note.
        Raises: HamiError if none may be listed.
        """
        scope, infix = "the whole cluster", ""
        if namespace:
            scope, infix = f"namespace {namespace}", f"/namespaces/{namespace}"
        missing: list[MissingRight] = []
        for kind in TEMPLATE_KINDS:
            resource = f"{kind.lower()}s"

            def pass_on(raw: msgspec.Raw, kind: str = kind) -> None:
                document = decode(kind, OBJECT, raw)
                take(document | {"kind": kind}, f"{kind.lower()} {parse_meta(raw).path}")

            try:
                self._reader.each(
                    resource,
                    f"{_GROUPS.get(kind, _APPS)}{infix}/{resource}",
                    LIVE_PODS if kind == "Pod" else {},
                    pass_on,
                    scope=scope,
                    progress=self._reader.progress,
                )
            except MissingRight as error:
                missing.append(error)
        if len(missing) == len(TEMPLATE_KINDS):
            raise missing[-1]
        for refusal in missing:
            self._reader.note(f"{refusal}; they are left out")

    def labeled_namespaces(self, label: str) -> frozenset[str]:
        """Returns the names of the namespaces with *label* (``key=value``); none, with a note, if they may not be
        listed."""
        names: set[str] = set()
        try:
            self._reader.each(
                "namespaces",
                "/api/v1/namespaces",
                {"labelSelector": label},
                lambda raw: names.add(parse_meta(raw).name),
            )
        except MissingRight as error:
            self._reader.note(f"{error}; those with the label {label} are not left out")
        return frozenset(names)
