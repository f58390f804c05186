"""The WSGI application: admission, the extender verbs, health. It decodes, calls and encodes; it decides nothing.

The answer to a verb has status 200 and a well-formed body: kube-scheduler and the API server read the outcome from the
body. Only where the body of the request could not be read, the status says so too.

Each pod takes up to three verbs, so they are answered before Flask, which serves the rest.
"""

from __future__ import annotations

import io
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import flask
import msgspec
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.wsgi import get_content_length, get_input_stream

from hami import __version__
from hami.codec import admission, extender
from hami.codec.admission import Review
from hami.codec.keys import CLAIM_ALLOCATION_MODES
from hami.errors import HamiError, MalformedInput, NodeLocked
from hami.model import Node, Pod
from hami.quantity import MIB
from hami.runtime.in_flight import InFlight
from hami.scheduler.admit import Admitted, Admitter, Denied
from hami.scheduler.bind import Binder
from hami.scheduler.bind_slots import BindSlots
from hami.scheduler.filter import NodeFilter
from hami.scheduler.preempt import PreemptionFilter
from hami.state.binding_annotations import render_labels
from hami.state.promises import Promise
from hami.web.connections import without_turn
from hami.web.rights import ClientRight, right_of

if TYPE_CHECKING:
    from hami.scheduler.admit_claims import ClaimAdmitter

log = logging.getLogger(__name__)

WEBHOOK_LIMIT = 7 * MIB
FILTER_LIMIT = 64 * MIB  # a simulation sends whole nodes
PREEMPT_LIMIT = 16 * MIB  # 1,000 nodes with 300 victims each
BIND_LIMIT = MIB
PIECE = 65_536  # bytes that are read at a time
# threads that binds leave to other requests; half of the threads if there are few
RESERVED_THREADS = 64
LOGGED = 1000  # characters of a reason, which may quote the pod
START_TIMEOUT_S = 5.0  # a filter waits for this long until the caches are filled
JSON = "application/json"
_STRANGER = extender.render_bind(
    "extender verbs are served on --extender-bind-address, elsewhere to clients with a "
    "certificate of --client-ca-file, and /simulate to those of "
    "--simulate-client-ca-file"
)

_EXTENDERS = frozenset({ClientRight.EXTENDER})
_SIMULATORS = frozenset({ClientRight.EXTENDER, ClientRight.SIMULATE})

Observe = Callable[[str, str, float], None]
IsStarted = Callable[[float], bool]
Admit = Callable[[Review], Admitted | Denied]
Act = Callable[[bytes], tuple[bytes, str]]
"""Returns the answer to a body, and the outcome. Raises: HamiError."""
Refuse = Callable[[str, int], bytes]
"""Returns the answer to a body that cannot be read or acted on, given a text and an HTTP status."""
Answer = Callable[[WSGIEnvironment], tuple[bytes, int]]
"""Returns the JSON that answers a request, and its HTTP status. Raises nothing."""


@dataclass(frozen=True, slots=True)
class Verbs:
    """The handlers of the requests. *reservation* returns the unbound reservation of a pod uid. *in_flight* counts the
    requests that background work leaves the interpreter to. *claim_admitter*: None if pods get no claims."""

    admitter: Admitter
    node_filter: NodeFilter
    preemption_filter: PreemptionFilter
    binder: Binder
    reservation: Callable[[str], Promise | None]
    in_flight: InFlight
    claim_admitter: ClaimAdmitter | None = None


def create_app(
    verbs: Verbs,
    is_started: IsStarted,
    unready_reason: Callable[[], str | None],
    observe: Observe,
    *,
    threads: int,
    hung_reason: Callable[[], str] = str,
) -> flask.Flask:
    """Returns the application.

    *is_started* reports whether the caches have been filled, after at most so many seconds. *unready_reason* returns
    why requests cannot be served now; ``None`` if they can.
    *hung_reason* returns which threads have died or hang; empty if none.
    *observe* is called for each verb with its outcome (``ok``, ``refused``, ``error``) and its duration in seconds.
    *threads*: the threads that serve the application. A bind that waits for its node occupies one; 64 threads are
    reserved for other requests, so that the webhook and the filter never wait for a bind. Further binds are rejected
    and retried by kube-scheduler; a namespace gets no more than it leaves to others.
    """
    app = flask.Flask(__name__, static_folder=None)
    _add_reservations(app, verbs.reservation)
    _add_health(app, is_started, unready_reason, hung_reason)
    app.register_error_handler(Exception, _answer_error)
    most_binds = max(1, threads - RESERVED_THREADS, threads // 2)
    answers = {**_webhooks(verbs, observe), **_extender(verbs, is_started, observe, most_binds)}
    app.wsgi_app = _Posts(app.wsgi_app, answers)  # type: ignore[method-assign]
    return app


class _Posts:
    """A WSGI application that answers POST requests by their paths. *app* serves all other paths."""

    def __init__(self, app: WSGIApplication, answers: Mapping[str, Answer]) -> None:
        self._app = app
        self._answers = answers

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._answers.get(environ["PATH_INFO"])
        if answer is None:
            return self._app(environ, start_response)
        if environ["REQUEST_METHOD"] != "POST":
            refusal = _text("Method Not Allowed", 405)
            refusal.headers["Allow"] = "POST"
            return refusal(environ, start_response)
        body, status = answer(environ)
        start_response(
            f"{status} {HTTPStatus(status).phrase}",
            [("Content-Type", JSON), ("Content-Length", str(len(body)))],
        )
        return (body,)


def _webhooks(verbs: Verbs, observe: Observe) -> dict[str, Answer]:
    """Returns the answers to the API server by their paths."""
    ways: dict[str, Admit] = {"/webhook": lambda review: verbs.admitter.admit(review)}
    if verbs.claim_admitter is not None:
        for mode in CLAIM_ALLOCATION_MODES:
            ways[f"/webhook/{mode}"] = partial(verbs.claim_admitter.admit, allocation_mode=mode)
    return {path: partial(_webhook, admit, observe) for path, admit in ways.items()}


def _webhook(admit: Admit, observe: Observe, environ: WSGIEnvironment) -> tuple[bytes, int]:
    """Mutating admission of pods."""
    review: Review | None = None

    def act(body: bytes) -> tuple[bytes, str]:
        nonlocal review
        content_type = environ.get("CONTENT_TYPE", "")
        if content_type != JSON:
            raise _unreadable(f"contentType={content_type}, expected {JSON}")
        if not body:
            raise _unreadable("request body is empty")
        review = admission.parse_review(body)
        return _admit(admit, review)

    return _answer(
        "webhook",
        WEBHOOK_LIMIT,
        act,
        lambda text, code: admission.render_denied(review, code, text),
        observe,
        environ,
    )


def _unreadable(problem: str) -> MalformedInput:
    return MalformedInput("body", "", problem, message=problem)


def _admit(admit: Admit, review: Review) -> tuple[bytes, str]:
    verdict = admit(review)
    if isinstance(verdict, Denied):
        log.info(
            "pod denied", extra={"namespace": review.namespace, "reason": verdict.message[:LOGGED]}
        )
        return admission.render_denied(review, verdict.code, verdict.message), "refused"
    return admission.render_allowed(review, verdict.pod, verdict.message, verdict.warnings), "ok"


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb of kube-scheduler, for bodies of *limit* bytes at most."""

    name: str
    limit: int
    act: Act
    refuse: Refuse
    callers: frozenset[ClientRight] = _EXTENDERS  # the rights of which a client needs one
    is_in_flight: bool = True  # background work waits: kube-scheduler places no other pod meanwhile


def _extender(
    verbs: Verbs, is_started: IsStarted, observe: Observe, most_binds: int
) -> dict[str, Answer]:
    """Returns the answers to kube-scheduler by their paths. At most *most_binds* binds wait or write at a time."""
    node_filter = verbs.node_filter
    simulate = partial(_simulate, node_filter, is_started)
    bind = partial(_bind, verbs.binder, BindSlots(most_binds))
    rows = (
        _Verb("filter", FILTER_LIMIT, partial(_filter, node_filter, is_started), _refuse_filter),
        _Verb("prioritize", FILTER_LIMIT, partial(_prioritize, node_filter), _abstain),
        _Verb("preempt", PREEMPT_LIMIT, partial(_preempt, verbs.preemption_filter), _veto),
        _Verb("simulate", FILTER_LIMIT, simulate, _refuse_filter, _SIMULATORS, is_in_flight=False),
        _Verb("bind", BIND_LIMIT, bind, _refuse_bind, is_in_flight=False),
    )
    return {f"/{verb.name}": partial(_extend, verb, verbs.in_flight, observe) for verb in rows}


def _extend(
    verb: _Verb, in_flight: InFlight, observe: Observe, environ: WSGIEnvironment
) -> tuple[bytes, int]:
    if right_of(environ) not in verb.callers:
        return _STRANGER, 403

    def act(body: bytes) -> tuple[bytes, str]:
        if not verb.is_in_flight:
            return verb.act(body)
        with in_flight.request():
            return verb.act(body)

    return _answer(verb.name, verb.limit, act, verb.refuse, observe, environ)


def _add_reservations(app: flask.Flask, reservation: Callable[[str], Promise | None]) -> None:
    @app.get("/reservations/<uid>")
    def reserved(uid: str) -> flask.Response:
        """Shows what the pod's Binding will carry."""
        if right_of(flask.request.environ) is not ClientRight.EXTENDER:
            return _json(_STRANGER, 403)
        if (found := reservation(uid)) is None:
            return _json(b'{"error":"nothing is reserved for this uid"}', 404)
        return _json(
            msgspec.json.encode(
                {
                    "node": found.node,
                    "annotations": found.annotations,
                    "labels": render_labels(found.node),
                }
            )
        )


def _answer(
    name: str, limit: int, act: Act, refuse: Refuse, observe: Observe, environ: WSGIEnvironment
) -> tuple[bytes, int]:
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
    return answer, status


def _filter(node_filter: NodeFilter, is_started: IsStarted, body: bytes) -> tuple[bytes, str]:
    """Names the one node that should run the pod, or why none can."""
    args = extender.parse_filter(body)
    if not is_started(START_TIMEOUT_S):
        return extender.render_filter(
            None, error="the scheduler's caches are not filled yet"
        ), "error"
    if args.nodes is not None:
        return _simulate_on(node_filter, args.pod, args.nodes)
    filtered = node_filter.filter(args.pod, args.names)
    answer = extender.render_filter(
        filtered.names, filtered.failed, unresolvable=filtered.unresolvable
    )
    if filtered.failed or filtered.unresolvable:
        return answer, "refused"
    return answer, "ok"


def _prioritize(node_filter: NodeFilter, body: bytes) -> tuple[bytes, str]:
    """Scores the nodes that remain, if there are several."""
    args = extender.parse_filter(body)
    names: Sequence[str] = args.names or ()
    if args.nodes is not None:
        names = [node.name for node in extender.parse_nodes(args.nodes)]
    return extender.render_priorities(node_filter.prioritize(args.pod, names)), "ok"


def _simulate(node_filter: NodeFilter, is_started: IsStarted, body: bytes) -> tuple[bytes, str]:
    """Names all nodes that the pod fits, for an autoscaler. Nothing is reserved, and no review waits for it."""
    with without_turn():
        return _simulated(node_filter, is_started, body)


def _simulated(node_filter: NodeFilter, is_started: IsStarted, body: bytes) -> tuple[bytes, str]:
    args = extender.parse_filter(body)
    if args.nodes is None:
        raise MalformedInput("Nodes", "", "missing: the extender needs nodeCacheCapable: false")
    if not is_started(START_TIMEOUT_S):
        raise NodeLocked("the scheduler's caches are not filled yet")
    return _simulate_on(node_filter, args.pod, args.nodes)


def _simulate_on(
    node_filter: NodeFilter, pod: Pod, nodes: Sequence[msgspec.Raw]
) -> tuple[bytes, str]:
    names: list[str] = []
    filtered = node_filter.simulate(pod, _noting_names(extender.parse_nodes(nodes), names))
    fitting = [raw for name, raw in zip(names, nodes) if name not in filtered.failed]
    answer = extender.render_simulation(fitting, filtered.failed)
    if not fitting:
        return answer, "refused"
    return answer, "ok"


def _noting_names(nodes: Iterable[Node], names: list[str]) -> Iterator[Node]:
    for node in nodes:
        names.append(node.name)
        yield node


def _preempt(preemption_filter: PreemptionFilter, body: bytes) -> tuple[bytes, str]:
    """Names the nodes where evictions would make room for the pod's devices, too, and whom to evict there."""
    args = extender.parse_preemption(body)
    proposals = {node: victims.uids for node, victims in args.victims.items()}
    evictions = preemption_filter.filter(args.pod, proposals)
    victims = {node: args.victims[node].with_uids(uids) for node, uids in evictions.items()}
    answer = extender.render_preemption(victims)
    if args.victims and not evictions:
        return answer, "refused"
    return answer, "ok"


def _refuse_filter(text: str, code: int) -> bytes:
    """Returns the answer that names no node and says why."""
    return extender.render_filter(None, error=text)


def _abstain(text: str, code: int) -> bytes:
    """Returns the answer after which kube-scheduler's own scores decide. It cannot say why."""
    log.warning("nodes not scored", extra={"reason": text[:LOGGED]})
    return extender.render_priorities({})


def _veto(text: str, code: int) -> bytes:
    """Returns the answer after which nobody is evicted. It cannot say why."""
    log.warning("preemption vetoed", extra={"reason": text[:LOGGED]})
    return extender.render_preemption({})


def _refuse_bind(text: str, code: int) -> bytes:
    """Returns the answer that says why the pod is not bound."""
    return extender.render_bind(text)


def _bind(binder: Binder, slots: BindSlots, body: bytes) -> tuple[bytes, str]:
    """Binds the pod with the devices reserved for it."""
    args = extender.parse_bind(body)
    with slots.taken(args.ref):
        binder.bind(args.ref, args.node)
    return extender.render_bind(), "ok"


def _add_health(
    app: flask.Flask,
    is_started: IsStarted,
    unready_reason: Callable[[], str | None],
    hung_reason: Callable[[], str],
) -> None:
    @app.get("/healthz")
    def healthz() -> flask.Response:
        """Reports ok once the caches have been filled, unless a thread has died or hangs."""
        if reason := hung_reason():
            return _text(reason, 500)
        if not is_started(0):
            return _text("starting: caches are not filled yet", 503)
        return _text("ok")

    @app.get("/readyz")
    def readyz() -> flask.Response:
        """Reports ok while the caches are filled and fresh."""
        reason = unready_reason()
        if reason is not None:
            return _text(reason, 503)
        return _text("ok")

    @app.get("/version")
    def version() -> flask.Response:
        """Returns the version of HAMi."""
        return _json(b'{"version":"%s"}' % __version__.encode())


def _answer_error(error: Exception) -> flask.Response:
    """Answers an error outside a verb with a status and one line, never a traceback."""
    if isinstance(error, HTTPException):
        return _text(f"{error.name}", error.code or 500)
    log.exception("request failed", exc_info=error)
    return _text("internal error, see the scheduler's log", 500)


def _body(environ: WSGIEnvironment, limit: int) -> bytes:
    """Reads the body without ever holding it twice. Raises: HTTPException."""
    length = get_content_length(environ) or 0
    if length > limit:
        raise RequestEntityTooLarge
    # of a body without a length, the stream fails after so many bytes
    stream = get_input_stream(environ, max_content_length=limit + 1)
    body = io.BytesIO()
    # a buffer of this size is allocated for each read
    shutil.copyfileobj(stream, body, min(length or PIECE, PIECE))
    return body.getvalue()


def _json(body: bytes, status: int = 200) -> flask.Response:
    return flask.Response(body, status=status, mimetype=JSON)


def _text(text: str, status: int = 200) -> flask.Response:
    return flask.Response(text + "\n", status=status, mimetype="text/plain")
