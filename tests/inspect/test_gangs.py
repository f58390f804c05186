"""The gang of a waiting pod, as ``hami explain`` and the page show it."""

import json
from dataclasses import replace

from hami.codec.gangs import pod_group_of
from hami.errors import ClusterError, NotFound
from hami.inspect.cluster import InspectedCluster
from hami.inspect.explain import explain_pod, render_report
from hami.inspect.gangs import MAX_TRIED, gang_of, gang_sentences
from hami.inspect.read import Reader
from hami.model import PodGroup
from testing.builders import gpu, gpus, node, pod
from testing.cases import cases
from testing.records import held, record

CARDS = node("n1", gpu("a", index=0), gpu("b", index=1))
NATIVE = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/ring"
PLUGIN = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/ring"


def member(number, *containers, **fields):
    return pod(
        *(containers or (gpus(1, cores=100),)), name=f"ring-{number}", **{"group": "ring"} | fields
    )


def gang(*pods, required=None, nodes=(CARDS,), of=None):
    cluster = InspectedCluster(record(nodes, pods))
    return gang_of(cluster, of or next(item for item in pods if not item.node_name), required)


def test_a_gang_that_lacks_devices():
    report = gang(*(member(number) for number in range(4)), required=4)
    assert (report.bound, report.chosen, report.waiting, report.fitting, report.lacking) == (
        0,
        0,
        4,
        2,
        2,
    )
    assert list(gang_sentences(report)) == [
        "It belongs to the gang ring, which needs 4 pods together. Of its pods with devices, 0 are bound, 0 have a "
        "node that kube-scheduler has chosen, and 4 wait.",
        "HAMi would place 2 of the 4 that are not bound now: the gang lacks devices for 2 pods.",
    ]


def test_bound_pods_and_those_with_a_node_count():
    report = gang(
        held("first", "n1", ("a", 46_068, 100), group="ring"),
        member(1, nominated_node="n1"),
        member(2),
        required=3,
    )
    assert (report.bound, report.chosen, report.waiting, report.fitting, report.lacking) == (
        1,
        1,
        1,
        1,
        1,
    )
    assert list(gang_sentences(report))[0].endswith(
        "1 is bound, 1 has a node that kube-scheduler has chosen, and 1 waits."
    )


def test_a_pod_that_is_bound_meanwhile_counts_once():
    """A dashboard reads the pods that wait before it looks at the store."""
    later = held("ring-1", "n1", ("a", 46_068, 100), group="ring")
    cluster = InspectedCluster(
        record([CARDS], [member(1), member(2)]),
        InspectedCluster(record([CARDS], [later, member(2)])).view,
    )
    report = gang_of(cluster, member(2), 2)
    assert (report.bound, report.waiting) == (0, 2)


def test_a_gang_that_needs_fewer_than_it_has_lacks_only_those():
    assert gang(*(member(number) for number in range(4)), required=3).lacking == 1
    assert gang(*(member(number) for number in range(4)), required=2).lacking == 0


def test_a_gang_whose_size_is_not_known_lacks_devices_for_all_that_do_not_fit():
    report = gang(*(member(number) for number in range(3)))
    assert report.lacking == 1
    assert "could not be read" in next(gang_sentences(report))


def test_a_gang_that_fits_lacks_no_devices():
    report = gang(member(0), member(1), required=2)
    assert (
        list(gang_sentences(report))[1]
        == "HAMi would place 2 of the 2 that are not bound now: it lacks no devices."
    )


def test_pods_of_other_groups_and_namespaces_and_pods_that_have_ended_do_not_count():
    report = gang(
        member(0), member(1, group="other"), member(2, namespace="b"), member(3, phase="Failed")
    )
    assert report.bound + report.chosen + report.waiting == 1
    assert gang(member(0, group="")) is None


def test_a_pod_with_another_request_is_tried_after_one_that_does_not_fit():
    report = gang(member(0, gpus(1, 50_000)), member(1, gpus(1, 50_000)), member(2, gpus(1, 1000)))
    assert (report.fitting, report.lacking) == (1, 2)


def test_not_all_pods_of_a_huge_gang_are_tried():
    pods = [member(number, gpus(1, 1)) for number in range(MAX_TRIED + 10)]
    report = gang(*pods, nodes=[node("n1", gpu("a", slots=1000))])
    assert report.tried == report.fitting == MAX_TRIED
    assert report.waiting == MAX_TRIED + 10


def test_the_report_on_a_pod_says_what_its_gang_lacks():
    pods = [member(number) for number in range(3)]
    cluster = InspectedCluster(record([CARDS], pods))
    report = explain_pod(cluster, pods[0], (), pod_groups=lambda ref: PodGroup(min_count=3))
    lines = render_report(report, wide=False).splitlines()
    assert lines[0].endswith(": it fits, HAMi would place it on n1 now.")
    assert (
        lines[-1]
        == "HAMi would place 2 of the 3 that are not bound now: the gang lacks devices for 1 pod."
    )
    assert explain_pod(cluster, replace(pods[0], group=""), ()).gang is None


def answers(**objects):
    """Returns the calls of an API server that has *objects* (bytes or errors) by path, and the paths asked for."""
    asked = []

    def request(method, path, *args, **kwargs):
        asked.append(path)
        answer = objects.get(path, NotFound("none", 404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return request, asked


def group(mode="", parent="", **policy):
    """A PodGroup or CompositePodGroup of Kubernetes, as JSON."""
    spec = {"schedulingPolicy": policy or {"basic": {}}}
    if mode:
        spec["disruptionMode"] = {mode: {}}
    if parent:
        spec["parentCompositePodGroupName"] = parent
    return json.dumps({"spec": spec}).encode()


def above(name):
    return f"/apis/scheduling.k8s.io/v1alpha3/namespaces/default/compositepodgroups/{name}"


OF_PLUGIN = b'{"spec": {"minMember": 3}}'
ALONE, WITH_GROUP, WITH_PARENT = "", "podgroup/ring", "compositepodgroup/job"


@cases(
    "objects, labels, known, asked",
    ("native", {NATIVE: group(gang={"minCount": 8})}, {}, PodGroup(min_count=8), [NATIVE]),
    ("no gang", {NATIVE: group()}, {}, PodGroup(), [NATIVE]),
    ("null", {NATIVE: b'{"spec": {"disruptionMode": null}}'}, {}, PodGroup(), [NATIVE]),
    ("single", {NATIVE: group("single")}, {}, PodGroup(), [NATIVE]),
    ("all", {NATIVE: group("all")}, {}, PodGroup(disrupted_with=WITH_GROUP), [NATIVE]),
    (
        "plugin",
        {PLUGIN: OF_PLUGIN},
        {},
        PodGroup(min_count=3, disrupted_with=WITH_GROUP),
        [NATIVE, PLUGIN],
    ),
    (
        "plugin by label",
        {PLUGIN: OF_PLUGIN},
        {"scheduling.x-k8s.io/pod-group": "ring"},
        PodGroup(min_count=3, disrupted_with=WITH_GROUP),
        [PLUGIN],
    ),
    ("none", {}, {}, PodGroup(disrupted_with=WITH_GROUP), [NATIVE, PLUGIN]),
)
def test_what_a_pod_group_says_of_its_pods(objects, labels, known, asked):
    request, paths = answers(**objects)
    assert Reader(request).pod_group(pod_group_of(member(0, labels=labels))) == known
    assert paths == asked


@cases(
    "objects, disrupted_with",
    ("its own", {NATIVE: group("all", "job"), above("job"): group("single")}, WITH_GROUP),
    ("that above", {NATIVE: group("single", "job"), above("job"): group("all")}, WITH_PARENT),
    ("both", {NATIVE: group("all", "job"), above("job"): group("all")}, WITH_PARENT),
    ("none", {NATIVE: group("single", "job"), above("job"): group("single")}, ALONE),
    ("no such API", {NATIVE: group("all", "job")}, WITH_GROUP),
    (
        "the highest with all",
        {
            NATIVE: group("single", "job"),
            above("job"): group("all", "top"),
            above("top"): group("single"),
        },
        WITH_PARENT,
    ),
    (
        "four at most",
        {
            NATIVE: group("single", "a"),
            above("a"): group("single", "b"),
            above("b"): group("single", "job"),
            above("job"): group("all", "c"),
            above("c"): group("all"),
        },
        WITH_PARENT,
    ),
    ("a circle", {NATIVE: group("single", "job"), above("job"): group("all", "job")}, WITH_PARENT),
)
def test_pods_are_disrupted_with_the_highest_group_above_them_that_is_disrupted_as_a_whole(
    objects, disrupted_with
):
    request, paths = answers(**objects)
    known = Reader(request).pod_group(pod_group_of(member(0)))
    assert known == PodGroup(disrupted_with=disrupted_with)
    assert len(paths) == len(set(paths)) <= 4


def test_a_group_that_may_not_be_read_is_noted_once():
    request, paths = answers(**{NATIVE: ClusterError("forbidden", 403)})
    notes = []
    reader = Reader(request, note=notes.append)
    assert [reader.pod_group(pod_group_of(member(0))) for _ in range(2)] == [None, None]
    assert notes == [
        "you may not get podgroups in namespace default: ask for the verb get on podgroups there"
    ]
    assert paths == [NATIVE]


def test_a_composite_group_that_may_not_be_read_leaves_the_pods_together():
    request, _ = answers(
        **{NATIVE: group("single", "job"), above("job"): ClusterError("forbidden", 403)}
    )
    notes = []
    assert Reader(request, note=notes.append).pod_group(pod_group_of(member(0))) is None
    assert notes == [
        "you may not get compositepodgroups in namespace default: "
        "ask for the verb get on compositepodgroups there"
    ]


def test_a_pod_without_a_gang_asks_for_none():
    request, paths = answers()
    assert Reader(request).pod_group(pod_group_of(member(0, group=""))) is None
    assert paths == []
