"""The pages of the dashboard: what they show to whom, and what they answer to what is wrong."""

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.objects import parse_node
from hami.codec.slices import PublishedSlice
from hami.dashboard.views import NODES_A_PAGE
from hami.model import PodRef
from testing import builders
from testing.cases import cases
from testing.fake_api import bound, node, pending, quota
from testing.nodes import gpu
from tests.dashboard.stage import Rights, Stage

GPU = {"memory_mib": 10_000, "model": "A100"}
NODES = [
    node("n1", gpu(**GPU), gpu(**GPU)),
    node(
        "n2",
        gpu(**GPU),
        gpu(**GPU, healthy=False),
        annotations={"hami.io/device-cordon": "GPU-n2-0"},
    ),
    node("n3", gpu(**GPU | {"model": "H100"}), unschedulable=True),
]
PODS = [
    bound("a", "n1", (0, 6000, 50), gpu=1),
    bound("b", "n1", (0, 2000, 10), (1, 1000, 10), gpu=2),
    bound("secret", "n1", (0, 1500, 5), namespace="other", gpu=1),
    pending("waits", gpu=2, gpumem=9500),
]
QUOTAS = [quota("default", gpumem=90_000)]
PATHS = [
    "/",
    "/pending",
    "/pods",
    "/health",
    "/usage",
    "/nodes/n1",
    "/cards/n1/GPU-n1-0",
    "/pods/default/a",
    "/pods/default/waits",
    "/namespaces",
    "/namespaces/default",
]
RIGHTS = Rights({"t-admin": "admin", "t-dev": "dev"}, {"admin": {""}, "dev": {"default"}})


@pytest.fixture
def stage():
    return Stage(NODES, PODS, QUOTAS)


@pytest.fixture
def guarded():
    return Stage(NODES, PODS, QUOTAS, rights=RIGHTS)


def names(answer):
    return [item["node"]["name"] for item in answer["items"]]


# What is shown


def test_cards_are_the_rows_of_top_with_the_parts_that_pods_hold(stage):
    answer = stage.json("/")
    assert answer["total"] == {
        "nodes": 3,
        "cards": 5,
        "memoryMib": 50_000,
        "memoryUsedMib": 10_500,
        "largestFreeMib": 10_000,
        "pods": 3,
    }
    first = answer["items"][0]["cards"][0]
    assert (first["row"]["memoryUsedMib"], first["row"]["coresUsed"]) == (9500, 65)
    assert [(part["pod"], part["memoryMib"], part["cores"]) for part in first["segments"]] == [
        ("a", 6000, 50),
        ("b", 2000, 10),
        ("secret", 1500, 5),
    ]


@pytest.mark.parametrize("text", ["9" * 18, "9" * 5000, "soon"], ids=lambda text: text[:9])
def test_a_time_of_no_calendar_is_not_shown(stage, text):
    """Whoever may edit a pod may write any time of its bind."""
    odd = bound("odd", "n1", (0, 1000, 5))
    odd["metadata"]["annotations"]["hami.io/bind-time"] = text
    stage.add(odd)
    assert stage.json("/pods/default/odd")["boundAt"] == 0
    assert "<dt>Bound</dt>" not in stage.ask("/pods/default/odd").text


def test_a_reserved_part_is_marked(stage):
    waits = stage.cache.pods.waiting()[0]
    smaller = pending("soon", gpu=1, gpumem=3000)
    stage.add(smaller)
    pod = next(other for other in stage.cache.pods.waiting() if other is not waits)
    stage.cache.filtering.assume(pod, ["n1"])
    parts = [
        part
        for card in stage.json("/nodes/n1")["cards"]
        for part in card["segments"]
        if part["isReserved"]
    ]
    assert [(part["pod"], part["memoryMib"]) for part in parts] == [("soon", 3000)]
    assert "url(#hatch)" in stage.ask("/nodes/n1").text.partition("<main")[2]
    assert stage.json("/pods/default/soon")["row"]["state"] == "Reserved"
    assert [item["name"] for item in stage.json("/pending")["items"]] == ["waits"]


@cases(
    "query, expected",
    ("", ["n1", "n2", "n3"]),
    ("node=N1", ["n1"]),
    ("model=h1", ["n3"]),
    ("state=cordoned", ["n2", "n3"]),
    ("state=unhealthy", ["n2"]),
    ("state=full", ["n2"]),
    ("state=free", ["n1", "n3"]),
    ("state=reserved", []),
    ("sort=memory", ["n1", "n2", "n3"]),
    ("sort=free&state=free", ["n3", "n1"]),
    ("page=99", ["n1", "n2", "n3"]),
)
def test_filters_and_orders_of_nodes(stage, query, expected):
    assert names(stage.json(f"/?{query}")) == expected


@cases(
    "query, expected",
    ("", ["a", "b", "waits", "secret"]),
    ("pod=SEC", ["secret"]),
    ("pod=default/", ["a", "b", "waits"]),
    ("pod=nobody", []),
    ("node=n1", ["a", "b", "secret"]),
    ("state=allocated", ["a", "b", "secret"]),
    ("state=waiting", ["waits"]),
    ("sort=memory", ["a", "b", "secret", "waits"]),
    ("sort=cores", ["a", "b", "secret", "waits"]),
    ("namespace=other", ["secret"]),
)
def test_filters_and_orders_of_pods(stage, query, expected):
    assert [row["name"] for row in stage.json(f"/pods?{query}")["items"]] == expected


def test_a_pod_that_waits_shows_what_it_requests(stage):
    page = stage.ask("/pods?state=waiting").text
    assert "2 × NVIDIA with 9,500 MiB" in page
    assert "Pending" in page


def test_the_health_page_has_what_is_not_as_expected_and_why():
    told = {"GPU-n2-1": {"cause": "XID 79", "remedy": "reboot the node", "since": 1787315400}}
    notes = NODES[1]["metadata"]["annotations"] | {"hami.io/device-health": json.dumps(told)}
    sick = NODES[1] | {"metadata": NODES[1]["metadata"] | {"annotations": notes}}
    stage = Stage([NODES[0], sick, NODES[2]], PODS)
    answer = stage.json("/health")
    assert (answer["total"], answer["nodes"]) == (2, 3)
    assert [item["node"]["name"] for item in answer["items"]] == ["n2", "n3"]
    assert [card["row"]["index"] for card in answer["items"][0]["cards"]] == [0, 1]
    page = stage.ask("/health").text
    assert "2 of 3 nodes with devices are not as expected." in page
    assert "XID 79; remedy: reboot the node" in page
    assert 'datetime="2026-08-21T12:30:00Z"' in page


def test_many_nodes_come_in_pages():
    stage = Stage([node(f"n{number:03}", gpu(**GPU)) for number in range(2 * NODES_A_PAGE + 1)])
    pages = [stage.json(f"/?page={page}") for page in (1, 2, 3)]
    assert [len(page["items"]) for page in pages] == [NODES_A_PAGE, NODES_A_PAGE, 1]
    assert len({name for page in pages for name in names(page)}) == 2 * NODES_A_PAGE + 1
    assert pages[0]["pages"] == 3
    assert 'href="/?page=3" rel="next"' in stage.ask("/?page=2").text
    assert 'rel="next"' not in stage.ask("/?page=3").text


def test_a_pod_that_waits_is_explained_as_hami_explain_does(stage):
    assert stage.json("/pending")["items"][0]["explanation"] is None
    stage.explain()
    (item,) = stage.json("/pending")["items"]
    why = item["explanation"]
    (asked,) = item["requests"]
    assert (asked["container"], asked["devices"][0]["memoryMib"]) == ("main", 9500)
    assert why["message"].startswith("2 × NVIDIA with 9,500 MiB fit none of ")
    assert "2 × NVIDIA with 9,500 MiB" in stage.ask("/pending").text
    assert why["message"] in stage.ask("/pods/default/waits").text
    assert (why["nodes"][0]["node"], why["nodes"][0]["cards"][0]["shortMib"]) == ("n1", 500)
    kinds = {part["kind"] for one in why["suggestions"] for part in one["changes"]}
    assert "EndPod" not in kinds
    assert why["suggestions"][0]["node"] == "n1"
    assert "lacks 500 MiB" in stage.ask("/pending").text


def test_a_pod_of_a_gang_shows_what_the_gang_lacks(stage):
    members = [
        bound("ring-0", "n1", (1, 1000, 10)),
        *(pending(f"ring-{number}", gpu=1, gpumem=9000) for number in "123"),
    ]
    for member in (*members, other := pending("other", gpu=1, gpumem=9000)):
        member["spec"]["schedulingGroup"] = {
            "podGroupName": "ring" if member is not other else "others"
        }
        stage.add(member)
    stage.json("/pods/default/ring-1")
    stage.explain()
    gang = stage.json("/pods/default/ring-1")["waits"]["explanation"]["gang"]
    assert (gang["bound"], gang["waiting"], gang["required"]) == (1, 3, None)
    text = html.unescape(stage.ask("/pods/default/ring-1").text)
    assert (
        "It belongs to the gang ring, which needs a number of pods together that could not be read."
        in text
    )
    assert f"HAMi would place {gang['fitting']} of the 3 that are not bound now" in text


def test_a_pod_of_high_priority_shows_whom_it_would_preempt():
    stage = Stage([node("n1", gpu(**GPU))], pods=[bound("low", "n1", (0, 5000, 10))])
    urgent = pending("urgent", gpu=1, gpumem=9000)
    urgent["spec"]["priority"] = 100
    stage.add(urgent)
    stage.json("/pods/default/urgent")
    stage.explain()
    assert "It would preempt 1 pod on n1: default/low." in html.unescape(
        stage.ask("/pods/default/urgent").text
    )
    low = bound("low", "n1", (0, 5000, 10))
    low["metadata"] |= {"deletionTimestamp": "2026-08-21T12:00:30Z", "resourceVersion": "2"}
    urgent["metadata"]["resourceVersion"], urgent["status"]["nominatedNodeName"] = "2", "n1"
    stage.add(low)
    stage.add(urgent)
    stage.clock.seconds += 60
    stage.json("/pods/default/urgent")
    stage.explain()
    text = html.unescape(stage.ask("/pods/default/urgent").text)
    assert "It waits for default/low on n1, which is being evicted for it." in text


def test_an_answer_follows_the_cluster(stage):
    stage.json("/pending")
    stage.explain()
    stage.cache.nodes.upsert(
        Stage([node("n4", gpu(memory_mib=40_000), gpu(memory_mib=40_000))]).cache.nodes.get("n4")
    )
    stage.clock.seconds += 60
    stage.json("/pending")
    stage.explain()
    assert stage.json("/pending")["items"][0]["explanation"]["fits"] == "n4"


def test_a_bound_pod_shows_its_cards_and_with_whom(stage):
    page = stage.json("/pods/default/a")
    assert (page["row"]["state"], page["row"]["node"]) == ("Running", "n1")
    assert [part["pod"] for part in page["cards"][0]["card"]["segments"]] == ["a", "b", "secret"]


def test_a_pod_that_is_bound_while_its_page_is_made_has_its_cards(stage, monkeypatch):
    """Between two reads of the store: it waits no more, and so it holds cards."""
    pods, store = stage.cache.pods, stage.cache

    def then_bound(read):
        def wrapped(uid):
            answer = read(uid)
            stage.add(bound("waits", "n1", (1, 9000, 0), (0, 500, 0), gpu=2))
            return answer

        return wrapped

    monkeypatch.setattr(pods, "waiting_pod", then_bound(pods.waiting_pod))
    monkeypatch.setattr(store, "booking", then_bound(store.booking))
    page = stage.json("/pods/default/waits")
    assert page["waits"] is None
    assert [card["card"]["row"]["index"] for card in page["cards"]] == [0, 1]


def test_a_namespace_shows_its_quota(stage):
    (row,) = stage.json("/namespaces/default")["items"]
    assert (row["memoryUsedMib"], row["memoryLimitMib"]) == (9000, 90_000)
    assert [row["name"] for row in stage.json("/namespaces/default")["pods"]] == ["a", "b"]
    assert [row["name"] for row in stage.json("/namespaces")["items"]] == ["default", "other"]


def rows(stage, path="/"):
    """The rows of nodes on the page of cards, as text."""
    return re.findall(r"<tr role=.row.>\s*<th scope=.row.*?</tr>", stage.ask(path).text, re.DOTALL)


def test_a_node_is_one_row_with_a_bar_for_each_of_at_most_eight_cards():
    cards = [gpu(**GPU, healthy=index != 1) for index in range(10)]
    stage = Stage([node("n1", *cards)], [bound("a", "n1", (0, 6000, 50), gpu=1)])
    (row,) = rows(stage)
    assert re.findall(r"<title>(.*?)</title>", row)[:3] == [
        "Card 0: 5.9 GiB of 9.8 GiB",
        "Card 1: 0 MiB of 9.8 GiB, unhealthy",
        "Card 2: 0 MiB of 9.8 GiB",
    ]
    assert row.count("<title>") == 8
    assert "+2</span>" in row
    assert "Cards of n1: 60%, 0% unhealthy, 0%" in row
    assert 'data-from="/nodes/n1"' in row


def test_two_hundred_nodes_are_one_page():
    stage = Stage([node(f"n{number:03}", gpu(**GPU)) for number in range(201)])
    assert len(rows(stage)) == NODES_A_PAGE == 200
    assert len(rows(stage, "/?page=2")) == 1


def test_bars_of_nodes_that_have_not_changed_are_not_rendered_again(stage):
    rendered = []
    width = stage.app.jinja_env.filters["width"]
    stage.app.jinja_env.filters["width"] = lambda *amounts: (
        rendered.append(amounts) or width(*amounts)
    )
    stage.ask("/")
    first = len(rendered)
    stage.add(bound("newcomer", "n1", (0, 700, 5)))
    stage.clock.seconds += 60
    stage.ask("/")
    of_nodes = 1 + 2 * 3  # all nodes together, memory and cores of each
    assert first == of_nodes + 5
    assert len(rendered) - first == of_nodes + 1  # the other card of the node looks as before


def claim(pod, namespace="default"):
    part = ClaimedDevice(
        pool="hami/d", device="gpu-d", memory_mib=3000, cores=10, share_milli=10_000
    )
    return AllocatedClaim(
        namespace=namespace,
        name=f"{pod}-hami",
        uid=f"claim-{pod}",
        requests=(ClaimedRequest(name="main", devices=(part,)),),
        pods=(PodRef(namespace, pod, f"uid-{namespace}-{pod}"),),
    )


def add_claims(stage):
    stage.cache.nodes.upsert(parse_node(b'{"metadata": {"name": "d", "resourceVersion": "1"}}'))
    stage.claims.set_slice(
        "s", PublishedSlice("d", 1, (builders.gpu("GPU-d", memory_mib=10_000, model="T4"),))
    )
    stage.clock.seconds += 60
    for held in (claim("mine"), claim("secret", "other")):
        stage.claims.set_claim(held.uid, held)


def test_what_claims_hold_is_on_the_pages(stage):
    before = stage.json("/")["total"]
    add_claims(stage)
    answer = stage.json("/")
    assert answer["total"]["cards"] == before["cards"] + 1
    (card,) = next(item for item in answer["items"] if item["node"]["name"] == "d")["cards"]
    assert [(part["namespace"], part["pod"], part["memoryMib"]) for part in card["segments"]] == [
        ("default", "mine", 3000),
        ("other", "secret", 3000),
    ]
    stage.claims.set_claim("claim-mine", None)
    stage.clock.seconds += 60
    assert stage.json("/")["total"]["memoryUsedMib"] == before["memoryUsedMib"] + 3000


def test_a_node_whose_claims_hami_allocates_is_on_the_pages_once(stage):
    before = stage.json("/")
    assert "n1" in names(before)
    stage.claims.set_slice(
        "s", PublishedSlice("n1", 1, (builders.gpu("GPU-n1-0", by_claims=True),))
    )
    part = ClaimedDevice(pool="hami/n1", device="gpu-n1-0", memory_mib=3000, share_milli=10_000)
    stage.claims.set_claim(
        "c",
        AllocatedClaim(
            namespace="default",
            name="c",
            uid="c",
            requests=(ClaimedRequest(name="main", devices=(part,)),),
        ),
    )
    stage.clock.seconds += 60
    after = stage.json("/")
    assert (after["total"], after["items"]) == (before["total"], before["items"])


def test_the_cards_for_claims_of_a_node_are_beside_its_others(stage):
    before = stage.json("/")["total"]
    stage.claims.set_slice(
        "s", PublishedSlice("n1", 1, (builders.gpu("GPU-d", memory_mib=10_000),))
    )
    stage.clock.seconds += 60
    assert stage.json("/")["total"]["cards"] == before["cards"] + 1
    held = replace(
        claim("mine"),
        requests=(
            ClaimedRequest(
                name="main",
                devices=(
                    ClaimedDevice(
                        pool="hami/n1", device="gpu-d", memory_mib=3000, share_milli=10_000
                    ),
                ),
            ),
        ),
    )
    stage.claims.set_claim(held.uid, held)
    stage.clock.seconds += 60
    assert stage.json("/")["total"]["memoryUsedMib"] == before["memoryUsedMib"] + 3000


# Who sees what


def test_pods_of_other_namespaces_with_claims_have_no_names(guarded):
    add_claims(guarded)
    text = guarded.ask("/nodes/d?namespace=default&format=json", "t-dev").text
    assert "mine" in text
    assert "secret" not in text
    assert "other" not in text


@pytest.mark.parametrize("path", PATHS)
def test_pods_of_other_namespaces_have_no_names(guarded, path):
    guarded.ask(f"{path}?namespace=default", "t-dev")
    guarded.explain()
    for form in ("html", "json"):
        text = guarded.ask(f"{path}?namespace=default&format={form}", "t-dev").text
        assert "secret" not in text
        assert "other/" not in text
    if path.startswith("/cards"):
        assert ">other</span>" in guarded.ask(f"{path}?namespace=default", "t-dev").text


@pytest.mark.parametrize("path", PATHS)
def test_one_viewer_does_not_get_what_another_may_see(guarded, path):
    assert guarded.ask(path, "t-admin").status_code == 200
    assert guarded.ask(path, "t-dev").status_code == (200 if "default" in path else 403)
    assert guarded.ask(path).status_code == 401
    assert guarded.ask(f"{path}?namespace=other", "t-dev").status_code == 403


def test_links_keep_the_namespaces_that_the_viewer_asked_for(guarded):
    text = guarded.ask("/?namespace=default", "t-dev").text
    assert 'href="/pending?namespace=default"' in text
    assert 'href="/nodes/n1?namespace=default"' in text


@pytest.mark.parametrize("argument", ["evil", "path", "names", "format"])
def test_what_one_viewer_adds_to_an_address_is_in_no_page_of_another(stage, argument):
    value = "html" if argument == "format" else "phish"
    assert stage.ask(f"/?{argument}={value}").status_code == 200
    assert f"{argument}={value}" not in stage.ask("/").text


def test_a_refusal_names_the_way_to_authenticate(guarded):
    answer = guarded.ask("/")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


@cases(
    "host, status",
    ("localhost", 200),
    ("localhost:8445", 200),
    ("127.0.0.1:8445", 200),
    ("[::1]:8445", 200),
    ("[::1]", 200),
    ("evil.example", 403),
    ("localhost.evil.example:8445", 403),
    ("10.0.0.1", 403),
)
def test_on_loopback_a_foreign_name_is_refused(stage, host, status):
    assert stage.ask("/", host=host).status_code == status


# HTTP


@pytest.mark.parametrize("path", PATHS)
def test_what_has_not_changed_is_not_sent_again(stage, path):
    etag = stage.ask(path).headers["ETag"]
    stage.explain()
    etag = stage.ask(path).headers["ETag"]
    answer = stage.ask(path, If_None_Match=etag)
    assert (answer.status_code, answer.data, answer.headers["ETag"]) == (304, b"", etag)
    stage.add(bound("new", "n1", (1, 500, 5), gpu=1))
    stage.clock.seconds += 60
    assert stage.ask("/", If_None_Match=stage.ask("/pending").headers["ETag"]).status_code == 200


def test_a_change_is_shown(stage):
    etag = stage.ask("/").headers["ETag"]
    stage.add(bound("new", "n1", (1, 500, 5), gpu=1))
    stage.clock.seconds += 60
    assert stage.ask("/", If_None_Match=etag).status_code == 200
    assert stage.json("/")["total"]["memoryUsedMib"] == 11_000
    stage.cache.nodes.upsert(
        Stage([NODES[0] | {"spec": {"unschedulable": True}}]).cache.nodes.get("n1")
    )
    stage.clock.seconds += 60
    assert names(stage.json("/?state=cordoned")) == ["n1", "n2", "n3"]
    stage.cache.nodes.remove(stage.cache.nodes.get("n1"))
    stage.clock.seconds += 60
    assert names(stage.json("/")) == ["n2", "n3"]


@cases(
    "method, status",
    ("GET", 200),
    ("HEAD", 200),
    ("POST", 405),
    ("PUT", 405),
    ("DELETE", 405),
    ("PATCH", 405),
    ("OPTIONS", 405),
)
@pytest.mark.parametrize("path", ["/", "/pods/default/a"])
def test_only_questions_are_answered(stage, path, method, status):
    answer = stage.ask(path, method=method)
    assert answer.status_code == status
    assert status == 200 or {"GET", "HEAD"} == set(answer.headers["Allow"].split(", "))
    assert method != "HEAD" or (answer.data == b"" and int(answer.headers["Content-Length"]) > 1000)


@pytest.mark.parametrize("path", ["/filter", "/bind", "/webhook", "/metrics", "/static/../app.py"])
def test_nothing_else_is_served(stage, path):
    assert stage.ask(path).status_code == 404
    assert stage.ask(path, method="POST").status_code == 405


@pytest.mark.parametrize("path", [*PATHS, "/nodes/gone", "/?sort=wrong", "/nowhere"])
def test_every_answer_has_the_headers_that_protect_it(stage, path):
    headers = stage.ask(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert "no-cache" in headers["Cache-Control"] or "no-store" in headers["Cache-Control"]


@cases(
    "path, status, text",
    ("/nodes/n11", 404, "did you mean n1?"),
    ("/cards/n1/GPU-n1-9", 404, "did you mean GPU-n1-"),
    ("/pods/default/wait", 404, "did you mean waits?"),
    ("/pods/nowhere/a", 404, "there is no pod"),
    ("/namespaces/nowhere", 404, "no pod in a namespace nowhere"),
    ("/?sort=size", 400, "expected name, memory"),
    ("/?state=odd", 400, "expected free"),
    ("/?page=0", 400, "page: expected"),
    ("/?page=x", 400, "page: expected"),
    ("/?node=" + "x" * 300, 400, "at most 253"),
    ("/?format=xml", 400, "expected html or json"),
    ("/pods/default/" + "x" * 5000, 404, "there is no pod"),
)
def test_what_is_wrong_is_named(stage, path, status, text):
    answer = stage.ask(path)
    assert (answer.status_code, text in html.unescape(answer.text)) == (status, True)
    assert "Traceback" not in answer.text


def test_errors_are_json_where_json_is_asked_for(stage):
    assert stage.ask("/nodes/gone?format=json").json == {
        "error": "there is no node with devices: gone"
    }


def test_before_the_cluster_is_read_nothing_is_shown():
    answer = Stage(NODES, unready="the scheduler is still reading the cluster").ask("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")


def test_probes_need_no_token(guarded):
    assert [guarded.ask(path).text for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]
    guarded.hung = "thread pods hangs"
    assert (guarded.ask("/healthz").status_code, guarded.ask("/healthz").text) == (
        500,
        "thread pods hangs\n",
    )
    assert Stage(unready="reading").ask("/readyz").status_code == 503
    assert guarded.ask("/").status_code == 401


def test_a_page_is_compressed_for_those_who_accept_it(stage):
    answer = stage.ask("/", Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(answer.data) < len(stage.ask("/").data) / 3


class Tags(HTMLParser):
    """Collects elements and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)
        self.links |= {text for name, text in attrs if name in ("href", "src", "action")}


EVIL = "<script>alert(1)</script>"


def test_texts_of_tenants_are_escaped():
    card = {"memory_mib": 10_000, "model": EVIL}
    evil = bound("p", "n1", (0, 6000, 50), gpu=1)
    evil["metadata"]["name"] = EVIL
    evil["metadata"]["namespace"] = '"><img src=x onerror=alert(1)>'
    waits = pending("q", gpu=1, gpumem=90_000)
    waits["metadata"]["name"] = EVIL
    waits["spec"]["schedulerName"] = EVIL
    waits["spec"]["containers"][0]["name"] = EVIL
    stage = Stage([node("n1", gpu(**card))], [evil, waits])
    stage.ask("/pending")
    stage.explain()
    for path in (
        "/",
        "/pending",
        "/nodes/n1",
        "/cards/n1/GPU-n1-0",
        "/namespaces",
        f"/pods/default/{EVIL}",
        f"/nodes/{EVIL}",
    ):
        text = stage.ask(path).text
        assert text.count("<script") == 1
        assert "<img src=x" not in text
        assert "onerror" not in Tags(text).tags


def test_nothing_is_fetched_from_elsewhere_and_every_link_leads_somewhere(stage):
    stage.ask("/pending")
    stage.explain()
    seen, left = set(), {"/"}
    while left:
        path = left.pop()
        seen.add(path)
        answer = stage.ask(path)
        assert answer.status_code == 200, path
        if answer.mimetype == "text/html":
            links = {link for link in Tags(answer.text).links if not link.startswith("#")}
            assert all(re.match(r"/(?!/)", link) for link in links)
            left |= links - seen
    assert len(seen) > 20


def test_ten_viewers_share_one_rendering(stage):
    made = []
    original = stage.live.node_rows
    stage.live.node_rows = lambda: made.append(1) or original()
    for _ in range(10):
        stage.ask("/")
    assert len(made) == 1
    stage.add(bound("new", "n1", (1, 500, 5), gpu=1))
    stage.ask("/")  # an older rendering is used for some time
    assert len(made) == 1
    stage.clock.seconds += 60
    stage.ask("/")
    assert len(made) == 2
