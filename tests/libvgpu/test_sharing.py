"""Memory that processes share counts once in a container, for whoever holds it.

Memory of other interfaces counts for who imports it.
"""

import fcntl
import os
import struct
import uuid

import pytest

from testing.limiter import rig as rigs
from testing.limiter.rig import MIB

LIMIT, SIZE, STEP = 2048 * MIB, 512 * MIB, 2 * MIB
WAYS = ("symbol", "dlsym", "procaddr")
INVALID_VALUE, OUT_OF_MEMORY = 1, 2
FIRST_SLOT, SLOT, EXPORTED, IMPORTED = 1856, 1960, 56, 64


class Ipc:
    """Handles of CUDA's inter-process communication, for plain memory."""

    allocated_as = "plain"

    def export(self, client, number=0):
        assert client.do(f"ipc {number}") == 0
        return client.do("ipctell")

    def open(self, client, handle, number=10):
        client.do(f"ipctold {handle}")
        return client.do(f"ipcopen {number}")

    def close(self, client, number=10):
        return client.do(f"ipcclose {number}")


def passed(sender, file, receiver):
    """The number that a file of one process has in another, to which it is passed as programs do it."""
    name = f"hami-{os.getpid()}-{uuid.uuid4().hex}"
    mailbox = receiver.do(f"listen {name}")
    assert sender.do(f"pass {file} {name}") == 0
    return receiver.do(f"receive {mailbox}")


class Pooled:
    """Pointers to memory of a pool, which is given back to the card when it is freed."""

    allocated_as = "pool"

    def export(self, client, number=0):
        result, exported = client.do(f"poolexport {number}")
        shared, file = client.do("poolshare 0")
        assert result == shared == 0
        return exported, client, file

    def open(self, client, handle, number=10):
        exported, exporter, file = handle
        assert client.do(f"poolget 1 {passed(exporter, file, client)}") == 0
        return client.do(f"poolimport {number} {exported} 1")

    def close(self, client, number=10):
        return client.do(f"free async {number}")


class Physical:
    """Shareable handles of physical memory, which are files. What is opened is a handle, and a mapping."""

    allocated_as = "create"

    def export(self, client, number=0):
        result, file = client.do(f"export {number}")
        assert result == 0
        return client, file

    def open(self, client, handle, number=10, size=SIZE):
        return client.do(f"import {number} {size} {passed(*handle, client)}") or client.do(
            f"map {number} {number + 1}"
        )

    def close(self, client, number=10):
        return client.do(f"unmap {number + 1}") or client.do(f"free create {number}")


class Fabric(Physical):
    """Handles of physical memory for other machines, too: bytes, as those of IPC are."""

    def export(self, client, number=0):
        result, *content = client.do(f"fabric {number}")
        assert result == 0
        return content

    def open(self, client, handle, number=10, size=SIZE):
        first, second = handle
        return client.do(f"fabricget {number} {size} {first} {second}") or client.do(
            f"map {number} {number + 1}"
        )


@pytest.fixture(
    params=[Ipc(), Pooled(), Physical(), Fabric()], ids=["ipc", "pooled", "physical", "fabric"]
)
def way(request):
    return request.param


def allocate(client, way, number=0, size=SIZE):
    if way.allocated_as == "pool" and not hasattr(client, "has_pool"):
        assert client.do("newpool 0 0") == 0  # the default pool of a real driver cannot be shared
        client.has_pool = True
    return client.do(f"alloc {way.allocated_as} {number} {size} 0")


def release(client, way, number=0):
    if way.allocated_as != "pool":
        return client.do(f"free {way.allocated_as} {number}")
    return client.do(f"free async {number}") or client.do("trim 0")


def free(client):
    result, free_bytes, _ = client.do("info")
    assert result == 0
    return free_bytes


def check_rest(client, rest):
    """Exactly that much is left for the container. The first request clears up after processes that were killed."""
    assert client.do(f"alloc plain 5 {rest + 1}") == OUT_OF_MEMORY
    assert client.do(f"alloc plain 5 {rest}") == 0
    assert client.do("free plain 5") == 0
    assert free(client) == rest


def shared(rig, word):
    """Sum of a word of all slots for the first card."""
    return sum(
        rig.region.number(FIRST_SLOT + SLOT * slot.number + word, "<Q")
        for slot in rig.region.slots()
    )


@pytest.fixture
def pair(rig, way):
    """An exporter with memory, an importer that has opened it."""
    rig.limit()
    exporter, importer = rig.client().start(), rig.client().start()
    assert allocate(exporter, way) == 0
    assert way.open(importer, way.export(exporter)) == 0
    return exporter, importer


@pytest.mark.sanitized
@pytest.mark.parametrize("how", WAYS)
def test_shared_memory_counts_once(rig, way, how):
    rig.limit()
    exporter, importer = rig.client(how).start(), rig.client(how).start()
    assert allocate(exporter, way) == 0
    assert way.open(importer, way.export(exporter)) == 0
    for client in (exporter, importer):
        check_rest(client, LIMIT - SIZE)
    assert way.close(importer) == 0
    check_rest(importer, LIMIT - SIZE)
    assert release(exporter, way) == 0
    check_rest(importer, LIMIT)
    assert rig.machine.peak() == LIMIT


@pytest.mark.sanitized
def test_importers_hold_what_the_exporter_has_freed(rig, way, pair):
    exporter, importer = pair
    second = rig.client().start()
    assert way.open(second, way.export(exporter)) == 0
    assert release(exporter, way) == 0
    assert rig.machine.allocated() == SIZE
    for client in (exporter, importer, second):
        check_rest(client, LIMIT - SIZE)
    assert way.close(importer) == 0
    check_rest(importer, LIMIT - SIZE)
    assert way.close(second) == 0
    check_rest(importer, LIMIT)
    assert rig.machine.allocated() == 0


@pytest.mark.sanitized
def test_importer_holds_what_a_killed_exporter_had(rig, way, pair):
    exporter, importer = pair
    exporter.kill()
    check_rest(importer, LIMIT - SIZE)
    assert way.close(importer) == 0
    check_rest(importer, LIMIT)


def test_killed_importer_leaves_nothing(rig, way, pair):
    exporter, importer = pair
    importer.kill()
    check_rest(exporter, LIMIT - SIZE)
    assert release(exporter, way) == 0
    check_rest(exporter, LIMIT)
    assert (shared(rig, EXPORTED), shared(rig, IMPORTED)) == (0, 0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_killed_exporter_and_importer_leave_nothing(rig, way, pair, order):
    for number in order:
        pair[number].kill()
    check_rest(rig.client().start(), LIMIT)
    assert rig.machine.peak() == LIMIT


@pytest.mark.parametrize("rig", ["points"], indirect=True)
@pytest.mark.parametrize("point", [40, 41, 43, 44, 70, 71, 72, 73, 74, 75])
def test_kill_at_a_point_while_memory_is_shared(rig, way, point):
    """At every time that it is passed: while memory is exported, opened, freed and closed by the victim."""
    rig.limit()
    for passed in range(5):
        victim = rig.client(VGPU_TEST_POINT=str(point), VGPU_TEST_AFTER=str(passed)).start()
        try:
            assert allocate(victim, way) == way.open(victim, way.export(victim)) == 0
            assert release(victim, way) == way.close(victim) == 0
        except (EOFError, BrokenPipeError):
            pass
        else:
            assert passed >= 1
            break
        victim.kill()
        client = rig.client().start()
        check_rest(client, LIMIT)
        client.close()
        assert (shared(rig, EXPORTED), shared(rig, IMPORTED), rig.region.records()) == (0, 0, [])


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_exporter_that_is_killed_between_its_record_and_the_notice_of_it(rig, way):
    """Others read the records again only after the notice, which then comes from whoever clears up."""
    rig.limit()
    exporter, importer = rig.client(VGPU_TEST_POINT="74").start(), rig.client().start()
    assert allocate(exporter, way) == 0
    assert way.open(importer, way.export(exporter)) == 0
    check_rest(importer, LIMIT - SIZE)
    with pytest.raises((EOFError, BrokenPipeError)):
        release(exporter, way)
    exporter.kill()
    check_rest(importer, LIMIT - SIZE)


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_importer_that_is_killed_between_its_record_and_the_notice_of_it(rig, way):
    rig.limit()
    exporter, importer = rig.client().start(), rig.client(VGPU_TEST_POINT="74").start()
    assert allocate(exporter, way) == 0
    assert way.open(importer, way.export(exporter)) == 0
    assert release(exporter, way) == 0
    check_rest(exporter, LIMIT - SIZE)
    with pytest.raises((EOFError, BrokenPipeError)):
        way.close(importer)
    importer.kill()
    check_rest(exporter, LIMIT)


def test_no_pointer_into_a_pool_is_the_drivers_own_error(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("newpool 0 0") == 0
    shared, file = client.do("poolshare 0")
    assert shared == client.do(f"poolget 1 {file}") == 0
    assert client.do("poolimport 10 0 1") == INVALID_VALUE
    check_rest(client, LIMIT)


def test_process_may_open_what_it_has_exported_itself(rig, way):
    rig.limit()
    client = rig.client().start()
    assert allocate(client, way) == 0
    assert way.open(client, way.export(client)) == 0
    check_rest(client, LIMIT - SIZE)
    assert release(client, way) == 0
    check_rest(client, LIMIT - SIZE)
    assert way.close(client) == 0
    check_rest(client, LIMIT)


def test_memory_of_another_container_counts_in_this_one_too(rig, way, builds):
    """Its exporter may end first. What does not fit is not opened."""
    rig.limit({"memory": LIMIT})
    with rigs.rig(builds) as other:
        other.limit({"memory": SIZE})
        exporter, importer = (
            rig.client().start(),
            other.client(FAKE_CUDA_STATE=str(rig.state)).start(),
        )
        assert allocate(exporter, way) == 0
        handle = way.export(exporter)
        assert importer.do("alloc plain 0 1") == 0
        assert way.open(importer, handle) == OUT_OF_MEMORY
        assert free(importer) == SIZE - 512
        assert importer.do("free plain 0") == 0
        assert way.open(importer, handle, 20) == 0
        assert importer.do("alloc plain 0 1") == OUT_OF_MEMORY
        assert way.close(importer, 20) == 0
        check_rest(importer, SIZE)
        assert free(exporter) == LIMIT - SIZE


@pytest.mark.sanitized
def test_importers_of_different_blocks_count_all_of_them(rig, way, builds):
    """Of another container. Each block counts once, however many hold it."""
    rig.limit({"memory": LIMIT})
    with rigs.rig(builds) as other:
        other.limit({"memory": 2 * SIZE})
        exporter = rig.client().start()
        importers = [other.client(FAKE_CUDA_STATE=str(rig.state)).start() for _ in range(3)]
        handles = []
        for number in (0, 1):
            assert allocate(exporter, way, number) == 0
            handles.append(way.export(exporter, number))
        assert way.open(importers[0], handles[0]) == way.open(importers[1], handles[1]) == 0
        assert free(importers[2]) == 0
        assert importers[2].do("alloc plain 0 1") == OUT_OF_MEMORY
        assert way.open(importers[2], handles[0]) == way.open(importers[0], handles[1], 20) == 0
        importers[1].kill()
        assert importers[2].do("alloc plain 0 1") == OUT_OF_MEMORY
        assert way.close(importers[0], 20) == 0
        check_rest(importers[2], SIZE)
        assert way.close(importers[0]) == 0
        check_rest(importers[2], SIZE)
        assert way.close(importers[2]) == 0
        check_rest(importers[0], 2 * SIZE)


def test_an_export_that_nobody_has_imported_covers_nothing(rig, way, builds):
    with rigs.rig(builds) as other:
        for one in (rig, other):
            one.limit({"memory": LIMIT})
        foreign = rig.client().start()
        exporter, importer = (
            other.client(FAKE_CUDA_STATE=str(rig.state)).start() for _ in range(2)
        )
        for client in (foreign, exporter):
            assert allocate(client, way) == 0
        way.export(exporter)
        assert way.open(importer, way.export(foreign)) == 0
        check_rest(importer, LIMIT - 2 * SIZE)


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_two_threads_that_open_memory_count_it_once(rig):
    rig.limit()
    exporter = rig.client().start()
    importer = rig.client(VGPU_TEST_WAIT_POINT="77", VGPU_TEST_WAIT_US="100000").start()
    assert exporter.do(f"alloc plain 0 {SIZE}") == 0
    assert importer.do(f"ipctold {Ipc().export(exporter)}") == importer.do("ipcboth 10") == 0
    assert exporter.do("free plain 0") == 0
    check_rest(exporter, LIMIT - SIZE)
    assert importer.do("ipcclose 10") == 0
    check_rest(exporter, LIMIT - SIZE)
    assert importer.do("ipcclose 11") == 0
    check_rest(exporter, LIMIT)
    assert rig.region.records() == []


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_two_threads_that_map_an_imported_block_count_it_once(rig):
    """How large it is shows the larger mapping, which comes while the smaller one is being counted."""
    rig.limit()
    exporter = rig.client().start()
    importer = rig.client(VGPU_TEST_WAIT_POINT="76", VGPU_TEST_WAIT_US="100000").start()
    assert exporter.do(f"alloc create 0 {SIZE} 0") == 0
    assert importer.do(f"import 0 {SIZE} {passed(*Physical().export(exporter), importer)}") == 0
    assert importer.do("mapboth 0 1") == 0
    assert exporter.do("free create 0") == 0
    check_rest(exporter, LIMIT - SIZE)
    assert importer.do("unmap 1") == importer.do("unmap 2") == importer.do("free create 0") == 0
    check_rest(exporter, LIMIT)
    assert rig.region.records() == []


@pytest.mark.parametrize("function", ["cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuMemMap"])
def test_threads_are_in_the_driver_at_once(rig, function):
    """One may wait there for what the other does: the driver's call returns only once both have come."""
    rig.limit()
    exporter = rig.client().start()
    importer = rig.client(FAKE_CUDA_MEET=function).start()
    if function == "cuMemMap":
        assert exporter.do(f"alloc create 0 {SIZE} 0") == 0
        assert importer.do(f"import 0 {SIZE} {passed(*Physical().export(exporter), importer)}") == 0
        assert importer.do("mapboth 0 1") == 0
        assert importer.do("unmap 1") == importer.do("unmap 2") == importer.do("free create 0") == 0
        assert exporter.do("free create 0") == 0
    else:
        assert exporter.do(f"alloc plain 0 {SIZE}") == 0
        assert importer.do(f"ipctold {Ipc().export(exporter)}") == importer.do("ipcboth 10") == 0
        assert importer.do("ipccloseboth 10") == 0
        assert exporter.do("free plain 0") == 0
    check_rest(exporter, LIMIT)
    assert rig.region.records() == []


@pytest.mark.sanitized
def test_without_a_free_record_the_largest_importer_counts(rig, way):
    """What several have imported is then told by sums, as where a handle has no name that others recognize."""
    rig.limit()
    exporter, *importers = (rig.client().start() for _ in range(3))
    assert allocate(exporter, way) == 0
    rig.region.fill_records(rig.region.slots()[0].number)
    handle = way.export(exporter)
    assert way.open(importers[0], handle) == way.open(importers[1], handle) == 0
    check_rest(importers[0], LIMIT - SIZE)
    exporter.kill()
    check_rest(importers[0], LIMIT - SIZE)
    assert way.close(importers[0]) == 0
    check_rest(importers[0], LIMIT - SIZE)
    assert way.close(importers[1]) == 0
    check_rest(importers[0], LIMIT)


def test_opened_memory_goes_with_its_context(rig):
    rig.limit()
    way, exporter, importer = Ipc(), rig.client().start(), rig.client().start()
    assert allocate(exporter, way) == 0
    assert way.open(importer, way.export(exporter)) == 0
    exporter.kill()
    assert free(importer) == LIMIT - SIZE
    assert importer.do("reset 0") == 0
    assert importer.do("ctx 0") == 0
    check_rest(importer, LIMIT)


def test_exported_memory_goes_with_its_context(rig, pair, way):
    exporter, importer = pair
    if way.allocated_as != "plain":
        assert release(exporter, way) == 0  # belongs to no context
    assert exporter.do("reset 0") == 0
    assert shared(rig, EXPORTED) == 0
    check_rest(importer, LIMIT - SIZE)


def test_memory_that_was_opened_twice_is_held_until_it_is_closed_twice(rig):
    rig.limit()
    way, exporter, importer = Ipc(), rig.client().start(), rig.client().start()
    assert allocate(exporter, way) == 0
    handle = way.export(exporter)
    assert way.open(importer, handle, 10) == way.open(importer, handle, 11) == 0
    exporter.kill()
    assert importer.do("free plain 10") == 1  # opened memory cannot be freed
    for rest in (LIMIT - SIZE, LIMIT):
        assert way.close(importer) == 0
        check_rest(importer, rest)
    assert way.close(importer) == 1


def test_child_of_an_importer_counts_nothing_itself(rig, way, pair):
    """It ends while its parent goes on; the parent's import remains."""
    exporter, importer = pair
    exporter.kill()
    assert importer.do("storm fork 3") == 0
    check_rest(importer, LIMIT - SIZE)


# -- memory of other interfaces


@pytest.mark.parametrize("how", WAYS)
def test_external_memory_counts_for_who_imports_it(rig, how):
    rig.limit()
    client, other = rig.client(how).start(), rig.client(how).start()
    assert client.do(f"alloc external 0 {SIZE}") == 0
    check_rest(other, LIMIT - SIZE)
    assert client.do(f"alloc external 1 {LIMIT - SIZE + 1}") == OUT_OF_MEMORY
    assert client.do(f"alloc external 1 {LIMIT - SIZE}") == 0
    assert client.do("free external 0") == client.do("free external 1") == 0
    check_rest(other, LIMIT)
    assert client.do(f"alloc external 0 {SIZE}") == 0
    client.kill()
    check_rest(other, LIMIT)


def test_external_memory_counts_once_for_all_that_have_the_file(rig):
    rig.limit()
    client, other = rig.client().start(), rig.client().start()
    file = client.do("memfd")
    assert client.do(f"alloc external 0 {SIZE} {file}") == 0
    assert other.do(f"alloc external 0 {SIZE} {passed(client, file, other)}") == 0
    check_rest(other, LIMIT - SIZE)
    client.kill()
    check_rest(other, LIMIT - SIZE)
    assert other.do("free external 0") == 0
    check_rest(other, LIMIT)


def test_external_memory_whose_file_somebody_has_locked_counts_for_each_importer(rig):
    """It gets no name, and nobody waits for the lock."""
    rig.limit()
    client, other = rig.client().start(), rig.client().start()
    file = client.do("memfd")
    with open(f"/proc/{client.process.pid}/fd/{file}", "r+b", buffering=0) as again:
        fcntl.fcntl(
            again, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        )
        assert client.do(f"alloc external 0 {SIZE} {file}") == 0
        assert other.do(f"alloc external 0 {SIZE} {passed(client, file, other)}") == 0
        check_rest(other, LIMIT - 2 * SIZE)
        client.kill()
        check_rest(other, LIMIT - SIZE)


def test_external_memory_that_the_driver_refuses_is_not_charged(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("alloc external 0 0") == 1
    check_rest(client, LIMIT)


# -- multicast objects


@pytest.fixture
def bound(rig, request):
    """A process with an object (0) and memory (1) that is bound to it and whose handle and mapping are gone."""
    rig.limit()
    client = rig.client(getattr(request, "param", "symbol")).start()
    assert client.do(f"alloc multicast 0 {2 * SIZE}") == 0
    assert client.do(f"alloc create 1 {SIZE} 0") == 0
    assert client.do("map 1 2") == 0
    return client


@pytest.mark.parametrize("bound", WAYS, indirect=True)
@pytest.mark.parametrize("command", ["bind 0 0 1", "bindaddr 0 0 2"])
def test_bound_memory_is_held_until_it_is_unbound(rig, bound, command):
    assert bound.do(command) == 0
    assert bound.do("unmap 2") == bound.do("free create 1") == 0
    check_rest(bound, LIMIT - SIZE)
    assert bound.do(f"unbind 0 {SIZE} {SIZE}") == 0  # another range
    check_rest(bound, LIMIT - SIZE)
    assert bound.do(f"unbind 0 0 {SIZE}") == 0
    check_rest(bound, LIMIT)
    assert bound.do("free create 0") == 0
    assert rig.machine.used() == 0


@pytest.mark.sanitized
def test_bound_memory_goes_with_the_object(rig, bound):
    assert bound.do("bind 0 0 1") == bound.do(f"bind 0 {SIZE} 1") == 0
    assert bound.do("map 0 3") == 0
    assert bound.do("unmap 2") == bound.do("free create 1") == bound.do("free create 0") == 0
    check_rest(bound, LIMIT - SIZE)
    assert bound.do("unmap 3") == 0
    check_rest(bound, LIMIT)
    assert rig.machine.used() == 0


def test_object_of_another_process_takes_nothing(rig, bound):
    """Nor does what it is mapped to."""
    other = rig.client().start()
    handle = Physical().export(bound)
    assert other.do(f"import 0 {2 * SIZE} {passed(*handle, other)}") == other.do("map 0 3") == 0
    assert (
        other.do(f"alloc create 1 {SIZE} 0")
        == other.do("bind 0 0 1")
        == other.do("free create 1")
        == 0
    )
    check_rest(other, LIMIT - 2 * SIZE)
    other.kill()
    check_rest(bound, LIMIT - SIZE)
