"""Lists in pages: what a page is, and all objects of a collection, read once.

The reflector reads the same pages, but goes on watching.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Protocol

import msgspec

from hami.codec.documents import decode
from hami.errors import ClusterError, Gone
from hami.kube.retry import brief_retry
from hami.runtime.tasks import Task

PAGE_SIZE = 500
"""The most objects in one response to a list."""
LISTS = 3
"""How often a list is started: its pages expire at the API server after some minutes."""


class ObjectMeta(msgspec.Struct, rename="camel", frozen=True):
    """The metadata of any object, so that one which cannot be parsed still has a name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def path(self) -> str:
        """``namespace/name``, or the name of an object without namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def key(self) -> str:
        """The uid, or the name of an object without namespace: the keys of pods and quotas, and of nodes."""
        return self.uid if self.namespace else self.name


class _Object(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


class ListMeta(msgspec.Struct, rename="camel"):
    """The metadata of a page. *remaining*: objects on later pages, as far as the API server knows."""

    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")
    remaining: int | None = msgspec.field(name="remainingItemCount", default=None)


class ListPage(msgspec.Struct):
    """One page of a list."""

    metadata: ListMeta
    items: tuple[msgspec.Raw, ...] = ()


_META = msgspec.json.Decoder(_Object)
_PAGE = msgspec.json.Decoder(ListPage)


class Requester(Protocol):
    """Makes one call to the API server, as :meth:`hami.kube.api.Api.request` does."""

    def __call__(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> bytes:
        """Returns the body of the response. Raises: ClusterError."""


class Writer(Requester, Protocol):
    """Makes one call to the API server, which may write."""

    def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> bytes:
        """Returns the body of the response. Raises: ClusterError."""


def page_query(query: Mapping[str, str], token: str) -> dict[str, str]:
    """Returns the parameters of the request for the page *token*, empty for the first."""
    parameters = {**query, "limit": str(PAGE_SIZE)}
    if token:
        parameters["continue"] = token
    return parameters


def parse_page(name: str, data: bytes) -> ListPage:
    """Returns the page in *data*; *name* is that of the resource, for errors. Raises: MalformedInput."""
    return decode(f"list of {name}", _PAGE, data)


def parse_meta(raw: msgspec.Raw) -> ObjectMeta:
    """Decodes the metadata only; empty if even that is invalid."""
    try:
        return _META.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ObjectMeta()


def read_pages(
    request: Requester, name: str, path: str, query: Mapping[str, str]
) -> Iterator[ListPage]:
    """Yields the pages of one consistent read. Each is requested while the caller works on the one before.

    A page that the server was too busy to send is requested again: a new list would cost it more. *name*: of the
    resource, for errors. Raises: ClusterError; MalformedInput if a page cannot be read.
    """
    patient = brief_retry(_is_busy, time.sleep).wraps(request)

    def start(token: str) -> Future[bytes]:
        call = _Call(lambda: patient("GET", path, query=page_query(query, token)))
        call.start()
        return call.answer

    coming: Future[bytes] | None = start("")
    while coming is not None:
        page = parse_page(name, coming.result())
        token = page.metadata.continue_token
        coming = start(token) if token else None
        yield page


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, ClusterError) and error.status == 429


class _Call(Task):
    """One call in a daemon thread. Whoever gives up waiting for it, and the end of the process, need not wait for an
    API server that does not answer; a ThreadPoolExecutor would."""

    def __init__(self, call: Callable[[], bytes]) -> None:
        super().__init__("page")
        self._call = call
        self.answer: Future[bytes] = Future()

    def step(self) -> None:
        """Makes the call."""
        try:
            self.answer.set_result(self._call())
        except BaseException as error:  # the caller raises it
            self.answer.set_exception(error)


def read_list(
    request: Requester,
    name: str,
    path: str,
    query: Mapping[str, str],
    parse: Callable[[msgspec.Raw], None],
    progress: Callable[[int, int], None],
) -> None:
    """Passes each object of a collection to *parse*, from one consistent read.

    If the pages expire meanwhile, the list starts again, so an object may be passed more than once. *progress* is
    called after each page with the number of objects so far and the expected total.
    Raises: ClusterError; MalformedInput if a page cannot be read.
    """
    for attempt in range(LISTS):
        try:
            count = 0
            for page in read_pages(request, name, path, query):
                for raw in page.items:
                    parse(raw)
                count += len(page.items)
                progress(count, count + (page.metadata.remaining or 0))
            return
        except Gone:
            if attempt == LISTS - 1:
                raise
