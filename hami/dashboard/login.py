"""Signs a browser in: a form takes a token of the cluster, and a cookie carries it from then on.

The cookie ends with the browser's session. Scripts cannot read it, and a browser sends it over HTTPS only, to this host
only, and never for a page of another site. The bearer header goes before the cookie.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import flask

from hami.dashboard.errors import PageError

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

COOKIE = "__Host-hami-token"
COOKIE_LIMIT = 3900  # characters: a browser keeps 4,096 bytes of a cookie, with its name
FORM_LIMIT = 16_384  # bytes
SIGN_IN, SIGN_OUT = "/login", "/logout"
FORWARDED = "Hami-Forwarded"
"""Header of a request that ``kubectl hami dashboard`` forwards with the token of the user's kubeconfig. Who sends it
gets pages without forms, no more."""

_NEXT = re.compile(r"/(?:[^/\\\x00-\x20\x7f][^\\\x00-\x20\x7f]{0,2000})?")
"""Addresses of this dashboard. Two slashes at the beginning, or a backslash, would lead elsewhere."""
_CREDENTIAL = re.compile(r"(?:[Bb]earer +)?(.*)", re.DOTALL)


def authorization() -> str:
    """Returns the credentials of the request as a header ``Authorization``; empty if there are none."""
    header = flask.request.headers.get("Authorization", "")
    if header:
        return header
    token = flask.request.cookies.get(COOKIE, "")
    if not token:
        return ""
    return f"Bearer {token}"


def is_signed_in() -> bool:
    """Reports whether the viewer comes with the cookie that the form has set."""
    if "Authorization" in flask.request.headers or not has_form():
        return False
    return COOKIE in flask.request.cookies


def has_form() -> bool:
    """Reports whether the viewer can use the form."""
    return FORWARDED not in flask.request.headers


def form_methods(path: str) -> tuple[str, ...]:
    """Returns the methods that change something at *path*."""
    return ("POST",) if path in (SIGN_IN, SIGN_OUT) else ()


def add_login(app: flask.Flask, check: Callable[[str], object]) -> None:
    """Adds the form and what it does. *check*: raises PageError unless a header ``Authorization`` is accepted."""
    app.config["MAX_CONTENT_LENGTH"] = FORM_LIMIT

    def sign_in() -> Response:
        if flask.request.method != "POST":
            return sign_in_page("")
        _check_origin()
        token = _token()
        try:
            check(f"Bearer {token}")
        except PageError as error:
            if error.status != 401:
                raise
            return sign_in_page(str(error))
        answer = flask.redirect(_next(flask.request.form.get("next", "")), 303)
        answer.set_cookie(COOKIE, token, secure=True, httponly=True, samesite="Strict", path="/")
        return answer

    def sign_out() -> Response:
        _check_origin()
        answer = flask.redirect(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, secure=True, httponly=True, samesite="Strict", path="/")
        return answer

    app.add_url_rule(SIGN_IN, SIGN_IN, sign_in, methods=("GET", "POST"))
    app.add_url_rule(SIGN_OUT, SIGN_OUT, sign_out, methods=("POST",))


def sign_in_page(problem: str) -> flask.Response:
    """Returns the form; after it, the viewer sees the page that was asked for. *problem*: with the last token."""
    target = flask.request.full_path.removesuffix("?")
    if flask.request.path in (SIGN_IN, SIGN_OUT):
        target = _next(flask.request.form.get("next", ""))
    page = flask.render_template("login.html", problem=problem, next=target, limit=COOKIE_LIMIT)
    headers = {"Cache-Control": "no-store", "WWW-Authenticate": "Bearer"}
    return flask.make_response(page, 401 if problem else 200, headers)


def _token() -> str:
    """Returns the token of the form, also if it was pasted with the word Bearer. Raises: PageError."""
    match = _CREDENTIAL.fullmatch(flask.request.form.get("token", "").strip())
    token = match[1] if match else ""
    if len(token) > COOKIE_LIMIT:
        raise PageError(
            f"token: a cookie has room for {COOKIE_LIMIT:,} characters, and this token has {len(token):,}; "
            "use a proxy that sends it in the header Authorization",
            400,
        )
    return token


def _next(address: str) -> str:
    """Returns *address*, or the first page if it is none of this dashboard."""
    return address if _NEXT.fullmatch(address) else "/"


def _check_origin() -> None:
    """Raises: PageError unless the form is ours. Another site's page could sign a viewer in as somebody else."""
    site = flask.request.headers.get("Sec-Fetch-Site", "")
    origin = flask.request.headers.get("Origin", "")
    if site == "same-origin" or (not site and origin == f"https://{flask.request.host}"):
        return
    raise PageError("this form can only be sent from the dashboard's own page", 403)
