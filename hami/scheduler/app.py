"""The WSGI application: admission, the extender verbs, health. It decodes, calls and encodes; it decides nothing.

The answer to a verb has status 200 and a well-formed body: kube-scheduler and the API server read the outcome from the
body. Only where the body of the request could not be read, the status says so too.
"""

from __future__ import annotations

import io
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from wsgiref.types import WSGIEnvironment

import msgspec
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.wsgi import get_content_length, get_input_stream

from hami import __version__
from hami.cache.reservations import Reservation
from hami.codec import admission, extender
from hami.codec.admission import Review
from hami.errors import HamiError, MalformedInput, NodeLocked
from hami.scheduler.admit import Admitter, Denied
from hami.scheduler.bind import Binder
from hami.scheduler.filter import NodeFilter
from hami.web.bodies import FREE
from hami.web.routes import JSON, Answer, Handler, Routes, text
from hami.web.tls import client_is_trusted

log = logging.getLogger(__name__)

MIB = 1 << 20
WEBHOOK_LIMIT = 7 * MIB
FILTER_LIMIT = 64 * MIB  # a simulation sends whole nodes
BIND_LIMIT = MIB
PIECE = 65_536  # bytes that are read at a time
REVIEWS = 32  # reviews up to FREE bytes that are decoded at a time; decoded, they take up to 30 times as much
RESERVED_THREADS = 64  # threads that binds leave to other requests; half of the threads if there are few
LOGGED = 1000  # characters of a reason, which may quote the pod
START_TIMEOUT_S = 5.0  # a filter waits for this long until the caches are filled

Observe = Callable[[str, str, float], None]
IsStarted = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Verbs:
    """The handlers of the requests. *reservation* returns the unbound reservation of a pod uid."""

    admitter: Admitter
    node_filter: NodeFilter
    binder: Binder
    reservation: Callable[[str], Reservation | None]


def create_app(verbs: Verbs, is_started: IsStarted, unready_reason: Callable[[], str | None], observe: Observe, *,
               threads: int, hung_reason: Callable[[], str] = str) -> Routes:
    """Returns the application.

    *is_started* reports whether the caches have been filled, after at most so many seconds. *unready_reason* returns
    why requests cannot be served now; ``None`` if they can.
    *hung_reason* returns which threads have died or hang; empty if none.
    *observe* is called for each verb with its outcome (``ok``, ``refused``, ``error``) and its duration in seconds.
    *threads*: the threads that serve the application. A bind that waits for its node occupies one; 64 threads are
    reserved for other requests, so that the webhook and the filter never wait for a bind. Further binds are rejected
    and retried by kube-scheduler.
    """
    binds = threading.BoundedSemaphore(max(1, threads - RESERVED_THREADS, threads // 2))
    return Routes({
        "/webhook": {"POST": _webhook(verbs.admitter, observe)},
        "/filter": {"POST": _only_the_scheduler(_filter(verbs.node_filter, is_started, observe))},
        "/bind": {"POST": _only_the_scheduler(_bind(verbs.binder, binds, observe))},
        "/reservations/": {"GET": _only_the_scheduler(_reserved(verbs.reservation))},
        "/healthz": {"GET": lambda _: _healthz(is_started, hung_reason)},
        "/readyz": {"GET": lambda _: _readyz(unready_reason)},
        "/version": {"GET": lambda _: Answer(b'{"version":"%s"}' % __version__.encode())},
    })


def _webhook(admitter: Admitter, observe: Observe) -> Handler:
    """Mutating admission of pods."""
    small, large = threading.BoundedSemaphore(REVIEWS), threading.BoundedSemaphore(1)

    def webhook(environ: WSGIEnvironment) -> Answer:
        review: Review | None = None

        def act(body: bytes) -> tuple[bytes, str]:
            nonlocal review
            if problem := _content_problem(environ) or ("" if body else "request body is empty"):
                raise MalformedInput("body", "", problem, message=problem)
            with small if len(body) <= FREE else large:
                review = admission.parse_review(body)
                return _admit(admitter, review)

        return _verb("webhook", environ, WEBHOOK_LIMIT, act,
                     lambda problem, code: admission.render_denied(review, code, problem), observe)

    return webhook


def _admit(admitter: Admitter, review: Review) -> tuple[bytes, str]:
    verdict = admitter.admit(review)
    if isinstance(verdict, Denied):
        log.info("pod denied", extra={"namespace": review.namespace, "reason": verdict.message[:LOGGED]})
        return admission.render_denied(review, verdict.code, verdict.message), "refused"
    return admission.render_allowed(review, verdict.pod, verdict.message), "ok"


def _only_the_scheduler(handler: Handler) -> Handler:
    refused = extender.render_bind("extender verbs are for callers on loopback or with a client certificate")
    return lambda environ: handler(environ) if client_is_trusted(environ) else Answer(refused, 403)


def _filter(node_filter: NodeFilter, is_started: IsStarted, observe: Observe) -> Handler:
    """Scheduler extender: names the one node that should run the pod, or why none can."""

    def act(body: bytes) -> tuple[bytes, str]:
        args = extender.parse_filter(body)
        if not is_started(START_TIMEOUT_S):
            return extender.render_filter(None, error="the scheduler's caches are not filled yet"), "error"
        if args.nodes is not None:
            found = node_filter.simulate(args.pod, [node for node, _ in args.nodes])
            chosen = next((raw for node, raw in args.nodes if node.name == found.chosen), None)
            return extender.render_simulation(chosen, found.failed), "ok" if chosen else "refused"
        found = node_filter.filter(args.pod, args.names)
        return extender.render_filter(found.names, found.failed), "refused" if found.failed else "ok"

    return lambda environ: _verb("filter", environ, FILTER_LIMIT, act,
                                 lambda problem, code: extender.render_filter(None, error=problem), observe)


def _bind(binder: Binder, binds: threading.BoundedSemaphore, observe: Observe) -> Handler:
    """Scheduler extender: binds the pod with the devices reserved for it."""

    def act(body: bytes) -> tuple[bytes, str]:
        args = extender.parse_bind(body)
        if not binds.acquire(blocking=False):
            raise NodeLocked(f"pod {args.ref}: too many pods are being bound already, it must be tried again")
        try:
            binder.bind(args.ref, args.node)
        finally:
            binds.release()
        return extender.render_bind(), "ok"

    return lambda environ: _verb("bind", environ, BIND_LIMIT, act,
                                 lambda problem, code: extender.render_bind(problem), observe)


def _reserved(reservation_of: Callable[[str], Reservation | None]) -> Handler:
    """Shows what the pod's Binding will carry."""

    def reserved(environ: WSGIEnvironment) -> Answer:
        reservation = reservation_of(environ["PATH_INFO"].rpartition("/")[2])
        if reservation is None:
            return Answer(b'{"error":"nothing is reserved for this uid"}', 404)
        return Answer(msgspec.json.encode({"node": reservation.node, "annotations": reservation.annotations,
                                           "labels": reservation.labels}))

    return reserved


def _verb(name: str, environ: WSGIEnvironment, limit: int, act: Callable[[bytes], tuple[bytes, str]],
          refuse: Callable[[str, int], bytes], observe: Observe) -> Answer:
    """Answers with what *act* makes of the body, or with *refuse* of an error's text and HTTP status.

    The status of the response is 200 unless the body could not be read.
    """
    begun = time.monotonic()
    outcome, status = "error", 200
    try:
        answer, outcome = act(_body(environ, limit))
    except RequestEntityTooLarge:
        answer = refuse(f"request body is larger than {limit} bytes", 413)
    except HTTPException as error:  # the body does not arrive, or there is no memory for it
        status = error.code or 500
        answer = refuse(error.description or error.name, status)
    except HamiError as error:
        answer = refuse(str(error), 400)
    except Exception:
        log.exception("verb failed", extra={"verb": name})
        answer = refuse("internal error, see the scheduler's log", 500)
    observe(name, outcome, time.monotonic() - begun)
    return Answer(answer, status)


def _healthz(is_started: IsStarted, hung_reason: Callable[[], str]) -> Answer:
    """Reports ok once the caches have been filled, unless a thread has died or hangs."""
    if reason := hung_reason():
        return text(reason, 500)
    return text("ok") if is_started(0) else text("starting: caches are not filled yet", 503)


def _readyz(unready_reason: Callable[[], str | None]) -> Answer:
    """Reports ok while the caches are filled and fresh."""
    reason = unready_reason()
    return text("ok") if reason is None else text(reason, 503)


def _body(environ: WSGIEnvironment, limit: int) -> bytes:
    """Reads the body without ever holding it twice. Raises: HTTPException."""
    if (get_content_length(environ) or 0) > limit:
        raise RequestEntityTooLarge
    body = io.BytesIO()
    # limit + 1: for a body without a length, whose stream fails after so many bytes
    shutil.copyfileobj(get_input_stream(environ, max_content_length=limit + 1), body, PIECE)
    return body.getvalue()


def _content_problem(environ: WSGIEnvironment) -> str:
    given = environ.get("CONTENT_TYPE", "")
    return "" if given == JSON else f"contentType={given}, expected {JSON}"
