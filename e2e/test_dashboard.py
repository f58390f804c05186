"""The dashboard over a real API server: who sees what, that only pages are served, and how it looks in a browser."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from testing.browser import SCHEMES, WIDTHS, Visit, browser, missing
from testing.cluster import MANIFESTS, LocalCluster
from testing.dashboard import COMPONENT, PAGES, dashboard, publish
from testing.eventually import PATIENCE_S, eventually
from testing.kube import Kube, write_kubeconfig
from testing.measured import MonitorProcess, announced, own_address, served
from testing.nodes import gpu, gpus
from testing.people import hami
from testing.pods import pod
from testing.processes import Program, free_port
from testing.recordings import record_week
from testing.sandbox import LABEL, Sandbox
from testing.scheduler import NAMESPACE, Certificates, Scheduler

Object = dict[str, Any]
ASKED_AGAIN_S = 180  # each 30 s, a monitor that did not answer
PICTURES = Path(os.environ.get("HAMI_E2E_PICTURES", "benchmarks/results/pictures"))


class Site:
    """A dashboard. *token*: of the viewer."""

    def __init__(self, port: int, *, ca: Path | None = None) -> None:
        self.base = f"{'https' if ca else 'http'}://localhost:{port}"
        self._pool = urllib3.PoolManager(
            ca_certs=str(ca) if ca else None, retries=False, timeout=PATIENCE_S
        )

    def ask(
        self, path: str, token: str = "", method: str = "GET", **headers: str
    ) -> urllib3.BaseHTTPResponse:
        given = {"Authorization": f"Bearer {token}"} if token else {}
        return self._pool.request(method, self.base + path, headers=given | headers)

    def ready(self) -> Site:
        """Waits until the dashboard has read the cluster."""

        def is_ready() -> bool:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                return self.ask("/readyz").status == 200
            return False

        eventually(is_ready, "the dashboard has read the cluster")
        return self


def viewer(kube: Kube, name: str, namespace: str, *, everywhere: bool) -> str:
    """Returns a token of a new account that may see pods, in *namespace* or everywhere."""
    kube.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace
    )
    if name != "nobody":
        kind = "ClusterRoleBinding" if everywhere else "RoleBinding"
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": f"{namespace}-{name}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "view",
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        kube.create(binding, None if everywhere else namespace)
    return kube.token(name, namespace)


@pytest.fixture
def monitor_port() -> int:
    """The port of monitors."""
    return free_port()


@pytest.fixture
def account(local: LocalCluster) -> Path:
    """A kubeconfig of the account of the component, with its rights."""
    local.kube.apply_yaml((COMPONENT / "rbac.yaml").read_text(), NAMESPACE)
    token = local.kube.token("hami-dashboard", NAMESPACE)
    return write_kubeconfig(local.kubeconfig, token, local.folder / "hami-dashboard.kubeconfig")


@pytest.fixture
def site(
    account: Path, local: LocalCluster, scheduler: Scheduler, monitor_port: int
) -> Iterator[Site]:
    """The dashboard on loopback."""
    port = free_port()
    with dashboard(account, local.folder, port, monitor_port=str(monitor_port)):
        yield Site(port).ready()


@pytest.fixture
def guarded(
    account: Path, local: LocalCluster, scheduler: Scheduler, certificates: Certificates
) -> Iterator[Site]:
    """The dashboard on all addresses."""
    port = free_port()
    with dashboard(
        account,
        local.folder,
        port,
        bind_address=f":{port}",
        cert_file=str(certificates.cert_file),
        key_file=str(certificates.key_file),
    ):
        yield Site(port, ca=certificates.ca_file)


@pytest.fixture
def tokens(sandbox: Sandbox) -> Iterator[dict[str, str]]:
    """Tokens of accounts with different rights."""
    kube, namespace = sandbox.kube, sandbox.namespace
    yield {
        name: viewer(kube, name, namespace, everywhere=name == "everything")
        for name in ("everything", "own", "nobody")
    }
    kube.delete("ClusterRoleBinding", f"{namespace}-everything")


def filled(sandbox: Sandbox) -> dict[str, str]:
    """Creates nodes and pods, one of which waits. Returns what the addresses of pages name."""
    sandbox.add_gpu_nodes(
        {"n0": gpus(8), "n1": [gpu(model="NVIDIA-L40S", memory_mib=46_068) for _ in range(4)]}
    )
    for number, name in enumerate("abcdef"):
        sandbox.create(
            pod(name, gpu=1 + number % 2, gpumem=9000 + 4000 * number, gpucores=10 + 5 * number)
        )
    nodes = sandbox.started(wait_for=6)
    sandbox.create(pod("waits", gpu=8, gpumem=60_000, gpucores=90))
    sandbox.refusal("waits")
    return {
        "node": sandbox.node(nodes["a"])["metadata"]["name"],
        "uuid": sandbox.uuid(nodes["a"]),
        "namespace": sandbox.namespace,
        "pod": "a",
        "waiting": "waits",
    }


def explained(site: Site, path: str) -> Object:
    """Returns the explanation of a pod that waits, once it has been computed."""

    def answer() -> Any:
        answer = site.ask(path)  # 404 until the dashboard has seen the pod
        return answer.status == 200 and (answer.json()["waits"] or {}).get("explanation")

    return dict(eventually(answer, "the pod is explained"))


def test_what_pods_hold_is_shown(sandbox, site):
    names = filled(sandbox)

    def total() -> tuple[int, int, int]:
        row = site.ask(f"/?node={sandbox.namespace}&format=json").json()["total"]
        return row["nodes"], row["cards"], row["pods"]

    eventually(
        lambda: total() == (2, 12, 6), lambda: f"all nodes and pods are shown, not {total()}"
    )
    why = explained(site, f"/pods/{sandbox.namespace}/waits?format=json")
    for path in PAGES.values():
        answer = site.ask(path.format(**names))
        assert answer.status == 200, path

    def row() -> tuple[str, int, str]:
        shown = site.ask(f"/pods/{sandbox.namespace}/a?format=json").json()["row"]
        return shown["node"], shown["memoryMib"], shown["state"]

    eventually(lambda: row() == (names["node"], 9000, "Running"), lambda: f"it runs, not {row()}")
    assert why["unfit"] == 2
    assert "fit none of 2 nodes" in why["message"]
    kinds = {part["kind"] for one in why["suggestions"] for part in one["changes"]}
    assert "FewerDevices" in kinds

    def is_said() -> bool:
        said = site.ask(f"/pods/{sandbox.namespace}/waits?format=json").json()["waits"]["condition"]
        told = sandbox.events("waits", "FailedScheduling")
        return bool(said and said["message"]) and any(said["message"] in text for text in told)

    eventually(is_said, "kube-scheduler's words are shown")


def test_a_page_is_sent_again_only_when_the_cluster_has_changed(sandbox, site):
    sandbox.add_gpu_node("n0")
    etag = str(site.ask("/").headers["ETag"])
    eventually(
        lambda: (
            site.ask("/", **{"If-None-Match": str(site.ask("/").headers["ETag"])}).status == 304
        ),
        "nothing changes",
    )
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    sandbox.started()
    eventually(
        lambda: site.ask("/", **{"If-None-Match": etag}).status == 200, "the change is shown"
    )


def test_each_address_serves_its_own(sandbox, site, scheduler):
    for path in ("/filter", "/bind", "/webhook", "/metrics"):
        assert site.ask(path).status == 404
        assert site.ask(path, method="POST").status == 405
    assert scheduler.status("/pending") == 404
    assert scheduler.status("/") == 404
    assert site.ask("/", Host="rebound.example").status == 403


def test_viewers_see_what_they_may_list(sandbox, guarded, tokens):
    sandbox.add_gpu_node("n0", gpu())
    node = sandbox.node("n0")["metadata"]["name"]
    with Sandbox.opened(sandbox.kube) as other:
        theirs = pod("theirs", gpu=1, gpumem=9000)
        sandbox.kube.create(
            theirs | {"spec": theirs["spec"] | {"nodeSelector": {LABEL: sandbox.namespace}}},
            other.namespace,
        )
        other.started()
        sandbox.create(pod("mine", gpu=1, gpumem=9000))
        sandbox.started()
        own, foreign = f"?namespace={sandbox.namespace}", f"?namespace={other.namespace}"
        guarded.ready()
        expected = {
            ("/", ""): 401,
            ("/", "forged"): 401,
            ("/", "nobody"): 403,
            ("/", "own"): 403,
            ("/", "everything"): 200,
            (f"/{own}", "nobody"): 403,
            (f"/{own}", "own"): 200,
            (f"/{own}", "everything"): 200,
            (f"/{foreign}", "own"): 403,
            (f"/{foreign}", "everything"): 200,
            (f"/pods/{sandbox.namespace}/mine", "own"): 200,
            (f"/pods/{other.namespace}/theirs", "own"): 403,
            (f"/namespaces/{other.namespace}", "own"): 403,
        }
        eventually(
            lambda: "mine" in guarded.ask(f"/nodes/{node}{own}", tokens["own"]).data.decode(),
            "the pod is shown",
        )
        assert {
            key: guarded.ask(key[0], tokens.get(key[1], key[1])).status for key in expected
        } == expected
        assert "theirs" not in guarded.ask(f"/nodes/{node}{own}", tokens["own"]).data.decode()
        assert "theirs" in guarded.ask(f"/nodes/{node}", tokens["everything"]).data.decode()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_browser_signs_in_and_out(sandbox, guarded, tokens):
    sandbox.add_gpu_node("n0", gpu())
    guarded.ready()
    with browser() as started, Visit.started(started) as visit:
        page = visit.page
        page.goto(f"{guarded.base}/pods?namespace={sandbox.namespace}")
        assert visit.violations() == []
        page.get_by_label("Token").fill(tokens["own"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Pods").wait_for()
        assert page.url == f"{guarded.base}/pods?namespace={sandbox.namespace}"
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
        page.goto(guarded.base + "/")
        page.get_by_role("textbox", name="Namespace").fill(sandbox.namespace)
        page.get_by_role("button", name="Show").click()
        page.get_by_role("heading", name="Cards").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()
        assert page.context.cookies() == []


PLUGIN = "from hami.cli.kubectl import kubectl_main; kubectl_main()"


@contextlib.contextmanager
def on_this_machine(kubeconfig: Path, folder: Path, *options: str) -> Iterator[Site]:
    """Runs ``kubectl hami dashboard`` with the access of *kubeconfig*."""
    port = free_port()
    program = Program(
        "kubectl-hami-dashboard",
        [sys.executable, "-c", PLUGIN, "dashboard", f"--port={port}", "--no-browser", *options],
        folder / f"kubectl-hami-dashboard-{port}.log",
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
    program.start()
    try:
        yield Site(port)
    finally:
        program.stop()


def test_an_administrator_sees_the_dashboard_without_one_in_the_cluster(sandbox, local, scheduler):
    sandbox.add_gpu_node("n0", gpu())
    node = sandbox.node("n0")["metadata"]["name"]
    config = f"--device-config-file={MANIFESTS / 'device-config.yaml'}"
    with on_this_machine(local.kubeconfig, local.folder, config) as site:
        site.ready()
        assert site.ask(f"/nodes/{node}").status == 200


@pytest.mark.skipif(not own_address(), reason="this machine has no address beside loopback")
def test_a_user_of_one_namespace_sees_that_of_the_cluster(sandbox, local, guarded, tokens):
    """Through the API server's proxy of services, with a right to it and a token."""
    sandbox.add_gpu_node("n0", gpu())
    sandbox.create(pod("mine", gpu=1, gpumem=9000))
    sandbox.started()
    guarded.ready()
    kube, port = sandbox.kube, int(guarded.base.rpartition(":")[2])
    publish(kube, {8445: port})
    kubeconfig = write_kubeconfig(local.kubeconfig, tokens["own"], local.folder / "own.kubeconfig")
    may_open_it(kube, sandbox.namespace)
    with on_this_machine(kubeconfig, local.folder) as site:
        path = f"/pods?namespace={sandbox.namespace}"
        page = eventually(lambda: answered(site, path), "the page is forwarded")
        assert "mine" in page.data.decode()
        assert "/api/v1/" not in page.data.decode()
        assert site.ask("/").status == 403
        assert site.ask(f"{path}&format=json").json()["total"] == 1
        etag = str(page.headers["ETag"])
        assert site.ask(path, **{"If-None-Match": etag}).status == 304


def may_open_it(kube: Kube, namespace: str) -> None:
    """Lets the account ``own`` of *namespace* ask the dashboard through the API server."""
    meta, rbac = {"name": f"dashboard-{namespace}"}, "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]}
    kube.create(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": [rule]}, NAMESPACE
    )
    kube.create(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": meta["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": "own", "namespace": namespace}],
        },
        NAMESPACE,
    )


def answered(site: Site, path: str) -> urllib3.BaseHTTPResponse | None:
    """Returns the page, if there is one yet."""
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        answer = site.ask(path)
        return answer if answer.status == 200 else None
    return None


def segments(site: Site, path: str) -> list[Object]:
    """Returns the parts of all cards of a node's page."""
    answer = site.ask(path)  # 404 until the dashboard has seen the node
    cards = answer.json()["cards"] if answer.status == 200 else []
    return [part for card in cards for part in card["segments"]]


@pytest.mark.skipif(not own_address(), reason="this machine has no address beside loopback")
def test_what_pods_really_use_is_shown(sandbox, local, site, monitor_port, tmp_path):
    sandbox.add_gpu_node("n0", gpu())
    sandbox.create(pod("a", gpu=1, gpumem=8192, gpucores=50))
    sandbox.started()
    node = sandbox.node("n0")["metadata"]["name"]
    page = f"/nodes/{node}?format=json"
    shown = eventually(lambda: segments(site, page), "the dashboard has seen that the pod is bound")
    assert [part["use"] for part in shown] == [None]
    monitor = MonitorProcess(local.kubeconfig, node, tmp_path, monitor_port)
    monitor.write_region(sandbox.pod("a"), sandbox.uuid("n0"), mib=700, percent=33)
    with monitor.running(), announced(sandbox.kube, node):
        (use,) = eventually(
            lambda: [part["use"] for part in segments(site, page) if part["use"]],
            "the use is shown",
            timeout=ASKED_AGAIN_S,
        )
        assert (use["memoryMib"], use["computePercent"]) == (700, 33)
        assert "700 MiB, 33% busy" in site.ask(f"/pods/{sandbox.namespace}/a").data.decode()


def recorded(sandbox: Sandbox) -> str:
    """Returns the metrics of monitors of all nodes of *sandbox*: of each card, and of the pod ``a``."""
    lines = []
    for name in ("n0", "n1"):
        for index in range(8 if name == "n0" else 4):
            card = f'device_uuid="{sandbox.uuid(name, index)}",zone="vGPU"'
            lines += [
                f"hami_host_gpu_memory_used_bytes{{{card}}} {index * 4 << 30}",
                f"hami_host_gpu_utilization_ratio{{{card}}} {12 * index}",
            ]
    ((share,),) = sandbox.shares("a")
    node, index = share.card.split("/")
    part = f'device_uuid="{sandbox.uuid(node, int(index))}",namespace="{sandbox.namespace}",pod="a"'
    return "\n".join([*lines, f"hami_vgpu_memory_used_bytes{{{part}}} {4 << 30}", ""])


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_in_a_browser(sandbox, site, monitor_port):
    """Pages at two widths, light and dark; each is accessible and complains about nothing. Pictures are kept."""
    names = filled(sandbox)
    explained(site, f"/pods/{sandbox.namespace}/waits?format=json")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if own_address():
            stack.enter_context(served(recorded(sandbox), monitor_port))
            nodes = [sandbox.node(name)["metadata"]["name"] for name in sandbox.nodes]
            stack.enter_context(announced(sandbox.kube, *nodes))
            eventually(
                lambda: site.ask(f"/nodes/{names['node']}?format=json").json()["use"],
                "the use is shown",
                timeout=ASKED_AGAIN_S,
            )
        started = stack.enter_context(browser())
        for width in WIDTHS:
            for scheme in SCHEMES:
                with Visit.started(started, width=width, scheme=scheme) as visit:
                    for kind in (
                        PAGES if scheme == "light" or width == WIDTHS[-1] else ("cards", "pending")
                    ):
                        visit.page.goto(site.base + PAGES[kind].format(**names))
                        visit.picture(PICTURES / f"{kind}-{width}-{scheme}.png")
                        assert visit.violations() == [], kind
                        assert not visit.is_wider_than_the_window(), kind
                    assert visit.complaints == []
        follows_the_cluster(started, sandbox, site)
        applies_filters_at_once(started, sandbox, site)
        works_without_scripts_and_with_the_keyboard(started, site)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_reports_of_replays_in_a_browser(account, local, scheduler, tmp_path):
    """What `hami replay` has written is a page, which is accessible at all widths."""
    recording, reports = tmp_path / "recording", tmp_path / "reports"
    for folder in (recording, reports):
        folder.mkdir()
    record_week(recording, pods=200, nodes=10, rng=random.Random(1))
    for policy in ("spread", "binpack"):
        answer = hami(local.kubeconfig, "replay", recording, "--policy", policy, "-o", "json")
        assert answer.status == 0, answer.errors
        (reports / f"{policy}.json").write_text(answer.text)
    port = free_port()
    with (
        dashboard(account, local.folder, port, replay_reports=str(reports)),
        browser() as started,
    ):
        site = Site(port).ready()
        for width in WIDTHS:
            with Visit.started(started, width=width) as visit:
                visit.page.goto(site.base)
                visit.page.get_by_role("link", name="Replays").click()
                visit.page.get_by_role("heading", name="spread").wait_for()
                assert visit.page.locator("h2").all_inner_texts() == ["binpack", "spread"]
                assert "200 pods on 10 nodes" in visit.page.locator("main").inner_text()
                assert visit.violations() == []
                assert not visit.is_wider_than_the_window()
                assert visit.complaints == []


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_links_can_be_hit_whatever_their_names(sandbox, site):
    names = filled(sandbox)
    explained(site, f"/pods/{sandbox.namespace}/waits?format=json")
    with browser() as started:
        for width in WIDTHS:
            with Visit.started(started, width=width) as visit:
                for kind, path in PAGES.items():
                    visit.page.goto(site.base + path.format(**names))
                    for text in ("i", "m" * 12):
                        visit.rename_links(text)
                        assert visit.violations("target-size") == [], (kind, text)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_two_hundred_nodes_are_one_page_that_can_be_read(sandbox, site):
    sandbox.add_gpu_nodes({f"n{number}": gpus(8) for number in range(200)})
    eventually(
        lambda: site.ask("/?format=json").json()["total"]["nodes"] >= 200, "all nodes are shown"
    )
    with browser() as started:
        for width, most in ((1400, 6000), (390, 20_000)):
            with Visit.started(started, width=width) as visit:
                visit.page.goto(f"{site.base}/?node={sandbox.namespace}")
                assert visit.page.locator("summary").count() == 200
                assert visit.page.evaluate("document.documentElement.scrollHeight") <= most
                assert not visit.is_wider_than_the_window()


def follows_the_cluster(started: Any, sandbox: Sandbox, site: Site) -> None:
    """A row that was opened with the keyboard shows a pod that comes, without loading the page again.

    Only an empty card has the memory it asks for: a page names the first few pods of a card.
    """
    with Visit.started(started) as visit:
        visit.page.goto(site.base + "/?node=" + sandbox.node("n0")["metadata"]["name"])
        row = visit.page.locator("summary")
        row.focus()
        visit.page.keyboard.press("Enter")
        visit.page.locator("details[open] .card").nth(7).wait_for()
        assert visit.violations() == []
        sandbox.create(pod("newcomer", gpu=1, gpumem=70_000))
        sandbox.started(wait_for=7)
        visit.page.get_by_role("link", name="newcomer").wait_for()
        assert row.evaluate("element => element === document.activeElement")
        visit.page.get_by_role("button", name="Pause updates").click()
        assert "paused" in visit.page.locator("#updated").inner_text()
        assert visit.complaints == []


def applies_filters_at_once(started: Any, sandbox: Sandbox, site: Site) -> None:
    """What is typed chooses the pods without loading the page again, and Clear shows all."""
    with Visit.started(started) as visit:
        visit.page.goto(site.base + "/pods")
        row = visit.page.get_by_role("link", name="a", exact=True)
        row.wait_for()
        visit.page.get_by_label("Pod", exact=True).fill(f"{sandbox.namespace}/b")
        row.wait_for(state="detached")
        visit.page.get_by_role("link", name="b", exact=True).wait_for()
        visit.page.wait_for_url(f"**/pods?pod={sandbox.namespace}%2Fb*")
        visit.page.get_by_role("link", name="Clear").click()
        row.wait_for()
        assert visit.complaints == []


def works_without_scripts_and_with_the_keyboard(started: Any, site: Site) -> None:
    """The filters are a form; the first stop of the keyboard leads to the content."""
    with Visit.started(started, script=False) as visit:
        visit.page.goto(site.base + "/")
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url("**#main")
        visit.page.get_by_label("Model").fill("L40S")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url("**/?*model=L40S*")
        assert visit.page.locator("tbody tr").count() == 1
        visit.page.get_by_role("link", name="Pending").click()
        visit.page.get_by_role("heading", name="Pending pods").wait_for()
