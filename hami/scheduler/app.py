"""The WSGI application: admission, the extender verbs, health. Decodes, calls, encodes; decides nothing.

A verb's answer is always 200 with a well-formed body: kube-scheduler and the API server read the verdict from it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import flask
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from hami import __version__
from hami.codec import admission, extender
from hami.codec.admission import Review
from hami.errors import HamiError, NodeLocked
from hami.scheduler.verbs import Denied, Verbs
from hami.web.tls import client_is_trusted

__all__ = ["Health", "create_app"]

log = logging.getLogger(__name__)

MIB = 1 << 20
WEBHOOK_LIMIT = 7 * MIB
FILTER_LIMIT = 64 * MIB  # a simulation carries whole nodes
BIND_LIMIT = MIB
SPARE = 64  # threads that waiting binds leave to all else; of a few threads, half
START_PATIENCE = 5.0  # seconds that a filter waits for the caches
JSON = "application/json"

Observe = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True)
class Health:
    """*started*: the caches have been filled once. *unready*: why requests cannot be served now, ``None`` if they
    can. *await_start*: wait until started, at most so many seconds; whether it is."""

    started: Callable[[], bool]
    unready: Callable[[], str | None]
    await_start: Callable[[float], bool]


def create_app(verbs: Verbs, reservation: Callable[[str], bytes | None], health: Health,
               observe: Observe = lambda verb, outcome, seconds: None, *, threads: int) -> flask.Flask:
    """The application. *reservation* renders what stands reserved for a pod uid. *observe* is told of each verb, its
    outcome (``ok``, ``refused``, ``error``) and the seconds it took. *threads*: how many serve it. Binds that wait for
    their node hold one each, so they get only so many that the webhook and the filter never wait for one; a bind
    beyond that is refused at once, and kube-scheduler tries its pod again."""
    app = flask.Flask(__name__, static_folder=None)
    app.register_blueprint(_webhook(verbs, observe))
    app.register_blueprint(_extender(verbs, reservation, health, observe, max(1, threads - SPARE, threads // 2)))
    app.register_blueprint(_health(health))
    app.register_error_handler(Exception, _answer_error)
    return app


def _webhook(verbs: Verbs, observe: Observe) -> flask.Blueprint:
    blueprint = flask.Blueprint("webhook", __name__)

    @blueprint.post("/webhook")
    def webhook() -> flask.Response:
        """Mutating admission of pods."""
        begun = time.monotonic()
        review: Review | None = None
        try:
            body, problem = _body(WEBHOOK_LIMIT), _content_problem()
            if not body or problem:
                code, text = 400, problem or "request body is empty"
                answer, outcome = admission.render_denied(None, code, text), "error"
            else:
                review = admission.parse_review(body)
                answer, outcome = _admit(verbs, review)
        except RequestEntityTooLarge:
            answer = admission.render_denied(None, 413, f"request body is larger than {WEBHOOK_LIMIT} bytes")
            outcome = "error"
        except HamiError as error:
            answer, outcome = admission.render_denied(review, 400, str(error)), "error"
        except Exception:
            log.exception("admission failed")
            answer, outcome = admission.render_denied(review, 500, "internal error, see the scheduler's log"), "error"
        observe("webhook", outcome, time.monotonic() - begun)
        return _json(answer)

    return blueprint


def _admit(verbs: Verbs, review: Review) -> tuple[bytes, str]:
    verdict = verbs.admit(review)
    if isinstance(verdict, Denied):
        log.info("denied", extra={"namespace": review.namespace, "reason": verdict.message})
        return admission.render_denied(review, verdict.code, verdict.message), "refused"
    return admission.render_allowed(review, verdict.pod, verdict.message), "ok"


def _extender(verbs: Verbs, reservation: Callable[[str], bytes | None], health: Health,
              observe: Observe, binds: int) -> flask.Blueprint:
    blueprint = flask.Blueprint("extender", __name__)
    places = threading.BoundedSemaphore(binds)

    @blueprint.before_request
    def only_the_scheduler() -> flask.Response | None:
        if client_is_trusted(flask.request.environ):
            return None
        return _json(extender.render_bind("extender verbs are for callers on loopback or with a client certificate"),
                     403)

    @blueprint.post("/filter")
    def filter_nodes() -> flask.Response:
        """Scheduler extender: the one node that shall run the pod, or why none can."""
        return _verb("filter", FILTER_LIMIT, lambda body: _filter(verbs, health, body),
                     lambda text: extender.render_filter(None, error=text), observe)

    @blueprint.post("/bind")
    def bind() -> flask.Response:
        """Scheduler extender: bind the pod with what was reserved for it."""
        return _verb("bind", BIND_LIMIT, lambda body: _bind(verbs, places, body), extender.render_bind, observe)

    @blueprint.get("/reservations/<uid>")
    def reserved(uid: str) -> flask.Response:
        """What the pod's Binding will carry."""
        answer = reservation(uid)
        return _json(answer) if answer is not None else _json(b'{"error":"nothing is reserved for this uid"}', 404)

    return blueprint


def _verb(name: str, limit: int, act: Callable[[bytes], tuple[bytes, str]], refuse: Callable[[str], bytes],
          observe: Observe) -> flask.Response:
    begun = time.monotonic()
    try:
        answer, outcome = act(_body(limit))
    except RequestEntityTooLarge:
        answer, outcome = refuse(f"request body is larger than {limit} bytes"), "error"
    except HamiError as error:
        answer, outcome = refuse(str(error)), "error"
    except Exception:
        log.exception("verb failed", extra={"verb": name})
        answer, outcome = refuse("internal error, see the scheduler's log"), "error"
    observe(name, outcome, time.monotonic() - begun)
    return _json(answer)


def _filter(verbs: Verbs, health: Health, body: bytes) -> tuple[bytes, str]:
    args = extender.parse_filter(body)
    if not health.await_start(START_PATIENCE):
        return extender.render_filter(None, error="the scheduler's caches are not filled yet"), "error"
    if args.nodes is not None:
        found = verbs.simulate(args.pod, [node for node, _ in args.nodes])
        chosen = next((raw for node, raw in args.nodes if node.name == found.chosen), None)
        return extender.render_simulation(chosen, found.failed), "ok" if chosen else "refused"
    found = verbs.filter(args.pod, args.names)
    return extender.render_filter(found.names, found.failed), "refused" if found.failed else "ok"


def _bind(verbs: Verbs, places: threading.BoundedSemaphore, body: bytes) -> tuple[bytes, str]:
    args = extender.parse_bind(body)
    if not places.acquire(blocking=False):
        raise NodeLocked(f"pod {args.ref}: too many pods are being bound already, it must be tried again")
    try:
        verbs.bind(args.ref, args.node)
    finally:
        places.release()
    return extender.render_bind(), "ok"


def _health(health: Health) -> flask.Blueprint:
    blueprint = flask.Blueprint("health", __name__)

    @blueprint.get("/healthz")
    def healthz() -> flask.Response:
        """The process serves; it says so from when its caches have first been filled."""
        return _text("ok") if health.started() else _text("starting: caches are not filled yet", 503)

    @blueprint.get("/readyz")
    def readyz() -> flask.Response:
        """The caches are filled and fresh."""
        reason = health.unready()
        return _text("ok") if reason is None else _text(reason, 503)

    @blueprint.get("/version")
    def version() -> flask.Response:
        """What runs here."""
        return _json(b'{"version":"%s"}' % __version__.encode())

    return blueprint


def _answer_error(error: Exception) -> flask.Response:
    """Whatever goes wrong outside a verb: a status and one line, never a traceback."""
    if isinstance(error, HTTPException):
        return _text(f"{error.name}", error.code or 500)
    log.exception("request failed", exc_info=error)
    return _text("internal error, see the scheduler's log", 500)


def _body(limit: int) -> bytes:
    flask.request.max_content_length = limit
    body = flask.request.get_data(cache=False)
    if flask.request.content_length is None and len(body) >= limit:
        raise RequestEntityTooLarge  # a body without a length is cut off there, without a word
    return body


def _content_problem() -> str | None:
    given = flask.request.headers.get("Content-Type", "")
    return None if given == JSON else f"contentType={given}, expected {JSON}"


def _json(body: bytes, status: int = 200) -> flask.Response:
    return flask.Response(body, status=status, mimetype=JSON)


def _text(text: str, status: int = 200) -> flask.Response:
    return flask.Response(text + "\n", status=status, mimetype="text/plain")
