"""Events on pods and nodes about wishes that nobody fulfils, in rounds of the controller."""

from hami.scheduler.settings import Settings
from hami.scheduler.wish_reports import ARRIVED, LIMIT, NODES_EVERY, PER_ROUND, REASON
from testing.builders import container, gpu, gpus, node, pod
from testing.cases import cases
from testing.replicas import SETTINGS, Clock, Replica, WatchedCluster

POLICY = "hami.io/gpu-scheduler-policy"
MUCH = gpus(memory=10**6)
TOO_MUCH = (
    "container c requests 1000000 of nvidia.com/gpumem, 1,000,000 MiB: no device of the cluster has more than 46,068 "
    "MiB"
)
OURS = SETTINGS.scheduler_name


def world(*pods, **options):
    """A replica that has watched a cluster with one node."""
    return Replica(WatchedCluster(pods=pods, nodes=[node("n1", gpu("GPU-0"))]), Clock(), **options)


def create(made, item, node_name=""):
    """Creates a pod, which is bound before the next round if *node_name* is not empty."""
    made.fake.put_pod(item)
    made.watch()
    if node_name:
        made.fake.bind(item.ref, node_name, {}, {})
        made.watch()


def wishes(made):
    return [message for reason, message in made.events if reason == REASON]


def rounds(made, count=3):
    for _ in range(count):
        made.controller.step()


def test_all_wishes_of_a_pod_are_one_event():
    made = world()
    create(made, pod(MUCH, scheduler_name=OURS, annotations={POLICY: "binpak"}))
    rounds(made)
    (message,) = wishes(made)
    assert f"annotation {POLICY}=binpak" in message
    assert TOO_MUCH in message


@cases("node_name", ("waits", ""), ("placed", "n1"))
@cases(
    "item, found",
    ("too much", pod(MUCH, scheduler_name=OURS), [TOO_MUCH]),
    (
        "unknown word past the webhook",
        pod(gpus(), scheduler_name=OURS, annotations={POLICY: "binpak"}),
        [
            f"annotation {POLICY}=binpak: expected binpack, spread, numa, mutex or topology-aware, or several of "
            "them separated by commas; did you mean binpack?"
        ],
    ),
    (
        "another scheduler",
        pod(MUCH, scheduler_name="volcano", annotations={POLICY: "binpak"}),
        [
            "schedulerName volcano is not HAMi's: the pod gets no devices from HAMi; leave it out, or write "
            "hami-scheduler"
        ],
    ),
    (
        "default scheduler",
        pod(
            container({"nvidia.com/gpu": 1, "nvidia.com/gpumemory": 1}),
            scheduler_name="default-scheduler",
        ),
        [
            "container c: nobody manages nvidia.com/gpumemory, and no node offers it: did you mean "
            "nvidia.com/gpumem?"
        ],
    ),
    ("letter case", pod(gpus(), scheduler_name=OURS, annotations={POLICY: "Spread"}), []),
    ("no devices", pod(container({"cpu": 1}), annotations={"hami.io/x": ""}), []),
    ("none of them", pod(container({"nvidia.com/gpu": 0}), scheduler_name="volcano"), []),
)
def test_a_pod_is_told_once_of_what_is_ignored(item, found, node_name):
    made = world()
    create(made, item, node_name)
    rounds(made)
    assert wishes(made) == found


def test_only_the_leader_tells():
    made = world(leads=False)
    create(made, pod(MUCH))
    rounds(made)
    assert wishes(made) == []


def test_a_new_leader_tells_the_pods_that_wait():
    made = world(pod(MUCH, name="waits"), leads=False)
    rounds(made)
    made.leadership.leading = True
    made.leadership.began = made.clock()
    rounds(made)
    assert wishes(made) == [TOO_MUCH]


def test_a_leader_tells_the_pods_that_came_while_its_lease_was_late():
    """It was renewed in the same term."""
    made = world()
    rounds(made)
    made.leadership.leading = False
    create(made, pod(MUCH))
    rounds(made)
    made.leadership.leading = True
    rounds(made)
    assert wishes(made) == [TOO_MUCH]


def test_many_pods_take_several_rounds():
    made = world()
    for number in range(PER_ROUND + 1):
        create(made, pod(MUCH, name=f"p{number}"))
    made.controller.step()
    assert len(wishes(made)) == PER_ROUND
    made.controller.step()
    assert len(wishes(made)) == PER_ROUND + 1


def test_the_pods_that_no_round_has_looked_at_are_bounded():
    made = world(leads=False)
    (arrived,) = made.cache.pods.arrivals
    for number in range(ARRIVED + 1):
        made.cache.pods.upsert(pod(gpus(), name=f"p{number}"))
    assert len(arrived) == ARRIVED
    made.controller.step()
    assert not arrived


def test_without_a_name_of_ours_no_scheduler_is_another():
    made = world(settings=Settings(scheduler_name=""))
    create(made, pod(gpus(), scheduler_name="volcano"))
    rounds(made)
    assert wishes(made) == []


def test_a_word_for_pods_on_a_node_is_reported_once():
    made = world()
    made.fake.put_node(node("n2", gpu("GPU-1"), annotations={POLICY: "spread"}))
    made.watch()
    rounds(made, 2 * NODES_EVERY)
    assert wishes(made) == [f"annotation {POLICY} of a node has no effect: write it on pods"]
    assert "n2" in made.events.subjects


def test_words_on_many_nodes_are_reported_once_each():
    """There may be more words than pods and nodes are remembered."""
    made = world()
    for number in range(LIMIT // 2):
        words = {POLICY: "spread", "nvidia.com/use-gputype": "A40", "nvidia.com/numa-bind": "true"}
        made.fake.put_node(node(f"m{number}", annotations=words))
    made.watch()
    rounds(made, NODES_EVERY)
    reported = len(wishes(made))
    rounds(made, NODES_EVERY)
    assert len(wishes(made)) == reported == 3 * LIMIT // 2
