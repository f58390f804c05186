"""Faults in files of ``KUBECONFIG``. The ``kubernetes`` client reads these, and does not name the field."""

from __future__ import annotations

import base64
import contextlib
import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from hami.codec.documents import convert, parse_yaml, places_in
from hami.errors import MalformedInput

__all__ = ["find_fault"]

_Scalar = Annotated[str | int | float | bool, Meta(description="a text")]
_Text = Annotated[str, Meta(description="a text")]
_Mapping = Annotated[dict[str, Any], Meta(description="a mapping")]
_NO_SECRET = re.compile(r": (clusters|contexts|current-context)\b")
"""In the names of fields whose values are shown: all others, and lines that are no YAML, may contain credentials."""
_HIDDEN = "not shown"
_ENCODED = ("certificate-authority-data", "client-certificate-data", "client-key-data")


class _Cluster(msgspec.Struct, rename="kebab"):
    server: Annotated[str, Meta(description="an address such as https://10.0.0.1:6443")] = ""
    certificate_authority: _Text | None = None
    certificate_authority_data: _Text | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: _Text | None = None
    proxy_url: _Text | None = None


class _User(msgspec.Struct, rename="kebab"):
    token: _Scalar | None = None
    token_file: _Text | None = msgspec.field(default=None, name="tokenFile")
    client_certificate: _Text | None = None
    client_certificate_data: _Text | None = None
    client_key: _Text | None = None
    client_key_data: _Text | None = None
    username: _Text | None = None
    password: _Text | None = None
    exec: _Mapping | None = None
    auth_provider: _Mapping | None = None


class _Context(msgspec.Struct):
    cluster: _Scalar
    user: _Scalar | None = None
    namespace: _Scalar | None = None


class _NamedCluster(msgspec.Struct):
    name: _Scalar
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: _Scalar
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    name: _Scalar
    context: _Context


class _File(msgspec.Struct, rename="kebab"):
    current_context: _Scalar | None = None
    clusters: list[_NamedCluster] | None = None
    contexts: list[_NamedContext] | None = None
    users: list[_NamedUser] | None = None


def find_fault(paths: str) -> MalformedInput | None:
    """Returns the first fault in the files that *paths* names, as ``KUBECONFIG`` does; None if it finds none."""
    for path in filter(None, paths.split(os.pathsep)):
        try:
            _check(Path(path).expanduser())
        except OSError:
            continue  # the client has said so
        except MalformedInput as fault:
            if _NO_SECRET.search(fault.field):
                return fault
            return MalformedInput(fault.field, _HIDDEN, fault.problem)
    return None


def user_names(paths: str) -> frozenset[str]:
    """Returns the names of the users in those of the files that *paths* names which can be read."""
    names: set[str] = set()
    for path in filter(None, paths.split(os.pathsep)):
        with contextlib.suppress(OSError, MalformedInput):  # `find_fault` tells
            names.update(str(user.name) for user in _read(Path(path).expanduser()).users or ())
    return frozenset(names)


def _check(path: Path) -> None:
    """Raises: MalformedInput, which names the file, the field and its value; OSError."""
    source, file = _source_of(path), _read(path)
    for index, cluster in enumerate(file.clusters or ()):
        _check_address(f"{source}: clusters[{index}].cluster.server", cluster.cluster.server)
        _check_encoded(f"{source}: clusters[{index}].cluster", cluster.cluster)
    for index, user in enumerate(file.users or ()):
        _check_encoded(f"{source}: users[{index}].user", user.user)


def _source_of(path: Path) -> str:
    return f"kubeconfig {path}"


def _read(path: Path) -> _File:
    """Raises: MalformedInput, which names the file, the field and its value; OSError."""
    source = _source_of(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MalformedInput(source, "", f"not UTF-8 text: {error.reason}") from error
    document = parse_yaml(text, source)
    if document is None:
        raise MalformedInput(source, "", "there is nothing in the file")
    return convert(document, _File, places_in(source))


def _check_address(place: str, server: str) -> None:
    """Raises: MalformedInput for what is no URL."""
    try:
        urlsplit(server)
    except ValueError as error:
        raise MalformedInput(place, server, str(error)) from error


def _check_encoded(place: str, record: _Cluster | _User | None) -> None:
    """Raises: MalformedInput for the first certificate or key in *record* that is not in base64."""
    for name in _ENCODED:
        text = getattr(record, name.replace("-", "_"), None) or ""
        try:
            base64.standard_b64decode(text)
        except ValueError as error:
            raise MalformedInput(f"{place}.{name}", text[:20], f"not base64: {error}") from error
