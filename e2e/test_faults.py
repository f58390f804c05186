"""Processes that are killed, stopped or suspended during work. The audit after each test must find nothing."""

import threading

import pytest
import urllib3

from testing.nodes import LOCK_FREE, gpus
from testing.pods import pod
from testing.scheduler import kill_leader, lease_holder, redirect_webhook, second_replica

PODS = 200


def crowd(count=PODS):
    """Returns pods that name their scheduler, so that they are scheduled even if they are created
    without the webhook."""
    limits = {"gpu": 1, "gpumem": 8000, "gpucores": 10}
    return [pod(f"p{number:03}", scheduler="hami-scheduler", **limits) for number in range(count)]


def ten_nodes(sandbox, lock_free=False):
    sandbox.add_gpu_nodes(
        {f"n{number}": gpus(8) for number in range(10)},
        annotations=LOCK_FREE if lock_free else None,
    )


either_mode = pytest.mark.parametrize("lock_free", [False, True], ids=["locks", "lock-free"])


def submit(sandbox, pods):
    """Creates *pods* in the background; returns the thread."""
    thread = threading.Thread(target=sandbox.create_all, args=(pods,))
    thread.start()
    return thread


@either_mode
def test_the_scheduler_is_killed_while_two_hundred_pods_are_placed(sandbox, scheduler, lock_free):
    ten_nodes(sandbox, lock_free)
    creation = submit(sandbox, crowd())
    sandbox.bound(wait_for=40)
    scheduler.kill()
    creation.join()
    scheduler.run_with()
    assert len(sandbox.started(wait_for=PODS, timeout=120)) == PODS


def test_the_scheduler_is_killed_repeatedly(sandbox, scheduler):
    """Without leader election, so that the next process acts at once."""
    scheduler.run_with(leader_elect="false")
    ten_nodes(sandbox)
    creation = submit(sandbox, crowd(100))
    for bound in (10, 30, 50, 70):
        sandbox.bound(wait_for=bound)
        scheduler.kill()
        scheduler.run_with(leader_elect="false")
    creation.join()
    assert len(sandbox.started(wait_for=100, timeout=120)) == 100


def test_the_scheduler_is_stopped_while_pods_are_placed(sandbox, scheduler):
    ten_nodes(sandbox)
    creation = submit(sandbox, crowd(100))
    sandbox.bound(wait_for=30)
    scheduler.stop()
    assert scheduler.program.exit_code == 0
    creation.join()
    scheduler.run_with()
    assert len(sandbox.started(wait_for=100, timeout=120)) == 100


def test_kube_scheduler_is_killed_while_pods_are_placed(sandbox, local):
    """Binds without their caller complete or are rolled back."""
    ten_nodes(sandbox)
    creation = submit(sandbox, crowd(100))
    sandbox.bound(wait_for=30)
    local.components["kube-scheduler"].kill()
    creation.join()
    local.revive()
    assert len(sandbox.started(wait_for=100, timeout=120)) == 100


def test_the_api_server_is_restarted_while_pods_are_placed(sandbox, local, scheduler):
    ten_nodes(sandbox)
    sandbox.create_all(crowd(100))
    sandbox.bound(wait_for=20)
    local.restart_api_server()
    assert len(sandbox.started(wait_for=100, timeout=120)) == 100
    assert scheduler.program.running()


@either_mode
def test_the_api_server_hangs_for_a_while(sandbox, local, scheduler, lock_free):
    ten_nodes(sandbox, lock_free)
    sandbox.create_all(crowd(60))
    sandbox.bound(wait_for=20)
    local.pause_api_server()
    try:
        with pytest.raises(urllib3.exceptions.TimeoutError):  # nothing is answered for 5 s
            sandbox.kube.call("GET", "/version", timeout=5)
    finally:
        local.resume_api_server()
    assert len(sandbox.started(wait_for=60, timeout=120)) == 60
    assert scheduler.program.running()


@pytest.mark.parametrize("round", range(3))
def test_etcd_is_restored_from_a_backup(sandbox, local, scheduler, round):
    """A pod that was deleted after the backup is back and holds its device, which the scheduler must learn before it
    gives the device to another pod."""
    sandbox.add_gpu_nodes({"n0": gpus(2)}, annotations=LOCK_FREE)
    whole = {"gpu": 1, "gpucores": 100}
    sandbox.create(pod("before", **whole))
    assert sandbox.started() == {"before": "n0"}
    backup = local.back_up()
    sandbox.delete("before")
    for number in range(100):  # resource versions that the backup has not reached
        sandbox.annotate_node("n0", {"example.com/number": str(number)})
    pid = scheduler.program.pid
    local.restore(backup)
    sandbox.create_all(
        [pod(f"after-{number}", scheduler="hami-scheduler", **whole) for number in range(2)]
    )
    bound = sandbox.started(wait_for=2)
    assert "before" in bound
    assert len(bound) == 2
    assert scheduler.program.running()
    assert scheduler.program.pid == pid
    waiting = next(f"after-{number}" for number in range(2) if f"after-{number}" not in bound)
    sandbox.refusal(waiting)
    assert len(sandbox.bound(wait_for=2)) == 2


def test_the_plugins_pause_and_continue(sandbox, agent):
    ten_nodes(sandbox)
    agent.pause()
    sandbox.create_all(crowd(20))
    sandbox.bound(wait_for=1)
    agent.resume()
    assert len(sandbox.started(wait_for=20)) == 20


@pytest.fixture
def standby(sandbox, scheduler):
    """A second replica with its own kube-scheduler; the first one is restored at the end."""
    with second_replica(scheduler) as second:
        yield second


@either_mode
def test_the_leader_is_killed_and_its_standby_takes_over(sandbox, scheduler, standby, lock_free):
    ten_nodes(sandbox, lock_free)
    holder = lease_holder(sandbox.kube)
    sandbox.create_all(crowd(50))
    sandbox.bound(wait_for=10)
    kill_leader(scheduler, standby)
    sandbox.create_all([pod(f"later-{number}", gpu=1, gpumem=8000) for number in range(10)])
    assert len(sandbox.started(wait_for=60, timeout=120)) == 60
    assert lease_holder(sandbox.kube) != holder


@either_mode
def test_the_leader_steps_down(sandbox, local, scheduler, certificates, standby, lock_free):
    ten_nodes(sandbox, lock_free)
    sandbox.create_all(crowd(50))
    sandbox.bound(wait_for=10)
    local.components["kube-scheduler"].stop()
    scheduler.stop()
    redirect_webhook(sandbox.kube, certificates, standby.port)
    assert len(sandbox.started(wait_for=50, timeout=120)) == 50
