"""``explain -w``: the explanation of a pod again and again, as often as it says something else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

import click
import msgspec

from hami.errors import ClusterError, HamiError
from hami.inspect.tables import printable

LONGEST_S = 30  # until the pod is explained again although it has not changed: others have
PAUSE_S = 2.0  # between two explanations, at least
UNTOLD = frozenset({"ageSeconds", "boundSeconds", "events"})
"""Fields of an explanation that change by themselves: how long something has lasted, and how often it was tried."""

Streams = Callable[[str, Mapping[str, str]], AbstractContextManager[Iterator[bytes]]]
"""Opens a watch of a path with a query. Entering it raises ClusterError."""


class _WatchedMeta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""


class _WatchedObject(msgspec.Struct, frozen=True):
    metadata: _WatchedMeta = _WatchedMeta()


class _PodChange(msgspec.Struct, frozen=True):
    object: _WatchedObject = _WatchedObject()


_CHANGE = msgspec.json.Decoder(_PodChange)


class PodWatch:
    """Waits for changes of one pod. *pause*: is called with the seconds to wait where it cannot be watched."""

    def __init__(
        self,
        streams: Streams,
        namespace: str,
        name: str,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._streams = streams
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        self._query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "timeoutSeconds": str(LONGEST_S),
        }
        self._pause = pause
        self._version = ""

    def wait(self) -> None:
        """Returns when the pod has changed, or after LONGEST_S seconds."""
        self._pause(PAUSE_S)
        try:
            with self._streams(self._path, self._query) as lines:
                for line in lines:
                    # the first event is the pod as it is
                    version = _CHANGE.decode(line).object.metadata.resource_version
                    is_new = self._version not in ("", version)
                    self._version = version
                    if is_new:
                        return
        except (ClusterError, msgspec.DecodeError):
            self._pause(LONGEST_S)


def follow(explain: Callable[[], tuple[object, str]], wait: Callable[[], None]) -> None:
    """Prints what *explain* returns as text whenever the document beside it differs, until Ctrl-C.

    If the API server does not answer for a while, this is printed once, and it is asked again.
    Raises: what *explain* raises else, such as that the pod is gone; the first time, everything.
    """
    last: object = None
    problem = ""
    try:
        while True:
            try:
                document, text = explain()
                last, problem = _show(document, text, last), ""
            except HamiError as error:
                if last is None or not _is_temporary(error):
                    raise
                problem = _complain(str(error), problem)
            wait()
    except KeyboardInterrupt:
        return


def _show(document: object, text: str, last: object) -> object:
    """Prints *text* if *document* differs from *last*. Returns what is to be compared with the next document."""
    told: object = _told(msgspec.to_builtins(document))
    if told != last:
        if last is not None:
            click.echo()
        click.echo(text)
    return told


def _complain(problem: str, last: str) -> str:
    """Prints *problem* unless it is *last*. Returns it."""
    if problem != last:
        click.echo(f"{printable(problem)}; trying again", err=True)
    return problem


def _is_temporary(error: BaseException) -> bool:
    """Reports whether the API server may answer later: the error, or that from which it was made, is temporary."""
    while error.__cause__ is not None:
        error = error.__cause__
        if isinstance(error, ClusterError):
            break
    return isinstance(error, ClusterError) and error.is_temporary


def _told(value: Any) -> Any:
    """Returns a document without the fields that change by themselves."""
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items() if key not in UNTOLD}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value
