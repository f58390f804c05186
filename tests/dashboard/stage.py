"""A dashboard over a cache of the tests' own, with viewers whose rights the tests choose."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

from jinja2 import BytecodeCache

from hami.codec.objects import parse_node, parse_quota
from hami.codec.pods import parse_pod
from hami.dashboard.access import Access
from hami.dashboard.app import Dashboard, create_dashboard
from hami.dashboard.caches import Poller, Renderings
from hami.dashboard.explainer import explainer
from hami.dashboard.history import no_history
from hami.dashboard.live import LiveCluster
from hami.dashboard.monitors import NoMonitor, use_poller
from hami.dashboard.replays import NO_REPLAYS
from hami.dashboard.usage_page import NO_USAGE
from hami.dashboard.viewed_pods import (
    CONDITION_LIMITS,
    SIZE_LIMITS,
    PodSize,
    SchedulingCondition,
)
from hami.dashboard.views import Views
from hami.dashboard.waiting import WaitingPods
from hami.errors import ClusterError
from hami.inspect.cluster import catalog_of
from hami.kube.reviews import Identity
from hami.state.claims import ClaimCache
from hami.state.store import Store
from hami.state.view import Policies
from testing.replicas import Clock

NOW = datetime(2026, 8, 21, 12, 30, tzinfo=UTC)


class Compiled(BytecodeCache):
    """Templates that are compiled once for all tests of a process."""

    def __init__(self):
        self._codes = {}

    def load_bytecode(self, bucket):
        if bucket.key in self._codes:
            bucket.bytecode_from_string(self._codes[bucket.key])

    def dump_bytecode(self, bucket):
        self._codes[bucket.key] = bucket.bytecode_to_string()


TEMPLATES = Compiled()


@dataclass
class Rights:
    """Users by token, and the namespaces that each may list pods in; the empty one is the whole cluster."""

    users: dict = field(default_factory=dict)
    may: dict = field(default_factory=dict)
    reviewed: list = field(default_factory=list)
    is_down: bool = False

    def identity(self, token):
        self.reviewed.append(token)
        if self.is_down:
            raise ClusterError("no answer")
        name = self.users.get(token)
        return Identity(name) if name else None

    def may_list_pods(self, viewer, namespace):
        self.reviewed.append((viewer.username, namespace))
        allowed = self.may.get(viewer.username, ())
        return namespace in allowed or "" in allowed

    def may_get_pod(self, viewer, namespace, name):
        self.reviewed.append((viewer, namespace, name))
        return self.may_list_pods(viewer, namespace)


class Stage:
    """A dashboard with these objects. *rights*: ``None`` for a loopback address. *options*: of the store."""

    def __init__(
        self,
        nodes=(),
        pods=(),
        quotas=(),
        rights=None,
        unready="",
        expect=None,
        history=None,
        usage=NO_USAGE,
        replays=NO_REPLAYS,
        **options,
    ):
        self.monitors = {}  # metrics pages by node
        self.conditions = {}  # by name of a pod
        self.sizes = {}  # likewise
        self.clock = Clock()
        self.cache = Store(catalog_of(""), Policies(), clock=self.clock, now=lambda: NOW, **options)
        for node in nodes:
            self.cache.nodes.upsert(parse_node(json.dumps(node).encode()))
        for quota in quotas:
            self.cache.quotas.upsert(parse_quota(json.dumps(quota).encode()))
        for pod in pods:
            self.add(pod)
        self.claims = ClaimCache()
        self.live = LiveCluster(self.cache, self.claims, now=lambda: NOW)
        self.explainer = explainer(self.live, clock=self.clock)
        self.rendered, self.hung = 0, ""
        self.uses = use_poller(self._page, clock=self.clock, now=lambda: NOW)
        self.conditions_polled = Poller(
            "conditions", self._condition, CONDITION_LIMITS, clock=self.clock
        )
        self.sizes_polled = Poller("sizes", self._size, SIZE_LIMITS, clock=self.clock)
        views = Views(
            self.live,
            waiting=WaitingPods(
                self.live,
                explain=self.explainer.view,
                condition=self.conditions_polled.view,
                expect=expect or (lambda questions: None),
            ),
            uses=self.uses.view,
            size=self.sizes_polled.view,
            history=history or no_history,
        )
        self.app = create_dashboard(
            Dashboard(
                views,
                Access(rights, clock=self.clock),
                Renderings(clock=self.clock),
                self._version,
                lambda: unready,
                lambda: self.hung,
                is_local=rights is None,
                has_history=history is not None,
                usage=usage,
                replays=replays,
            )
        )
        self.app.jinja_env.bytecode_cache = TEMPLATES
        self.client = self.app.test_client()

    @classmethod
    def of(cls, record):
        """The dashboard of a cluster that was recorded."""
        stage = cls()
        for node in record.nodes:
            stage.cache.nodes.upsert(node)
        for quota in record.quotas:
            stage.cache.quotas.upsert(quota)
        for pod in record.pods:
            stage.cache.pods.upsert(pod)
        return stage

    def _version(self):
        return (
            *self.live.version(),
            self.explainer.changes,
            self.uses.changes,
            self.conditions_polled.changes,
            self.sizes_polled.changes,
        )

    def _page(self, node):
        if node not in self.monitors:
            raise NoMonitor(node)
        return self.monitors[node]

    def _condition(self, ref):
        return self.conditions.get(ref.name, SchedulingCondition())

    def _size(self, ref):
        return self.sizes.get(ref.name, PodSize())

    def add(self, pod):
        self.cache.pods.upsert(parse_pod(json.dumps(pod).encode()))

    def ask(self, path, token=None, host="localhost", method="GET", **headers):
        """Returns the answer to a request."""
        given = {"Host": host, **{name.replace("_", "-"): text for name, text in headers.items()}}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        return self.client.open(path, method=method, headers=given, buffered=True)

    def json(self, path, token=None):
        """Returns a page's record."""
        answer = self.ask(path + ("&" if "?" in path else "?") + "format=json", token)
        assert answer.status_code == 200, answer.text
        return answer.json

    def collect(self):
        """Polls what pages have viewed, and lets a second pass."""
        for poller in (self.uses, self.conditions_polled, self.sizes_polled):
            poller.step()
        self.clock.seconds += 1

    def explain(self):
        """Answers the questions that wait, and lets time pass until the answers are shown."""
        while self.explainer.due():
            self.explainer.step()
        self.clock.seconds += 60
