"""The WSGI application of the dashboard: GET and HEAD of pages, each as HTML and as JSON, and a form to sign in.

It checks the viewer, takes the page from the renderings, and answers with 304 what the viewer has already. All texts
come from tenants: templates escape them, and the headers allow no script but ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote, urlencode

import flask
import msgspec
from markupsafe import Markup
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from hami import __version__
from hami.dashboard import texts
from hami.dashboard.access import Access, Scope, check_host
from hami.dashboard.caches import Rendering, Renderings
from hami.dashboard.errors import NotListable, PageError
from hami.dashboard.live import DeviceParts
from hami.dashboard.login import (
    add_login,
    authorization,
    form_methods,
    has_form,
    is_signed_in,
    sign_in_page,
)
from hami.dashboard.paging import page_of
from hami.dashboard.replays import NO_REPLAYS, ReplaysView
from hami.dashboard.usage_page import NO_USAGE, UsageView
from hami.dashboard.views import Views, node_query, pod_query
from hami.inspect.refusals import AWAITS_SCHEDULER
from hami.inspect.top import DeviceRow

log = logging.getLogger(__name__)

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
METHODS = ("GET",)  # Flask adds HEAD
MAX_STRIPS = 8192  # of nodes, of some 2 KiB each: 40 pages
MAX_BARS = 8192  # of cards, of some 300 bytes each
# of queries; namespaces come from `_namespaces`
ARGUMENTS = frozenset({"node", "model", "pod", "state", "sort", "page"})
STATIC_SECONDS = 3600  # for which a browser keeps a file; its address has the version


@dataclass(frozen=True, slots=True)
class ViewerPage:
    """A page for a viewer: *make* returns its record for *template*, after *prepare*, which may wait."""

    template: str
    make: Callable[[Scope], Any]
    prepare: Callable[[Scope], object]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The parts that the pages are made of.

    *version*: of what they show; a rendering is used until it differs. *unready_reason*: why nothing can be shown yet;
    empty if it can. *hung_reason*: which threads have died or hang; empty if none. *is_local*: the address is loopback,
    and nobody is asked who they are. *has_history*: a Prometheus is asked for what was. *usage*: the page of records.
    *replays*: that of reports.
    """

    views: Views
    access: Access
    renderings: Renderings
    version: Callable[[], Hashable]
    unready_reason: Callable[[], str]
    hung_reason: Callable[[], str]
    is_local: bool
    has_history: bool = False
    usage: UsageView = NO_USAGE
    replays: ReplaysView = NO_REPLAYS


class _Pages(flask.Flask):
    jinja_options = {"trim_blocks": True, "lstrip_blocks": True}


def create_dashboard(dashboard: Dashboard) -> flask.Flask:
    """Returns the application."""
    app = _Pages(__name__, static_url_path=f"/static/{__version__}")
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = STATIC_SECONDS
    app.jinja_env.filters.update(texts.FILTERS)
    app.jinja_env.globals.update(
        link=link,
        kept_card_strip=_card_strips(app),
        kept_card_bar=_card_bars(app),
        awaits_scheduler=AWAITS_SCHEDULER,
        version=__version__,
        is_signed_in=is_signed_in,
        has_history=dashboard.has_history,
        has_replays=bool(dashboard.replays.folder),
    )
    app.before_request(partial(_check_request, dashboard))
    app.after_request(_add_headers)
    app.register_error_handler(Exception, _answer_error)
    _add_pages(app, dashboard)
    if not dashboard.is_local:
        add_login(app, dashboard.access.check)
    return app


def compile_templates(app: flask.Flask) -> None:
    """Compiles all templates, before a viewer waits for them: together they take longer than a page."""
    for name in app.jinja_env.list_templates():
        app.jinja_env.get_template(name)


def link(path: str, /, *names: str, **query: object) -> str:
    """Returns the address of a page: *path*, then *names* as segments. The viewer's namespaces are kept."""
    given = {name: str(value) for name, value in query.items() if value not in ("", None)}
    pairs = [*given.items(), *(("namespace", name) for name in _namespaces())]
    address = path + "".join(f"/{quote(name, safe='')}" for name in names)
    if not pairs:
        return address
    return f"{address}?{urlencode(pairs)}"


def _card_strips(app: flask.Flask) -> Callable[[str, Sequence[DeviceParts]], Markup]:
    """Returns what renders the small bars of a node's cards. They are kept: most nodes of a page have not changed since
    the last time, and their bars are the most of it."""

    @lru_cache(MAX_STRIPS)
    def rendered(node: str, rows: tuple[DeviceRow, ...]) -> Markup:
        return Markup(_macros(app).card_strip(node, rows))

    return lambda node, devices: rendered(node, tuple(device.row for device in devices))


def _card_bars(app: flask.Flask) -> Callable[[int, int, int, tuple[str, ...]], Markup]:
    """Returns what renders one small bar. They are kept: most cards of a cluster look like some other one."""

    @lru_cache(MAX_BARS)
    def rendered(index: int, used: int, total: int, state: tuple[str, ...]) -> Markup:
        return Markup(_macros(app).card_bar(index, used, total, state))

    return rendered


def _macros(app: flask.Flask) -> Any:
    return app.jinja_env.get_template("parts.html").module


def _namespaces() -> tuple[str, ...]:
    """Returns the namespaces that the viewer asks for, as one parameter each or separated by commas."""
    names: set[str] = set()
    for text in flask.request.args.getlist("namespace"):
        names.update(name.strip() for name in text.split(","))
    return tuple(sorted(names - {""}))


def _add_pages(app: flask.Flask, dashboard: Dashboard) -> None:
    views = dashboard.views

    def add(
        path: str,
        template: str,
        make: Callable[..., Any],
        prepare: Callable[..., object] = lambda scope, **variables: None,
    ) -> None:
        """*make* takes the scope of the viewer and the variables of *path*, and returns the record. *prepare* takes the
        same before, and may wait."""

        def show(**variables: str) -> flask.Response:
            page = ViewerPage(template, partial(make, **variables), partial(prepare, **variables))
            return _answer(dashboard, page, variables.get("namespace", ""))

        app.add_url_rule(path, template + path, show, methods=METHODS)

    add("/", "nodes.html", lambda scope: views.nodes(scope, node_query(flask.request.args)))
    add(
        "/pending",
        "pending.html",
        lambda scope: views.waiting.page(scope, page_of(flask.request.args)),
        lambda scope: views.waiting.expect_page(scope, page_of(flask.request.args)),
    )
    add("/pods", "pods.html", lambda scope: views.pods(scope, pod_query(flask.request.args)))
    add("/health", "health.html", lambda scope: views.health(scope, page_of(flask.request.args)))
    add("/nodes/<name>", "node.html", views.node)
    add("/cards/<node>/<path:uuid>", "card.html", views.device)
    add("/pods/<namespace>/<name>", "pod.html", views.pod, views.waiting.expect_pod)
    add("/namespaces", "namespaces.html", views.namespaces)
    add("/usage", "usage.html", dashboard.usage.page)
    add(
        "/replays",
        "replays.html",
        lambda scope: dashboard.replays.page(),
        lambda scope: dashboard.replays.expect(),
    )
    add(
        "/namespaces/<namespace>",
        "namespace.html",
        lambda scope, namespace: views.namespace(namespace, page_of(flask.request.args)),
    )

    def add_probe(path: str, reason: Callable[[], str], status: int) -> None:
        """Adds a page for the kubelet, which has no token."""

        def show() -> tuple[str, int, dict[str, str]]:
            text = reason()
            headers = {"Content-Type": "text/plain", "Cache-Control": "no-store"}
            return f"{text or 'ok'}\n", status if text else 200, headers

        app.add_url_rule(path, path, show, methods=METHODS)

    add_probe("/healthz", dashboard.hung_reason, 500)
    add_probe("/readyz", dashboard.unready_reason, 503)


def _check_request(dashboard: Dashboard) -> None:
    """Raises: PageError for a name of this host that is not its own: a foreign site may point its name at loopback.
    MethodNotAllowed for what is no question."""
    methods = ("GET", "HEAD", *form_methods(flask.request.path))
    if flask.request.method not in methods:
        raise MethodNotAllowed(valid_methods=methods)
    if dashboard.is_local:
        check_host(flask.request.host)


def _answer(dashboard: Dashboard, page: ViewerPage, namespace: str) -> flask.Response:
    """Answers with the page for the viewer, or 304."""
    request = flask.request
    scope = dashboard.access.scope(authorization(), _namespaces(), namespace)
    if reason := dashboard.unready_reason():
        raise PageError(reason, 503)
    form = request.args.get("format", "html")
    if form not in ("html", "json"):
        raise PageError(f"format={form[:20]}: expected html or json", 400)
    key = form, request.path, _canonical(request.args), scope, is_signed_in()
    return _response(
        dashboard.renderings.get(
            key,
            dashboard.version,
            lambda: _render(form, page.template, page.make(scope), scope),
            prepare=lambda: page.prepare(scope),
        )
    )


def _render(form: str, template: str, document: Any, scope: Scope) -> tuple[str, str]:
    if form == "json":
        return msgspec.json.encode(document).decode(), "application/json"
    query = partial(flask.request.args.get, default="")
    page = flask.render_template(template, page=document, scope=scope, query=query, here=_here)
    return page, "text/html; charset=utf-8"


def _here(**changes: object) -> str:
    """Returns the address of the current page with *changes* of its query. Other viewers may get the same rendering, so
    it contains nothing that is no part of the key."""
    query = {name: text for name, text in flask.request.args.items() if name in ARGUMENTS} | changes
    return link(flask.request.path, **query)


def _canonical(args: MultiDict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(
            (name, text)
            for name, text in args.items(multi=True)
            if name in ARGUMENTS | {"namespace"}
        )
    )


def _response(rendering: Rendering) -> flask.Response:
    headers = {
        "ETag": f'"{rendering.etag}"',
        "Vary": "Accept-Encoding, Authorization, Cookie",
        "Cache-Control": "private, no-cache",
    }  # a browser asks each time, with the ETag
    if flask.request.if_none_match.contains(rendering.etag):
        return flask.Response(status=304, headers=headers)
    if flask.request.accept_encodings["gzip"]:
        return flask.Response(
            rendering.compressed,
            headers=headers | {"Content-Encoding": "gzip"},
            content_type=rendering.content_type,
        )
    return flask.Response(rendering.body, headers=headers, content_type=rendering.content_type)


def _add_headers(response: flask.Response) -> flask.Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}
"""Of errors, by their status."""


def _answer_error(error: Exception) -> flask.Response:
    """Answers with a status and one line, never a traceback."""
    match error:
        case PageError():
            status, text = error.status, str(error)
        case HTTPException():
            status, text = error.code or 500, error.name
        case _:
            log.exception("dashboard: page failed", exc_info=error)
            status, text = 500, "internal error, see the log"
    headers = {"Cache-Control": "no-store", **_HEADERS.get(status, {})}
    if isinstance(error, HTTPException):
        headers |= {name: value for name, value in error.get_headers() if name == "Allow"}
    if flask.request.args.get("format") == "json":
        return flask.make_response({"error": text}, status, headers)
    if status == 401:
        return _answer_unknown(text, headers)
    return _error_page(status, text, headers, asks_namespace=isinstance(error, NotListable))


def _answer_unknown(text: str, headers: dict[str, str]) -> flask.Response:
    """Answers a viewer who is not known: with the form, if the viewer can use it."""
    if has_form():
        return sign_in_page(text)
    return _error_page(401, text, headers, asks_namespace=False)


def _error_page(
    status: int, text: str, headers: dict[str, str], *, asks_namespace: bool
) -> flask.Response:
    page = flask.render_template(
        "error.html", status=status, text=text, asks_namespace=asks_namespace
    )
    return flask.make_response(page, status, headers)
