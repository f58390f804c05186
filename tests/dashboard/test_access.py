"""What viewers may see, by their rights in the cluster."""

import pytest

from hami.dashboard.access import ACCEPTED_S, MAX_NAMESPACES, REFUSED_S, Access, Scope
from hami.dashboard.errors import PageError
from testing.cases import cases
from testing.replicas import Clock
from tests.dashboard.stage import Rights

USERS = {"t-admin": "admin", "t-dev": "dev", "t-none": "none"}
MAY = {"admin": {""}, "dev": {"a", "b"}}
ALL = Scope()


def some(*namespaces):
    return Scope(frozenset(namespaces))


def access(rights=None, clock=None):
    return Access(rights or Rights(dict(USERS), MAY), clock=clock or Clock())


@cases(
    "token, requested, of_page, expected",
    ("t-admin", (), "", ALL),
    ("t-admin", ("a",), "", some("a")),
    ("t-admin", (), "a", ALL),
    ("t-admin", ("a",), "c", some("a", "c")),
    ("t-dev", ("a",), "", some("a")),
    ("t-dev", ("a", "b"), "", some("a", "b")),
    ("t-dev", (), "b", some("b")),
    ("t-dev", (), "", 403),
    ("t-dev", ("c",), "", 403),
    ("t-dev", ("a", "c"), "", 403),
    ("t-dev", (), "c", 403),
    ("t-dev", ("a",), "c", 403),
    ("t-none", (), "", 403),
    ("t-none", ("a",), "", 403),
    ("forged", (), "", 401),
    ("", ("a",), "", 401),
    ("t-admin", ("../x",), "", 400),
    ("t-admin", tuple(f"n{number}" for number in range(MAX_NAMESPACES + 1)), "", 400),
)
def test_the_matrix(token, requested, of_page, expected):
    if isinstance(expected, Scope):
        assert access().scope(f"Bearer {token}", requested, of_page) == expected
    else:
        with pytest.raises(PageError) as refused:
            access().scope(f"Bearer {token}", requested, of_page)
        assert refused.value.status == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic eDp5",
        "Bearer",
        "Bearer a b",
        "Bearer t-admin\n",
        "Bearer é",
        "Bearer " + "x" * 20_000,
    ],
    ids=repr,
)
def test_what_is_no_bearer_token_is_not_sent_to_the_api_server(header):
    rights = Rights(dict(USERS), MAY)
    with pytest.raises(PageError) as refused:
        access(rights).scope(header, ())
    assert (refused.value.status, rights.reviewed) == (401, [])


def test_on_loopback_nobody_is_asked():
    local = Access(None, clock=Clock())
    assert local.scope("", ()) == ALL
    assert local.scope("", ("a",)) == some("a")


def test_answers_are_believed_for_some_time_and_refusals_shorter():
    clock, rights = Clock(), Rights(dict(USERS), MAY)
    checked = access(rights, clock)
    checked.scope("Bearer t-admin", ())
    reviewed = len(rights.reviewed)
    clock.seconds += ACCEPTED_S - 1
    checked.scope("Bearer t-admin", ())
    assert len(rights.reviewed) == reviewed
    clock.seconds += 2
    rights.users.clear()
    for seconds in (0, REFUSED_S - 1):
        clock.seconds += seconds
        with pytest.raises(PageError):
            checked.scope("Bearer t-admin", ())
        assert len(rights.reviewed) == reviewed + 1
    rights.users |= USERS
    clock.seconds += 2
    checked.scope("Bearer t-admin", ())


def test_without_an_answer_of_the_api_server_nobody_sees_anything():
    rights = Rights(dict(USERS), MAY, is_down=True)
    checked = access(rights)
    with pytest.raises(PageError) as refused:
        checked.scope("Bearer t-admin", ())
    assert refused.value.status == 503
    rights.is_down = False
    assert checked.scope("Bearer t-admin", ()) == ALL


def test_tokens_are_not_kept():
    checked = access()
    checked.scope("Bearer t-admin", ())
    assert "t-admin" not in repr(vars(checked._identities))
