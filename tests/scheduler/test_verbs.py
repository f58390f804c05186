"""Admit, filter, bind against a cluster in memory: what upstream's reference says row by row, and what may go wrong."""

from dataclasses import replace

import pytest

from hami.cache.cache import Policies
from hami.cache.reservations import Rejected
from hami.codec.admission import Review
from hami.codec.device_config import DeviceConfig, NvidiaConfig
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK
from hami.scheduler.admit import Admitted, Admitter, Denied
from hami.scheduler.reconcile import PodRules, pod_moves
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NodeLocked, NotFound
from hami.vendors.catalog import vendors
from tests.builders import NVIDIA, ONLY_NVIDIA, gpu, gpus, node, pod, quota
from tests.fake_cluster import no_answer
from tests.world import Clock, Replica, WatchedCluster

SCHEDULER = "hami-scheduler"


# admission

def raw(*containers, scheduler="default-scheduler", inits=(), spec=None, meta=None):
    """A pod as the API server sends it."""
    made = {"containers": list(containers), "schedulerName": scheduler} | (spec or {})
    return {"metadata": {"name": "p"} | (meta or {}), "spec": made | ({"initContainers": list(inits)} if inits else {})}


def asking(limits=None, **fields):
    return {"name": "c"} | ({"resources": {"limits": limits}} if limits is not None else {}) | fields


def gpu_limits(**amounts):
    return asking({f"nvidia.com/{name.replace('_', '-')}": value for name, value in amounts.items()})


ONE = {"nvidia.com/gpu": 1}
PRIVILEGED = {"securityContext": {"privileged": True}}


def admitter(*, force=True, name=SCHEDULER, quotas=(), **config):
    """The admission of an empty cluster."""
    clock, fake = Clock(), WatchedCluster()
    replica = Replica(fake, clock, vendors=vendors(DeviceConfig(nvidia=NvidiaConfig(**config))))
    for one in quotas:
        replica.cache.quotas.upsert(one)
    return Admitter(replica.cache, scheduler_name=name, force_overwrite=force)


def admit(thing, namespace="default", **options):
    return admitter(**options).admit(Review("u", namespace, thing, "v1", "AdmissionReview"))


@pytest.mark.parametrize(("thing", "options", "code", "message"), [
    (None, {}, 400, "there is no content to decode"),
    ({}, {}, 400, "there is no content to decode"),
    ({"spec": {"containers": "x"}}, {}, 400, "pod"),
    ({"metadata": {"annotations": {"a": 1}}, "spec": {"containers": [{}]}}, {}, 400, "pod"),
    (raw(), {}, 403, "pod has no containers"),
    ({"metadata": {}}, {}, 403, "pod has no containers"),
    (raw(gpu_limits(gpu=1, gpumem_percentage=120)), {}, 500,
     "invalid nvidia.com/gpumem-percentage value 120 in container c: must be an integer between 0 and 100"),
    (raw(gpu_limits(gpu=1, gpumem_percentage=-1)), {}, 500, "invalid nvidia.com/gpumem-percentage value -1"),
    (raw(gpu_limits(gpu=1, gpumem="1500m")), {}, 500, "invalid nvidia.com/gpumem value 1500m"),
    (raw(gpu_limits(gpu=1, gpumem="lots")), {}, 500, "lots"),
    (raw(gpu_limits(gpu=1, gpumem=2**31)), {}, 500, "must be an integer between 0 and 2147483647"),
    (raw(asking(), inits=[gpu_limits(gpu=1, gpumem_percentage=101)]), {}, 500, "value 101 in container c"),
    (raw(asking(ONE, **PRIVILEGED)), {}, 403, "container c is privileged"),
    (raw(asking(ONE), inits=[asking(name="i", **PRIVILEGED)]), {}, 403, "container i is privileged"),
    (raw(asking(ONE), spec={"nodeName": "n1"}), {}, 403, "pod has node assigned"),
    (raw(gpu_limits(gpu=1, gpumem=2000)), {"quotas": [quota(gpumem=1000)]}, 403, "exceeding resource quota"),
    (raw(gpu_limits(gpu=1, gpumem=4000), inits=[gpu_limits(gpu=1, gpumem=30000)]), {"quotas": [quota(gpumem=24000)]},
     403, "exceeding resource quota"),
    (raw(gpu_limits(gpu=1, gpucores=30)), {"quotas": [quota(gpucores=0)]}, 403, "exceeding resource quota")])
def test_who_is_not_let_in_and_why(thing, options, code, message):
    answer = admit(thing, **options)
    assert isinstance(answer, Denied) and answer.code == code and message in answer.message


@pytest.mark.parametrize(("thing", "options", "message"), [
    (raw(asking(ONE), scheduler="volcano"), {}, "pod already has different scheduler assigned"),
    (raw(asking(ONE, **PRIVILEGED), scheduler="volcano", spec={"nodeName": "n1"}), {},
     "pod already has different scheduler assigned"),
    (raw(asking(ONE)), {"force": False}, "pod already has different scheduler assigned"),
    (raw(asking(ONE), scheduler="x"), {"name": ""}, "pod already has different scheduler assigned"),
    (raw(asking()), {}, ""),
    (raw(asking(**PRIVILEGED)), {}, ""),
    (raw(asking(), spec={"nodeName": "n1"}), {}, ""),
    (raw(gpu_limits(gpu=1, gpumem=1, gpucores=1), scheduler=SCHEDULER), {}, ""),
    (raw(gpu_limits(gpu=1, gpumem=1, gpucores=1), scheduler=SCHEDULER), {"force": False}, "")])
def test_who_is_let_in_as_he_is(thing, options, message):
    answer = admit(thing, **options)
    assert isinstance(answer, Admitted) and answer.pod is thing and answer.message == message


@pytest.mark.parametrize(("thing", "options", "scheduler", "limits"), [
    (raw(asking(ONE)), {}, SCHEDULER, {"nvidia.com/gpu": 1, "nvidia.com/gpucores": "100"}),
    (raw(asking(ONE), scheduler=""), {}, SCHEDULER, {"nvidia.com/gpu": 1, "nvidia.com/gpucores": "100"}),
    (raw(asking(ONE)), {"name": ""}, "default-scheduler", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": "100"}),
    (raw(gpu_limits(gpumem=10)), {}, SCHEDULER, {"nvidia.com/gpumem": 10, "nvidia.com/gpu": "1"}),
    (raw(gpu_limits(gpu=1, gpumem_percentage=100)), {}, SCHEDULER,
     {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100, "nvidia.com/gpucores": "100"}),
    (raw(gpu_limits(gpu=1, gpumem=10), inits=[gpu_limits(gpu=1, gpumem=20000)]),
     {"quotas": [quota(gpumem=24000)]}, SCHEDULER, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10})])
def test_what_admission_makes_of_a_pod(thing, options, scheduler, limits):
    answer = admit(thing, **options)
    assert isinstance(answer, Admitted)
    assert answer.pod["spec"]["schedulerName"] == scheduler
    assert answer.pod["spec"]["containers"][0]["resources"]["limits"] == limits


def test_the_larger_of_init_and_app_containers_counts_for_the_quota():
    thing = raw(gpu_limits(gpu=1, gpumem=10000), inits=[gpu_limits(gpu=1, gpumem=20000)])
    assert isinstance(admit(thing, quotas=[quota(gpumem=24000)]), Admitted)


def test_the_quota_is_that_of_the_requests_namespace():
    thing = raw(gpu_limits(gpu=1, gpumem=2000), meta={"namespace": "other"})
    assert isinstance(admit(thing, quotas=[quota(gpumem=1000)]), Denied)


def test_unknown_fields_survive_admission():
    thing = raw(asking(ONE, newField={"a": [1]}), spec={"hostUsers": False, "fromTheFuture": 7}, meta={"x": "y"})
    after = admit(thing).pod
    assert after["metadata"] == thing["metadata"] and after["spec"]["fromTheFuture"] == 7
    assert after["spec"]["containers"][0]["newField"] == {"a": [1]}


def test_admission_does_not_change_what_it_is_given():
    thing = raw(asking({"nvidia.com/gpu": 1}))
    before = repr(thing)
    admit(thing)
    assert repr(thing) == before


@pytest.mark.parametrize("where", ["annotations", "labels"])
@pytest.mark.parametrize("key", [ASSIGNED_NODE, "hami.io/vgpu-time", BIND_PHASE, "hami.io/bind-time",
                                 NVIDIA.to_allocate, NVIDIA.allocated, "hami.io/any-devices-allocated"])
@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano"])
def test_what_only_the_scheduler_may_write_cannot_be_forged(where, key, scheduler):
    answer = admit(raw(asking(), meta={where: {key: "x"}}, scheduler=scheduler))
    assert isinstance(answer, Denied) and answer.code == 403 and key in answer.message


# filter

def cards(name, *taken):
    """A node of A40s."""
    return node(name, *(gpu(f"GPU-{name}-{n}", index=n, **fields) for n, fields in enumerate(taken)))


def holding(name, on, text, **fields):
    return pod(gpus(), name=name, node_name=on, annotations={
        ASSIGNED_NODE: on, BIND_PHASE: "success", NVIDIA.allocated: text}, **fields)


def replica(*nodes, pods=(), policies=None, copies_labels=True, **options):
    fake = WatchedCluster(nodes=nodes, pods=pods, copies_labels=copies_labels)
    return Replica(fake, Clock(), policies=policies, **options)


def g3(**policies):
    return replica(node("n1", gpu("GPU-a0"), gpu("GPU-a1", index=1)), node("n2", gpu("GPU-b0"), gpu("GPU-b1", index=1)),
                   pods=[holding("x", "n2", "GPU-b0,NVIDIA,3000,30:;")], policies=Policies(**policies))


@pytest.mark.parametrize(("policies", "chosen", "device", "scores"), [
    ({}, "n2", "GPU-b1", "n1:0.00,n2:2.33"),
    ({"device": "binpack"}, "n2", "GPU-b0", "n1:0.00,n2:2.33"),
    ({"node": "spread"}, "n1", "GPU-a1", "n2:2.33,n1:0.00")])
def test_filter_places_a_pod_by_the_policies(policies, chosen, device, scores):
    scheduler = g3(**policies)
    asked = pod(gpus(1, memory=3000, cores=30))
    found = scheduler.node_filter.filter(asked, ["n1", "n2"])
    assert (found.names, dict(found.failed), found.chosen) == ([chosen], {}, chosen)
    assert scheduler.cache.reservations.get("uid-pod1").annotations[NVIDIA.allocated] == f"{device},NVIDIA,3000,30:;"
    assert scheduler.events == [(
        "FilteringSucceed", f"find fit node({chosen}), 0 nodes not fit, 2 nodes fit({scores})")]
    assert scheduler.fake.calls == [], "a filter writes nothing"


def g7():
    return replica(
        cards("n1", {"slots": 1}, {}, {}, {"healthy": False}),
        pods=[holding("a", "n1", "GPU-n1-0,NVIDIA,0,0:;"), holding("b", "n1", "GPU-n1-1,NVIDIA,46000,0:;"),
              holding("c", "n1", "GPU-n1-2,NVIDIA,0,90:;")])


def test_filter_says_why_no_node_fits():
    scheduler = g7()
    found = scheduler.node_filter.filter(pod(gpus(1, memory=3000, cores=30)), ["n1"])
    assert found.names is None and found.chosen is None
    assert found.failed == {"n1": "1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
                                  "1/4 CardTimeSlicingExhausted"}
    assert [message for _, message in scheduler.events[:5]] == [
        "1 nodes CardInsufficientCore(n1)", "1 nodes CardInsufficientMemory(n1)", "1 nodes CardNotHealth(n1)",
        "1 nodes CardTimeSlicingExhausted(n1)", "no available node, 1 nodes do not meet"]
    assert set(scheduler.events.reasons()) == {"FilteringFailed"}
    assert "requests 1 × NVIDIA with 3000 MiB, 30 cores" in scheduler.events[5][1]
    assert len(scheduler.metrics.reasons) == 4


@pytest.mark.parametrize(("count", "taken", "text"), [
    (2, "GPU-n1-0,NVIDIA,46068,0:;", "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"),
    (3, "", "NodeInsufficientDevice")])
def test_too_few_devices_are_a_reason_of_the_node(count, taken, text):
    scheduler = replica(cards("n1", {}, {}), pods=[holding("a", "n1", taken)])
    assert scheduler.node_filter.filter(pod(gpus(count, memory=3000, cores=0)), ["n1"]).failed == {"n1": text}


def test_unknown_nodes_are_named():
    scheduler = replica()
    assert scheduler.node_filter.filter(pod(gpus()), ["n9"]).failed == {"n9": "node unregistered"}
    assert scheduler.events[0] == ("FilteringFailed", "no available node, 1 nodes do not meet")


@pytest.mark.parametrize("names", [None, [], ["n1", "x"]])
def test_a_pod_that_asks_for_nothing_goes_anywhere(names):
    scheduler = replica(cards("n1", {}))
    found = scheduler.node_filter.filter(pod(gpus(0)), names)
    assert (found.names, found.failed) == (names, {}) and scheduler.events == []


@pytest.mark.parametrize("names", [None, []])
def test_no_nodes_is_no_crash(names):
    found = replica(cards("n1", {})).node_filter.filter(pod(gpus()), names)
    assert (found.names, found.failed) == (None, {})


def test_weights_that_cannot_be_read_are_an_error_and_an_event():
    scheduler = replica(cards("n1", {}))
    asked = pod(gpus(), annotations={"hami.io/device-scoring-weights": "slot=1"})
    with pytest.raises(MalformedInput, match="^calcScore failed invalid hami.io/device-scoring-weights annotation"):
        scheduler.node_filter.filter(asked, ["n1"])
    assert scheduler.events.reasons() == ["FilteringFailed"]


def test_who_does_not_lead_filters_nothing():
    scheduler = replica(cards("n1", {}), leads=False)
    with pytest.raises(NodeLocked, match="does not lead yet"):
        scheduler.filter(pod(gpus()))
    assert scheduler.cache.reservations.unbound() == 0


def test_a_pod_without_uid_is_refused():
    with pytest.raises(MalformedInput, match="without uid"):
        replica(cards("n1", {})).filter(replace(pod(gpus()), ref=replace(pod().ref, uid="")))


G17 = node("sim", gpu("GPU-0", memory_mib=8192, model="NVIDIA-A100"))


@pytest.mark.parametrize(("memory", "nodes", "chosen", "failed"), [
    (1024, [G17], "sim", {}), (16384, [G17], None, {"sim": "1/1 CardInsufficientMemory"}),
    (1024, [node("bare")], None, {"bare": "node unregistered"}),
    (1024, [node("broken", annotations={NVIDIA.register: "[null]"})], None, {"broken": "node unregistered"})])
def test_a_simulation_leaves_no_trace(memory, nodes, chosen, failed):
    scheduler = replica(leads=False)
    found = scheduler.node_filter.simulate(pod(gpus(1, memory=memory, cores=20)), nodes)
    assert (found.chosen, found.failed) == (chosen, failed)
    assert scheduler.events == [] and scheduler.fake.calls == [] and scheduler.cache.reservations.unbound() == 0


# bind

ASKED = pod(gpus(1, memory=3000, cores=30), phase="Pending")


def ready(**options):
    """A replica that has filtered a pod."""
    scheduler = replica(cards("n1", {}), pods=[ASKED], **options)
    assert scheduler.filter(ASKED) == "n1"
    scheduler.fake.calls.clear()
    scheduler.events.clear()
    return scheduler


def bind(scheduler, asked=ASKED, on="n1"):
    scheduler.binder.bind(asked.ref, on)


@pytest.mark.parametrize("copies_labels", [True, False])
def test_a_bind_writes_the_lock_and_the_binding(copies_labels):
    scheduler = ready(copies_labels=copies_labels)
    scheduler.cache.nodes.clear_foreign("n1")
    bind(scheduler)
    assert [call.method for call in scheduler.fake.calls] == ["annotate_node", "bind"]
    bound = scheduler.fake.pods["default", "pod1"]
    assert bound.node_name == "n1" and bound.annotations == {
        "hami.io/vgpu-node": "n1", "hami.io/vgpu-time": "1787313600", "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1787313600", NVIDIA.allocated: "GPU-n1-0,NVIDIA,3000,30:;",
        NVIDIA.to_allocate: "GPU-n1-0,NVIDIA,3000,30:;"}
    assert bound.labels == ({"hami.io/vgpu-node": "n1"} if copies_labels else {})
    assert scheduler.fake.lock_of("n1") == "2026-08-21T12:00:00Z,default,pod1"
    assert scheduler.events == [("BindingSucceed", "Successfully binding node [n1] to default/pod1")]
    assert len(scheduler.metrics.waits) == 1


def test_a_pod_that_waited_for_its_node_has_all_its_time_for_the_device_plugin():
    scheduler = ready()
    scheduler.clock.seconds += 24
    bind(scheduler)
    scheduler.watch()
    rules = PodRules(vendors=ONLY_NVIDIA, scheduler_name="hami-scheduler", force_overwrite=True,
                     allocation_timeout=20.0)
    record = scheduler.cache.pods.get(ASKED.ref.uid)
    assert record.allocating and pod_moves(record, rules, scheduler.clock.unix()) == []
    assert pod_moves(record, rules, scheduler.clock.unix() + 21)


def nothing_left(scheduler):
    return scheduler.fake.lock_of("n1") is None and not scheduler.fake.pods["default", "pod1"].annotations


@pytest.mark.parametrize(("prepare", "message", "kept"), [
    (lambda s: s.fake.delete_pod("default", "pod1"), "not found", False),
    (lambda s: s.fake.put_pod(replace(ASKED, ref=replace(ASKED.ref, uid="later"))), 'pod "pod1" not found', False),
    (lambda s: s.fake.fail("bind", ClusterError("forbidden", 403)), "forbidden", True),
    (lambda s: s.fake.fail("bind", ClusterError("too many", 429)), "too many", True),
    (lambda s: s.fake.fail("annotate_node", ClusterError("forbidden", 403)), "forbidden", True),
    (lambda s: s.fake.fail("pods_on", no_answer()), "timed out", True),
    (lambda s: s.fake.put_node(node("n1")) and s.watch(), "gone or unhealthy", False),
    (lambda s: setattr(s.leadership, "leading", False), "no longer leads", True),
    (lambda s: s.queue.close(), "shutting down", True)],
    ids=["deleted", "another uid", "forbidden", "too many", "lock forbidden", "list fails", "device gone", "no leader",
         "shutdown"])
def test_a_bind_that_fails_leaves_nothing_behind(prepare, message, kept):
    scheduler = ready()
    prepare(scheduler)
    with pytest.raises(HamiError, match=message):
        bind(scheduler)
    scheduler.locks.retry_releases()
    assert scheduler.fake.lock_of("n1") is None
    assert not any(p.annotations for p in scheduler.fake.pods.values())
    assert scheduler.events.reasons() == ["BindingFailed"] and message in scheduler.events[0][1]
    assert (scheduler.cache.reservations.get("uid-pod1") is not None) is kept


def test_an_unknown_node_is_an_error_and_drops_the_reservation():
    scheduler = ready()
    scheduler.fake.delete_node("n1")
    scheduler.watch()
    with pytest.raises(NotFound, match='node "n1" not found'):
        bind(scheduler)
    assert scheduler.cache.reservations.get("uid-pod1") is None


@pytest.mark.parametrize(("asked", "on", "error", "message"), [
    (pod(gpus(), name="unknown"), "n1", NotFound, 'pod "unknown" not found'),
    (pod(gpus(), uid="another"), "n1", NotFound, 'pod "pod1" not found'),
    (ASKED, "n2", Rejected, "is reserved on node n1, not on n2")])
def test_a_bind_of_what_was_not_filtered(asked, on, error, message):
    scheduler = ready()
    with pytest.raises(error, match=message):
        bind(scheduler, asked, on)
    assert scheduler.fake.calls_of("bind", "annotate_node") == []


def test_a_bind_without_a_reservation_is_refused():
    scheduler = replica(cards("n1", {}), pods=[ASKED])
    with pytest.raises(Rejected, match="has no reservation"):
        bind(scheduler)


def test_a_second_bind_while_the_first_waits_is_refused():
    scheduler = ready()
    scheduler.cache.reservations.start_binding(ASKED.ref, "n1")
    with pytest.raises(Rejected, match="already being bound"):
        bind(scheduler)


def test_a_bind_whose_answer_got_lost_may_be_asked_again():
    scheduler = ready()
    bind(scheduler)
    bind(scheduler)
    scheduler.watch()
    bind(scheduler)
    assert len(scheduler.fake.calls_of("bind")) == 1


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_that_asks_for_nothing_is_bound_as_it_is(seen):
    plain = pod(gpus(0))
    scheduler = replica(cards("n1", {}), pods=[plain])
    if not seen:
        scheduler.fake.put_pod(replace(plain, ref=replace(plain.ref, name="later", uid="later")))
    bind(scheduler, plain)
    (call,) = scheduler.fake.calls_of("bind")
    assert (dict(call.annotations), dict(call.labels)) == ({}, {}) and scheduler.fake.lock_of("n1") is None


def test_a_binding_takes_no_longer_than_the_leadership_lasts():
    scheduler = ready(patient=True)
    scheduler.leadership.leads_until = lambda: scheduler.clock() + 5
    bind(scheduler)
    assert scheduler.fake.calls_of("bind")[0].timeout == 7.0


# Bindings without an answer

ANSWERS = [no_answer(), ClusterError("etcdserver: request timed out", 500), ClusterError("unavailable", 503)]


@pytest.mark.parametrize("error", ANSWERS, ids=str)
def test_a_binding_that_was_written_without_an_answer_counts(error):
    scheduler = ready()
    scheduler.fake.fail("bind", error, after=True)
    bind(scheduler)
    assert scheduler.events.reasons() == ["BindingSucceed"] and scheduler.cache.reservations.unbound() == 0
    assert scheduler.fake.lock_of("n1")


@pytest.mark.parametrize("error", ANSWERS, ids=str)
def test_a_binding_without_an_answer_stays_promised_and_locked(error):
    scheduler = ready()
    scheduler.fake.fail("bind", error)
    with pytest.raises(ClusterError, match="no answer whether it was bound"):
        bind(scheduler)
    assert scheduler.fake.lock_of("n1") and scheduler.cache.reservations.get("uid-pod1")
    assert scheduler.schedule(ASKED) == "n1" and scheduler.fake.bindings == 1


def test_a_binding_of_which_nothing_can_be_learnt_stays_promised():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer(), after=True)
    scheduler.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError, match="no answer"):
        bind(scheduler)
    assert scheduler.schedule(ASKED) == "n1", "a conflict with our own earlier Binding is success"
    assert scheduler.cache.reservations.unbound() == 0 and scheduler.fake.pods["default", "pod1"].node_name == "n1"


def test_a_conflict_of_which_nothing_can_be_learnt_stays_promised_too():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer(), after=True)
    scheduler.fake.fail("pod", no_answer(), times=2)
    for _ in range(2):
        with pytest.raises(ClusterError, match="no answer"):
            scheduler.schedule(ASKED)
    assert scheduler.cache.reservations.get("uid-pod1") and scheduler.fake.lock_of("n1")


def test_a_binding_that_was_written_and_served_meanwhile_is_recognised():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer(), after=True)
    scheduler.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError):
        bind(scheduler)
    scheduler.fake.allocate("n1")
    bind(scheduler)
    assert scheduler.events.reasons() == ["BindingFailed", "BindingSucceed"]


@pytest.mark.parametrize(("where", "lock_stays"), [("n1", True), ("n2", False)])
def test_a_pod_that_another_replica_has_bound_is_lost_and_keeps_its_lock(where, lock_stays):
    scheduler = ready()
    other = holding("pod1", where, "GPU-other,NVIDIA,1,1:;", uid="uid-pod1")

    def overtake(call):
        if call.method == "bind":
            scheduler.fake.on_call = lambda call: None
            scheduler.fake.put_pod(other)

    scheduler.fake.on_call = overtake
    with pytest.raises(Conflict, match=f"already bound to node {where}"):
        bind(scheduler)
    assert bool(scheduler.fake.lock_of("n1")) is lock_stays
    assert scheduler.cache.reservations.get("uid-pod1") is None
    assert scheduler.cache.node_usage("n1")["NVIDIA"][0].memory_used_mib == 0


# another replica on the same node

def test_after_another_process_locked_the_node_its_pods_are_read_before_the_binding():
    scheduler = ready()
    scheduler.cache.nodes.clear_foreign("n1")
    free = scheduler.fake.nodes["n1"]
    theirs = {NODE_LOCK: "2026-08-21T12:00:00Z,default,other"}
    scheduler.fake.put_node(replace(free, annotations=free.annotations | theirs))
    scheduler.fake.release("n1")
    scheduler.fake.put_pod(holding("other", "n1", "GPU-n1-0,NVIDIA,45000,0:;"))
    scheduler.watch("nodes")
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.calls_of("pods_on") and scheduler.fake.bindings == 0


def test_a_lock_that_came_and_went_before_the_watch_showed_it_is_noticed():
    scheduler = ready()
    scheduler.cache.nodes.clear_foreign("n1")
    served_elsewhere(scheduler)
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0


def test_a_handshake_hides_no_lock_that_came_and_went():
    scheduler = ready()
    scheduler.cache.nodes.clear_foreign("n1")
    served_elsewhere(scheduler)
    scheduler.controller.tick()
    assert NVIDIA.handshake not in scheduler.fake.nodes["n1"].annotations, "the node was not as it was known"
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0
    scheduler.watch("nodes")
    scheduler.controller.tick()
    assert scheduler.fake.nodes["n1"].annotations[NVIDIA.handshake]


def test_a_handshake_is_no_reason_to_read_the_pods_of_a_node():
    scheduler = ready()
    scheduler.cache.nodes.clear_foreign("n1")
    scheduler.controller.tick()
    assert scheduler.fake.nodes["n1"].annotations[NVIDIA.handshake]
    bind(scheduler)
    assert scheduler.fake.calls_of("pods_on") == []


def served_elsewhere(scheduler):
    """Another process locks the node, binds a pod and releases it; the watch has shown none of that yet."""
    scheduler.fake.put_node(replace(scheduler.fake.nodes["n1"], annotations=scheduler.fake.nodes["n1"].annotations | {
        NODE_LOCK: "2026-08-21T12:00:00Z,default,other"}))
    scheduler.fake.put_pod(holding("other", "n1", "GPU-n1-0,NVIDIA,45000,0:;"))
    scheduler.fake.release("n1")


def test_a_node_whose_pods_could_not_be_read_is_read_again():
    scheduler = ready()
    scheduler.fake.fail("pods_on", no_answer())
    with pytest.raises(ClusterError):
        bind(scheduler)
    scheduler.fake.put_pod(holding("other", "n1", "GPU-n1-0,NVIDIA,45000,0:;"))
    with pytest.raises(Rejected, match="taken by another pod"):
        bind(scheduler)


def test_filtering_again_calls_off_the_bind_that_waits():
    scheduler = ready()

    def filter_again(call):
        if call.method == "annotate_node":
            scheduler.fake.on_call = lambda call: None
            scheduler.filter(ASKED)

    scheduler.fake.on_call = filter_again
    with pytest.raises(Rejected, match="replaced or dropped"):
        bind(scheduler)
    assert nothing_left(scheduler) and scheduler.cache.reservations.unbound() == 1


def test_binds_in_progress_are_waited_for():
    scheduler = ready()
    seen = []
    scheduler.fake.on_call = lambda call: seen.append(scheduler.binder.drain(0))
    bind(scheduler)
    assert seen and not any(seen) and scheduler.binder.drain(0)
