"""Several processes of a container: they share one limit, and none of them can harm the others by dying."""

import fcntl
import os
import random
import resource
import struct
import subprocess
import time

import pytest

from testing.cases import cases
from testing.eventually import eventually
from testing.limiter.builds import SANITIZERS
from testing.limiter.layout import make_region
from testing.limiter.rig import MIB, uuid_of

LIMIT = 2048 * MIB
INIT_POINTS = (10, 11, 12, 13, 14, 24, 25, 26, 27, 28)
CHARGE_POINTS = (40, 41, 43, 44, 50, 51, 52, 60, 61)
REAP_POINTS = (20, 21, 22, 23, 30, 31)
AT_ONCE = 0.1
"""Seconds for which a process may wait of its own accord, whatever else the machine does."""


def test_processes_share_the_limit(rig):
    rig.limit()
    one, two = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {1500 * MIB}") == 0
    assert two.do(f"alloc plain 0 {549 * MIB}") == 2
    assert two.do(f"alloc plain 0 {548 * MIB}") == 0
    assert two.do("info") == [0, 0, LIMIT]
    assert one.do("info") == [0, 0, LIMIT]


def test_memory_of_a_killed_process_is_free_at_once(rig):
    rig.limit()
    one, two = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {LIMIT}") == 0
    assert two.do("alloc plain 0 4096") == 2
    one.kill()
    answer, times = two.timed(f"alloc plain 0 {LIMIT}")
    assert answer == 0
    assert times.asleep < AT_ONCE
    assert rig.machine.peak() == LIMIT


def test_thread_that_is_canceled_while_it_waits_leaves_no_lock(rig):
    """A fork after it would hang, and nobody would clear up after dead processes any more."""
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {1500 * MIB}") == 0
    assert client.do("cancel 40") == 0
    other = rig.client().start()
    client.kill()
    assert other.do(f"alloc plain 0 {LIMIT}") == 0


def test_reset_of_a_context_takes_time_in_proportion_to_its_allocations(rig):
    """Ten times as many take ten times as long, not a hundred times."""
    rig.limit()
    client = rig.client(FAKE_CUDA_FAST="1").start()
    took = []
    for count in (10_000, 100_000):
        assert client.do(f"allocs {count} 512") == count
        answer, times = client.timed("reset 0")
        assert (answer, client.do("ctx 0"), rig.region.total()) == (0, 0, 0)
        took.append(times.on_cpu)
    assert took[1] < 40 * took[0]


def test_memory_of_a_zombie_is_free(rig):
    rig.limit()
    one, two = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {LIMIT}") == 0
    os.kill(one.process.pid, 9)
    os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOWAIT)
    assert two.do(f"alloc plain 0 {LIMIT}") == 0


def test_process_that_ends_leaves_a_slot_that_the_next_one_clears(rig):
    rig.limit()
    one = rig.client().start()
    assert one.do(f"alloc plain 0 {LIMIT}") == 0
    one.close()
    assert [slot.status for slot in rig.region.slots()] in ([0], [])
    assert rig.client().start().do(f"alloc plain 0 {LIMIT}") == 0


def test_process_that_ends_with_nothing_leaves_no_slot(rig):
    rig.limit()
    rig.client().start().close()
    assert rig.region.slots() == []


def test_slots_are_used_again_and_never_moved(rig):
    rig.limit()
    clients = [rig.client().start() for _ in range(3)]
    clients[0].close()
    assert [slot.number for slot in rig.region.slots()] == [1, 2]
    rig.client().start()
    assert [slot.number for slot in rig.region.slots()] == [0, 1, 2]


@pytest.mark.sanitized
@pytest.mark.parametrize("verb", ["fork", "clone"])
def test_child_has_a_slot_of_its_own(rig, verb):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {512 * MIB}") == 0
    assert client.do(verb) == 0  # from here on the child answers
    assert client.do("init") == 0
    assert client.do("ctx 0") == 0
    assert client.do(f"alloc plain 1 {1024 * MIB}") == 0
    assert len(rig.region.slots()) == 2
    assert rig.region.total() == 1536 * MIB
    assert client.do(f"alloc plain 2 {1024 * MIB}") == 2
    assert client.do("exit 7") == 0
    assert client.answer() == [1007]
    assert (
        client.do("info")[1] == LIMIT - 512 * MIB or client.do(f"alloc plain 1 {1536 * MIB}") == 0
    )
    assert rig.region.slots()[0].totals[0] >= 512 * MIB


@pytest.mark.sanitized
@pytest.mark.parametrize("verb", ["fork", "clone"])
def test_child_that_uses_no_gpu_ends_without_a_trace(rig, verb):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {512 * MIB}") == 0
    before = rig.region.slots()
    assert client.do(verb) == 0
    assert client.do("exit 0") == 0
    assert client.answer() == [1000]
    assert rig.region.slots() == before


def test_program_that_is_run_by_a_process_changes_nothing(rig):
    """As posix_spawn does it: a child with the parent's own memory, until it becomes another program."""
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {512 * MIB}") == 0
    before = rig.region.slots()
    assert client.do("system") == 0
    assert rig.region.slots() == before
    assert client.do("info")[1] == LIMIT - 512 * MIB


@pytest.mark.sanitized
def test_threads_share_a_slot(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"work threads 4 300 {64 * MIB}") == 0
    assert (client.do("sync"), client.do("defaultpool 0 0"), client.do("trim 0")) == (0, 0, 0)
    assert client.do("info")[1] == LIMIT
    assert len(rig.region.slots()) == 1


@cases(
    "what, rounds, size",
    ("pool that grows and is trimmed", "trims", 20_000, 40 * MIB),
    ("pools, whose handles are used again", "pools", 10_000, 10 * MIB),
    ("heap of a context", "limits", 10_000, 8 * MIB),
)
def test_threads_that_do_the_same_at_once_leave_nothing_counted(rig, what, rounds, size):
    """What one has read and is about to count, another has counted already."""
    rig.limit()
    client = rig.client(FAKE_CUDA_FAST="1").start()
    assert client.do(f"work {what} 16 {rounds} {size}") == 0
    assert client.do(f"setlimit 2 {8 * MIB}") == 0  # the usual heap
    assert client.do("info")[1] == LIMIT
    assert (rig.region.total(), rig.machine.used()) == (0, 0)


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_threads_that_trim_the_memory_of_graphs_leave_nothing_counted(rig):
    """One in seven waits between the driver's answer and counting it, while others ask and count again."""
    rig.limit()
    client = rig.client(
        FAKE_CUDA_FAST="1",
        VGPU_TEST_WAIT_POINT="79",
        VGPU_TEST_WAIT_US="5000",
        VGPU_TEST_WAIT_EVERY="6",
    ).start()
    for _ in range(30):
        assert client.do(f"work graphs 4 3 {10 * MIB}") == 0
        assert client.do("info")[1] == LIMIT
    assert (rig.region.total(), rig.machine.used()) == (0, 0)


@pytest.mark.parametrize(("what", "threads"), [("contexts", 4), ("primaries", 2)])
@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_contexts_count_as_long_as_there_is_one(rig, what, threads):
    """Threads make and destroy contexts, or take and leave the primary one. Each waits between an end in the driver and
    counting it, while the driver gives the handle to another thread."""
    rig.limit({"memory": LIMIT, "context": 100 * MIB})
    client = rig.client(
        FAKE_CUDA_FAST="1",
        FAKE_CUDA_CTX_MIB="100",
        VGPU_TEST_WAIT_POINT="78",
        VGPU_TEST_WAIT_US="1000",
    )
    assert client.do("init") == 0
    assert client.do(f"work {what} {threads} 100 {LIMIT}") == 0
    assert (rig.region.total(), rig.machine.used()) == (0, 0)
    client.start()
    assert client.do("info")[1] == LIMIT - 100 * MIB


def test_children_of_a_process_whose_threads_hold_locks(rig):
    """Each of 50 children allocates while 4 threads of the parent do; none of them waits for a lock that died."""
    if rig.variant == "asan":
        pytest.skip(
            "the sanitizer's own allocator can hang in such a child, without the limiter too"
        )
    rig.limit()
    client = rig.client(FAKE_CUDA_FAST="1").start()
    assert client.do("storm fork 50") == 0


@pytest.mark.sanitized
def test_exec_in_place_starts_from_nothing(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {1024 * MIB}") == 0
    assert client.do("exec") == 0
    client.start()
    assert client.do("info")[1] == LIMIT
    assert len(rig.region.slots()) == 1


@pytest.mark.sanitized
def test_daemon_that_closes_all_descriptors(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("closeall") == 0
    assert client.do(f"alloc plain 0 {LIMIT}") == 0
    assert client.do("alloc plain 1 1") == 2
    other = rig.client().start()
    assert other.do("info")[1] == 0


@pytest.mark.sanitized
def test_number_that_another_process_has_now_is_not_taken_for_the_dead_one(rig):
    rig.limit()
    rig.client().start().close()
    region = rig.region
    base = 1856
    region.write(base, os.getpid())  # lives, but its start time is another
    region.write(base + 1944, os.stat("/proc/self/ns/pid").st_ino << 32 | 12345, "<Q")
    region.write(base + 40, LIMIT, "<Q")
    assert rig.client().start().do(f"alloc plain 0 {LIMIT}") == 0


def test_process_of_another_pid_namespace_counts_as_long_as_it_holds_its_slot(rig):
    """Its number says nothing here."""
    rig.limit()
    rig.client().start().close()
    region = rig.region
    region.write(1856, os.getpid())
    region.write(1856 + 1944, 77 << 32 | 12345, "<Q")
    region.write(1856 + 40, LIMIT, "<Q")
    with rig.path.open("r+b") as file:
        fcntl.fcntl(file.fileno(), 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 1, 1, 0))
        assert rig.client().start().do("alloc plain 0 4096") == 2
    assert rig.client().start().do(f"alloc plain 0 {LIMIT}") == 0


UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


REUSE = """
client=$1
ask() { printf 'init\\nctx 0\\n%s\\nexit 0\\n' "$1" | exec "$client" symbol; }
ask "alloc plain 0 $2" > /dev/null & first=$!
wait
echo $((first - 1)) > /proc/sys/kernel/ns_last_pid
ask info & second=$!
wait
echo "$first $second"
"""


def test_number_of_a_dead_process_is_given_again(rig):
    """By the kernel, in a PID namespace whose last number is set: the new process has nothing of the old one."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("PID namespaces cannot be made here")
    rig.limit()
    words = [*UNSHARE, "--", "sh", "-c", REUSE, "sh", rig.builds.client, str(LIMIT)]
    done = subprocess.run(
        words, env=rig.environment(), capture_output=True, text=True, timeout=30, check=True
    )
    *_, info, _, numbers = done.stdout.splitlines()
    first, second = numbers.split()
    assert (first == second, info) == (True, f"0 {LIMIT} {LIMIT}")


def test_container_that_is_killed_and_started_again_has_its_whole_limit(rig):
    """As a restart after an error: other processes, another PID namespace, the same region."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("PID namespaces cannot be made here")
    rig.limit()
    one = rig.client(within=UNSHARE).start()
    assert one.do(f"alloc plain 0 {LIMIT}") == 0
    two = rig.client(within=UNSHARE).start()
    assert two.do("alloc plain 0 4096") == 2
    one.kill()
    # the process in the namespace ends a little later than the one that is waited for
    eventually(lambda: two.do(f"alloc plain 0 {LIMIT}") == 0, "the memory of the killed container")


def test_full_table_refuses(rig):
    rig.limit()
    make_region(rig.path, [LIMIT], uuids=[uuid_of(0)])
    region = rig.region
    for number in range(1024):
        region.write(1856 + 1960 * number, os.getpid())
    region.write(2_008_896, 1024)
    client = rig.client()
    client.do("init")
    client.do("ctx 0")
    assert client.do("alloc plain 0 4096") == 2


def test_lock_that_is_held_is_not_waited_for(rig):
    """By a process that has been stopped, say."""
    rig.limit()
    one = rig.client().start()
    with rig.path.open("r+b") as file:
        fcntl.fcntl(file.fileno(), 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
        two = rig.client()
        orders = (
            (two, "init"),
            (two, "ctx 0"),
            (two, f"alloc plain 0 {LIMIT}"),
            (one, "alloc plain 0 4096"),
        )
        answers, times = zip(*(client.timed(order) for client, order in orders), strict=True)
    assert answers == (0, 0, 0, 2)
    assert sum(one.asleep for one in times) < 1.5


# -- kill -9 at every point


def gets_the_rest_at_once(rig, client, request):
    """Then the counters say what the machine has."""
    answer, times = client.timed(request)
    assert answer == 0
    assert times.asleep < AT_ONCE
    assert rig.region.total() == LIMIT == rig.machine.used()


@pytest.mark.parametrize("rig", ["points"], indirect=True)
@pytest.mark.parametrize("point", INIT_POINTS + CHARGE_POINTS)
def test_kill_at_a_point(rig, point):
    rig.limit()
    with pytest.raises((EOFError, BrokenPipeError)):
        victim = rig.client(VGPU_TEST_POINT=str(point)).start()
        for _ in range(2):
            victim.do(f"alloc plain 0 {1024 * MIB}")
            victim.do("free plain 0")
        raise AssertionError("the point was not reached")
    client = rig.client()
    assert client.do("init") == 0
    assert client.do("ctx 0") == 0
    gets_the_rest_at_once(rig, client, f"alloc plain 0 {LIMIT}")


@pytest.mark.parametrize("rig", ["points"], indirect=True)
@pytest.mark.parametrize("point", REAP_POINTS)
def test_kill_while_it_clears_up_after_another(rig, point):
    rig.limit()
    first = rig.client().start()
    assert first.do(f"alloc plain 0 {1024 * MIB}") == 0
    victim = rig.client(VGPU_TEST_POINT=str(point), VGPU_TEST_AFTER="1" if point < 22 else "0")
    first.kill()
    with pytest.raises((EOFError, BrokenPipeError)):
        victim.start()
        victim.do(f"alloc plain 0 {LIMIT}")
        raise AssertionError("the point was not reached")
    client = rig.client().start()
    gets_the_rest_at_once(rig, client, f"alloc plain 0 {LIMIT}")


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_kill_while_it_takes_back_what_it_has_counted_too_much(rig):
    """Another process has come between its looking and its counting."""
    rig.limit()
    other = rig.client().start()
    waits = rig.folder / "waits"
    victim = rig.client(
        VGPU_TEST_POINT="42", VGPU_TEST_WAIT_POINT="40", VGPU_TEST_WAIT_FILE=str(waits)
    ).start()
    victim.send(f"alloc plain 0 {1536 * MIB}")
    eventually(waits.exists, "the victim looks, and has not counted")
    assert other.do(f"alloc plain 0 {1024 * MIB}") == 0
    waits.unlink()
    with pytest.raises(EOFError):
        victim.answer()
    gets_the_rest_at_once(rig, other, f"alloc plain 1 {1024 * MIB}")


def test_thousand_random_kills(rig):
    """In batches of ten; after each, one process can have it all."""
    rig.limit()
    seed = random.Random(14)
    judge = rig.client(FAKE_CUDA_FAST="1").start()
    worst = 0.0
    for _ in range(100):
        victims = [
            subprocess.Popen(
                [rig.builds.client, "symbol"],
                env=rig.environment(FAKE_CUDA_FAST="1"),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(10)
        ]
        for victim in victims:
            victim.stdin.write(
                f"init\nctx 0\nchurn 10000000 {256 * MIB} {seed.randrange(1 << 30)}\n"
            )
            victim.stdin.flush()
        time.sleep(seed.uniform(0.0, 0.06))
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.communicate()
        answer, times = judge.timed(f"alloc plain 0 {LIMIT}")
        assert answer == 0
        worst = max(worst, times.asleep)
        assert judge.do("free plain 0") == 0
    assert rig.machine.peak() <= LIMIT
    assert worst < AT_ONCE


# -- many at once


@pytest.mark.parametrize("delay", [0, 100, 500])
def test_limit_holds_at_every_instant(rig, delay):
    """Eight processes allocate at random; the machine has recorded the most that was in use at once."""
    rig.limit()
    rounds = 300 if delay else 2500 if rig.variant in SANITIZERS else 12500
    clients = [
        rig.client(FAKE_CUDA_ALLOC_US=str(delay), FAKE_CUDA_FAST="1").start() for _ in range(8)
    ]
    for number, client in enumerate(clients):
        client.send(f"churn {rounds} {512 * MIB} {number + 1}")
    granted = [client.answer()[0] for client in clients]
    assert LIMIT * 3 // 4 < rig.machine.peak() <= LIMIT
    assert min(granted) > 0
    for client in clients:
        assert (client.do("sync"), client.do("defaultpool 0 0"), client.do("trim 0")) == (0, 0, 0)
    assert clients[0].do("info")[1] == LIMIT


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_limit_holds_though_others_come_between_looking_and_counting(rig):
    """Each waits for a millisecond after it has seen that its request fits, before it says so."""
    rig.limit()
    clients = [
        rig.client(FAKE_CUDA_FAST="1", VGPU_TEST_WAIT_POINT="40", VGPU_TEST_WAIT_US="1000").start()
        for _ in range(8)
    ]
    for number, client in enumerate(clients):
        client.send(f"churn 200 {512 * MIB} {number + 1}")
    assert min(client.answer()[0] for client in clients) > 0
    assert rig.machine.peak() <= LIMIT


def test_requests_that_fit_together_never_fail(rig):
    rig.limit()
    clients = [rig.client(FAKE_CUDA_FAST="1").start() for _ in range(8)]
    for _ in range(50):
        for client in clients:
            client.send(f"alloc plain 0 {LIMIT // 8}")
        assert [client.answer() for client in clients] == [[0]] * 8
        for client in clients:
            client.send("free plain 0")
        assert [client.answer() for client in clients] == [[0]] * 8


def start_at_once(rig, count, **more):
    """What each of so many processes answers, the slots that they have then, and the seconds of CPU of all."""
    clients = [
        subprocess.Popen(
            [rig.builds.client, "symbol"],
            env=rig.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for client in clients:
        client.stdin.write("init\nctx 0\nalloc plain 0 1048576\n")
        client.stdin.flush()
    answers = [tuple(client.stdout.readline() for _ in range(3)) for client in clients]
    slots = rig.region.slots() if rig.path.exists() else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for client in clients:
        client.kill()
    for client in clients:
        client.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return answers, slots, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_three_hundred_processes_start_at_once(rig):
    """The limiter takes the least part of their time on a CPU: see the benchmark."""
    rig.limit()
    *_, bare = start_at_once(rig, 300, preload=False)
    answers, slots, limited = start_at_once(rig, 300)
    assert set(answers) == {("0\n",) * 3}
    assert len({slot.pid for slot in slots}) == 300 == len(slots)
    assert limited < 3 * bare + 1
