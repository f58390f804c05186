"""A browser signs in with a token: the cookie, who may send the form, what a page says, and the way out."""

import html
from http.cookies import SimpleCookie

import pytest

from hami.dashboard.login import COOKIE, COOKIE_LIMIT, FORM_LIMIT, FORWARDED
from testing.cases import cases
from testing.fake_api import bound, node
from testing.nodes import gpu
from tests.dashboard.stage import Rights, Stage

OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def stage():
    rights = Rights({"t-admin": "admin", "t-dev": "dev"}, {"admin": {""}, "dev": {"default"}})
    return Stage([node("n1", gpu())], [bound("a", "n1", (0, 6000, 50), gpu=1)], rights=rights)


def browse(stage, path, token="", **options):
    """Asks as a browser does that has kept *token* in the cookie."""
    headers = {"Host": "hami.example", "Accept": "text/html"} | options.pop("headers", {})
    if token:
        headers["Cookie"] = f"{COOKIE}={token}"
    client = stage.app.test_client(use_cookies=False)
    return client.open(path, headers=headers, base_url="https://hami.example", **options)


def sign_in(stage, token="t-admin", headers=OWN, **form):
    return browse(stage, "/login", method="POST", data={"token": token, **form}, headers=headers)


def test_a_page_without_a_token_is_a_form_that_leads_back_to_it(stage):
    answer = browse(stage, "/pods?node=n1")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert '<form method="post" action="/login"' in answer.text
    assert 'name="next" value="/pods?node=n1"' in answer.text
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_token_becomes_a_cookie_of_this_session_that_scripts_and_other_sites_cannot_use(stage):
    answer = sign_in(stage, next="/pods?node=n1")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/pods?node=n1")
    morsel = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]
    assert morsel.value == "t-admin"
    assert {name: value for name, value in morsel.items() if value} == {
        "path": "/",
        "secure": True,
        "httponly": True,
        "samesite": "Strict",
    }


@cases(
    "token, path, status",
    ("t-admin", "/", 200),
    ("t-dev", "/", 403),
    ("t-dev", "/?namespace=default", 200),
    ("forged", "/", 401),
    ("a b", "/", 401),
    ("x" * 20_000, "/", 401),
)
def test_the_cookie_has_the_rights_of_its_token(stage, token, path, status):
    assert browse(stage, path, token).status_code == status


def test_the_bearer_header_goes_before_the_cookie(stage):
    of_dev = {"headers": {"Authorization": "Bearer t-dev"}}
    assert browse(stage, "/", "t-admin", **of_dev).status_code == 403
    assert "Sign out" not in browse(stage, "/?namespace=default", "t-admin", **of_dev).text
    assert "Sign out" in browse(stage, "/?namespace=default", "t-dev").text


def test_a_forwarded_page_has_no_form(stage):
    """`kubectl hami dashboard` sends nothing but questions."""
    forwarded = {"headers": {FORWARDED: "true"}}
    assert "Sign out" not in browse(stage, "/?namespace=default", "t-dev", **forwarded).text
    refused = browse(stage, "/", "forged", **forwarded)
    assert (refused.status_code, "<form" in refused.text) == (401, False)
    assert "does not accept the bearer token" in refused.text


def test_caches_tell_viewers_apart_by_the_cookie(stage):
    assert "Cookie" in browse(stage, "/", "t-admin").headers["Vary"]


@cases(
    "headers, status",
    (OWN, 303),
    ({"Origin": "https://hami.example"}, 303),
    ({}, 403),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "http://hami.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site", "Origin": "https://hami.example"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
)
@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_only_the_own_page_sends_a_form(stage, path, headers, status):
    answer = browse(stage, path, method="POST", data={"token": "t-admin"}, headers=headers)
    assert answer.status_code == status
    assert ("Set-Cookie" in answer.headers) == (status == 303)


@cases(
    "token, status, text",
    ("forged", 401, "does not accept the bearer token"),
    ("", 401, "sign in with a bearer token"),
    ("a b", 401, "sign in with a bearer token"),
    ("x\r\nSet-Cookie: y=z", 401, "sign in with a bearer token"),
    ("x" * (COOKIE_LIMIT + 1), 400, "this token has 3,901"),
    ("x" * FORM_LIMIT, 413, "Too Large"),
)
def test_what_is_no_token_makes_no_cookie(stage, token, status, text):
    answer = sign_in(stage, token)
    assert answer.status_code == status
    assert text in html.unescape(answer.text)
    assert "Set-Cookie" not in answer.headers


def test_a_token_may_be_pasted_with_the_word_bearer(stage):
    assert f"{COOKIE}=t-admin;" in sign_in(stage, " Bearer t-admin\n").headers["Set-Cookie"]


@pytest.mark.parametrize(
    "address",
    ["https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "x", "/" * 9],
)
def test_nobody_is_led_to_another_site(stage, address):
    assert sign_in(stage, next=address).headers["Location"] == "/"
    assert "evil" not in browse(stage, "/login").text


def test_a_viewer_can_sign_out(stage):
    page = browse(stage, "/", "t-admin")
    assert '<form method="post" action="/logout">' in page.text
    answer = browse(stage, "/logout", "t-admin", method="POST", headers=OWN)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    morsel = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]
    assert (morsel.value, morsel["max-age"], morsel["path"]) == ("", "0", "/")


def test_a_viewer_of_some_namespaces_is_asked_which(stage):
    page = browse(stage, "/", "t-dev")
    assert '<input name="namespace"' in page.text
    assert "you may not list pods in the whole cluster" in html.unescape(page.text)


@cases("path, method", ("/login", "PUT"), ("/logout", "GET"), ("/", "POST"))
def test_forms_add_no_other_method(stage, path, method):
    assert browse(stage, path, "t-admin", method=method, headers=OWN).status_code == 405


def test_json_has_no_form(stage):
    answer = browse(stage, "/?format=json")
    assert (answer.status_code, answer.is_json) == (401, True)


def test_without_viewers_there_is_nothing_to_sign_in_to():
    local = Stage([node("n1", gpu())])
    assert local.ask("/login").status_code == 404
    assert local.ask("/login", method="POST", Sec_Fetch_Site="same-origin").status_code == 404


def test_while_the_api_server_does_not_answer_nobody_signs_in(stage):
    rights = Rights({"t-admin": "admin"}, is_down=True)
    down = Stage([node("n1", gpu())], rights=rights)
    assert sign_in(down).status_code == 503
