"""Completion of the names of objects, as the cluster has them and the user may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any
from urllib.parse import quote

import click

from hami.cli.targets import TYPES, type_and_names
from hami.errors import HamiError
from hami.inspect.tables import FORMS, TEMPLATES
from hami.kube.access import UserAccess

TIMEOUT_S = 3.0  # a shell waits for it


def pod_argument(after: str = "") -> Callable[[Any], Any]:
    """Returns the argument of a command about a pod, with what may come *after* it: see `pod_and_rest`."""
    return click.argument(
        "words",
        nargs=-1,
        required=True,
        metavar=f"(NAME | pod NAME | pod/NAME){after}",
        shell_complete=complete_pod,
    )


def complete_pod(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the names of pods, after the type or without it."""
    words = _words(ctx)
    if len(words) > 1:
        return []
    if words and words[0] not in TYPES["pods"]:
        return []
    return _names(ctx, "pods", incomplete)


def complete_top(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns types, and the names of objects after one."""
    words = _words(ctx)
    if not words:
        return _matching(TYPES, incomplete)
    try:
        type_, known = type_and_names(words)
    except click.UsageError:
        return []
    names = dict.fromkeys(_names(ctx, type_, incomplete))
    for name in known:
        names.pop(name, None)
    return list(names)


def complete_form(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns forms of the output."""
    return _matching((*FORMS, *(f"{name}=" for name in TEMPLATES)), incomplete)


def complete_namespace(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the names of namespaces."""
    return _names(ctx, "namespaces", incomplete)


def _words(ctx: click.Context) -> tuple[str, ...]:
    """Returns the arguments before the one that is typed."""
    words: tuple[str, ...] | None = ctx.params.get("words")
    return words or ()


def _names(ctx: click.Context, type_: str, incomplete: str) -> list[str]:
    """Returns the names that the cluster has; none if it does not answer, since a shell shows no error."""
    try:
        return _matching(_read_names(ctx, type_), incomplete)
    except HamiError:
        return []


def _read_names(ctx: click.Context, type_: str) -> list[str]:
    """Returns the names on the first page of a list. Raises: HamiError."""
    from hami.kube.pages import page_query, parse_meta, parse_page

    path = f"/api/v1/{type_}"
    if type_ == "cards":
        path = "/api/v1/nodes"
    elif type_ == "pods" and not ctx.params.get("all_namespaces"):
        path = f"/api/v1/namespaces/{quote(_namespace(ctx), safe='')}/pods"
    body = _requester(ctx)("GET", path, query=page_query({}, ""))
    return [parse_meta(item).name for item in parse_page(type_, body).items]


def _requester(ctx: click.Context) -> Callable[..., bytes]:
    from hami.kube.api import Api

    if ctx.obj:
        connected: Callable[..., bytes] = ctx.obj(None)
        return connected
    return Api.connect(_access(ctx), timeout=TIMEOUT_S, pool=1).request


def _namespace(ctx: click.Context) -> str:
    from hami.kube.api import context_namespace

    namespace: str = ctx.params.get("namespace", "")
    if namespace:
        return namespace
    access = _access(ctx)
    return context_namespace(access.kubeconfig, access.context)


def _access(ctx: click.Context) -> UserAccess:
    given = {}
    for field in fields(UserAccess):
        value = ctx.params.get(field.name)
        if value:
            given[field.name] = value
    return UserAccess(**given)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
