"""NVML's lists of the processes on a card: a container sees its own, with the numbers that they have in it."""

import json
import os

import pytest

from testing.cases import cases
from testing.limiter import rig as rigs
from testing.limiter.rig import MIB

LISTS = [
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
]
NOT_FOUND, INSUFFICIENT_SIZE, HOST = 6, 7, 1 << 20
ASK = """
import ctypes, json, os, struct, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
names, room = json.loads(sys.argv[1]), int(sys.argv[2])
answers = []
for name in names:
    size = 24 if name[-3:] in ("_v2", "_v3") else 16
    needed, count = ctypes.c_uint(0), ctypes.c_uint(room)
    first = getattr(nvml, name)(device, ctypes.byref(needed), None)
    entries = ctypes.create_string_buffer(max(room, 1) * size)
    code = getattr(nvml, name)(device, ctypes.byref(count), entries)
    found = sorted(struct.unpack_from("<IxxxxQ", entries, size * i) for i in range(count.value if code == 0 else 0))
    answers.append([first, needed.value, code, count.value, found])
print(json.dumps([os.getpid(), answers]))
"""


def ask(rig, names, room=16, **more):
    """The number of who asks, and what each function says: how many there are, then which, with their bytes."""
    code = f"import sys; sys.argv = ['', {json.dumps(names)!r}, {room}]\n{ASK}"
    return json.loads(rig.python(code, **more))


@pytest.fixture
def other(builds):
    """Another container."""
    with rigs.rig(builds) as made:
        made.limit({"memory": 1024 * MIB})
        yield made


@pytest.fixture
def clients(rig, other):
    """One of the other container and two of this one, with 300, 100 and 200 MiB of the same card."""
    rig.limit()
    started = [
        other.client(FAKE_CUDA_STATE=str(rig.state)).start(),
        rig.client().start(),
        rig.client().start(),
    ]
    for client, size in zip(started, (300, 100, 200), strict=True):
        assert client.do(f"alloc plain 0 {size * MIB}") == 0
    return started


def expected(*clients):
    """Numbers and bytes of the clients of this container."""
    return sorted(
        [client.process.pid, size * MIB] for client, size in zip(clients, (100, 200), strict=False)
    )


def test_only_processes_of_the_container_are_listed(rig, clients):
    own = expected(*clients[1:])
    _, answers = ask(rig, LISTS)
    assert answers == [[INSUFFICIENT_SIZE, 2, 0, 2, own]] * len(LISTS)


DETAILS = """
import ctypes, json, os
class Detail(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint),
                ("compute", ctypes.c_uint), ("protected", ctypes.c_ulonglong)]
class List(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("mode", ctypes.c_uint), ("count", ctypes.c_uint),
                ("entries", ctypes.POINTER(Detail))]
nvml, device, entries = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (Detail * 8)()
ctypes.CDLL("libcuda.so.1").cuInit(0)
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
found = List(1, 0, 8, entries)
assert nvml.nvmlDeviceGetRunningProcessDetailList(device, ctypes.byref(found)) == 0
print(json.dumps(sorted([one.pid, one.used] for one in entries[:found.count])))
"""


def test_list_with_details_has_only_processes_of_the_container(rig, clients):
    assert json.loads(rig.python(DETAILS)) == expected(*clients[1:])


# What else names processes: the shape of its parameters, the bytes of an entry, where the process number is in it, and
# the error of who has no room for an entry.
OTHER_LISTS = {
    "nvmlDeviceGetAccountingPids": ("plain", 4, 0, INSUFFICIENT_SIZE),
    "nvmlDeviceGetEncoderSessions": ("plain", 32, 4, 0),
    "nvmlDeviceGetFBCSessions": ("plain", 48, 4, 0),
    "nvmlDeviceGetProcessUtilization": ("samples", 32, 0, INSUFFICIENT_SIZE),
    "nvmlDeviceGetProcessesUtilizationInfo": ("frame", 40, 8, INSUFFICIENT_SIZE),
}
ASK_OTHERS = """
import ctypes, json, struct, sys
nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
name, how, size, number, room, since = json.loads(sys.argv[1])
def ask(room):
    count, entries = ctypes.c_uint(room), ctypes.create_string_buffer(max(room, 1) * size)
    if how == "plain":
        code = getattr(nvml, name)(device, ctypes.byref(count), entries if room else None)
    elif how == "samples":
        code = getattr(nvml, name)(device, entries if room else None, ctypes.byref(count), ctypes.c_ulonglong(since))
    else:
        place = ctypes.addressof(entries) if room else 0
        frame = ctypes.create_string_buffer(struct.pack("<IIQQ", 1, room, since, place))
        code = getattr(nvml, name)(device, frame)
        count.value = struct.unpack_from("<I", frame, 4)[0]
    read = range(min(count.value, room) if code == 0 else 0)
    return [code, count.value, sorted(struct.unpack_from("<I", entries, size * i + number)[0] for i in read)]
print(json.dumps([ask(0), ask(1), ask(16)]))
"""


def ask_others(rig, name, since=0, **more):
    """The error, the number of entries and the processes: without room, with room for one, and with room for all."""
    how, size, number, _ = OTHER_LISTS[name]
    words = json.dumps([name, how, size, number, 16, since])
    return json.loads(rig.python(f"import sys; sys.argv = ['', {words!r}]\n{ASK_OTHERS}", **more))


@pytest.mark.sanitized
@pytest.mark.parametrize("name", OTHER_LISTS)
def test_what_processes_do_is_told_of_those_of_the_container(rig, clients, name):
    own = sorted(client.process.pid for client in clients[1:])
    without_room = OTHER_LISTS[name][3]
    assert ask_others(rig, name) == [[without_room, 2, []], [INSUFFICIENT_SIZE, 2, []], [0, 2, own]]


@pytest.mark.parametrize("name", OTHER_LISTS)
def test_what_processes_do_is_told_by_the_numbers_of_the_container(rig, clients, name):
    for slot in rig.region.slots():
        rig.region.write(1856 + 1960 * slot.number + 4, slot.pid + HOST)
    own = sorted(client.process.pid for client in clients[1:])
    assert ask_others(rig, name, FAKE_NVML_HOST_PIDS=str(HOST))[-1] == [0, 2, own]


@pytest.mark.parametrize("name", OTHER_LISTS)
def test_without_limits_what_all_processes_do_is_told(rig, clients, name):
    (rig.folder / "limits").unlink()
    assert ask_others(rig, name)[-1] == [0, 3, sorted(client.process.pid for client in clients)]


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"]
)
def test_samples_that_were_seen_are_not_told_again(rig, clients, name):
    assert ask_others(rig, name, since=1)[-1][0] == NOT_FOUND


def test_utilization_of_others_alone_is_not_found(rig, clients):
    """As where no process has used the card."""
    for client in clients[1:]:
        client.kill()
    assert ask_others(rig, "nvmlDeviceGetProcessUtilization")[-1][0] == NOT_FOUND


OF_ONE = """
import ctypes, json, struct, sys
nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
answers = []
for pid in json.loads(sys.argv[1]):
    stats, second = ctypes.create_string_buffer(128), ctypes.create_string_buffer(struct.pack("<I", pid), 128)
    name = ctypes.create_string_buffer(64)
    first = nvml.nvmlDeviceGetAccountingStats(device, pid, stats), struct.unpack_from("<Q", stats, 8)[0]
    codes = nvml.nvmlDeviceGetAccountingStats_v2(device, second), nvml.nvmlSystemGetProcessName(pid, name, 64)
    answers.append([*first, codes[0], *struct.unpack_from("<IxxxxxxxxxxxxQ", second), codes[1], name.value.decode()])
print(json.dumps(answers))
"""


@cases("numbers", ("numbers of the container", 0), ("numbers of the host", HOST))
def test_account_and_name_of_a_process_are_those_of_the_container(rig, clients, numbers):
    for slot in rig.region.slots():
        rig.region.write(1856 + 1960 * slot.number + 4, slot.pid + numbers)
    pids = [client.process.pid for client in clients]
    code = f"import sys; sys.argv = ['', {json.dumps(pids)!r}]\n{OF_ONE}"
    stranger, *own = json.loads(rig.python(code, FAKE_NVML_HOST_PIDS=str(numbers)))
    assert stranger == [NOT_FOUND, 0, NOT_FOUND, pids[0], 0, NOT_FOUND, ""]
    assert own == [
        [0, size * MIB, 0, pid, size * MIB, 0, f"process {pid}"]
        for pid, size in zip(pids[1:], (100, 200), strict=True)
    ]


def test_other_container_sees_its_own(rig, other, clients):
    _, (answer,) = ask(other, LISTS[:1], FAKE_CUDA_STATE=str(rig.state))
    assert answer == [INSUFFICIENT_SIZE, 1, 0, 1, [[clients[0].process.pid, 300 * MIB]]]


def test_number_of_entries_that_the_program_has_room_for_counts(rig, clients):
    _, (answer,) = ask(rig, ["nvmlDeviceGetComputeRunningProcesses_v3"], room=1)
    assert answer == [INSUFFICIENT_SIZE, 2, INSUFFICIENT_SIZE, 2, []]


@pytest.mark.sanitized
def test_numbers_on_the_host_are_known_by_the_monitor(rig, clients):
    """Before it has written them, a process of the container cannot be told from others."""
    _, (answer,) = ask(rig, LISTS[-1:], FAKE_NVML_HOST_PIDS=str(HOST))
    assert answer == [0, 0, 0, 0, []]
    for slot in rig.region.slots():
        rig.region.write(1856 + 1960 * slot.number + 4, slot.pid + HOST)
    _, answers = ask(rig, LISTS, FAKE_NVML_HOST_PIDS=str(HOST))
    assert answers == [[INSUFFICIENT_SIZE, 2, 0, 2, expected(*clients[1:])]] * len(LISTS)


def test_process_that_was_killed_is_listed_no_more(rig, clients):
    clients[1].kill()
    _, (answer,) = ask(rig, LISTS[:1])
    assert answer[-1] == [[clients[2].process.pid, 200 * MIB]]


def test_limits_that_cannot_be_read_show_nobody(rig, clients):
    (rig.folder / "limits").write_text("nonsense\n")
    _, (answer,) = ask(rig, LISTS[:1])
    assert answer == [0, 0, 0, 0, []]


def test_without_limits_all_processes_are_listed(rig, clients):
    (rig.folder / "limits").unlink()
    _, (answer,) = ask(rig, LISTS[:1])
    assert [pid for pid, _ in answer[-1]] == sorted(client.process.pid for client in clients)
    assert os.getpid() not in [pid for pid, _ in answer[-1]]


def test_real_client_of_nvml(rig, clients, wheel):
    code = """import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print(sorted([one.pid, one.usedGpuMemory] for one in pynvml.nvmlDeviceGetComputeRunningProcesses(device)))"""
    assert json.loads(rig.python(code, wheel("nvml-py"))) == expected(*clients[1:])
