"""AWS Neuron's rows of the table."""

from pytest import param

from hami.codec.device_config import chart_config
from hami.model import Device, DeviceUsage, Partition, Request
from hami.vendors.catalog import vendors
from testing.builders import INIT
from testing.vendor_rows import Asked, Denied, Fits

NEURON = vendors(chart_config())["AWSNeuron"]
COUNT, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
ALL = Partition(0, 31)
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}


def asked(count=1, cores=0):
    return Request(vendor="AWSNeuron", count=count, cores=cores)


def device(index=0, *partitions, each=2, kind="inf2.xlarge", used=None, healthy=True, mask=0):
    """A device of node n; *partitions*: cores in use, each by one container."""
    found = Device(
        uuid=f"n-AWSNeuron-{index}",
        vendor="AWSNeuron",
        model="AWSNeuron",
        slots=each,
        memory_mib=0,
        cores=(1 << each) - 1,
        index=index,
        healthy=healthy,
        info={"instance_type": kind},
    )
    return DeviceUsage(found, len(partitions) if used is None else used, 0, mask, partitions)


def devices(count, *taken, kind="trn1.32xlarge", **fields):
    """Devices of one node; those in *taken* are in use."""
    return [device(i, *([ALL] if i in taken else []), kind=kind, **fields) for i in range(count)]


def shares(*pairs):
    return "".join(f"n-AWSNeuron-{index},AWSNeuron,0,{mask}:" for index, mask in pairs) + ";"


def ids(*numbers, cores=False, **more):
    """The annotations for the node agent."""
    found = {
        "AWS_NEURON_IDS": ",".join(map(str, numbers)),
        "NEURON_ALLOC_TIME": "1787313600000000000",
        "NEURON_ALLOCATED": "false",
        "aws.amazon.com/predicate-node": "n",
    }
    return found | ({"NEURON_RESOURCE_TYPE": CORES} if cores else {}) | more


def fits(usages, limits, outcome, id, written=None, annotations=None, **fields):
    return param(
        Fits(
            vendor=NEURON,
            usages=usages,
            limits=limits,
            outcome=outcome,
            written=written or {},
            annotations=annotations or {},
            **fields,
        ),
        id=id,
    )


def parses(limits, request, id, requests=None):
    return param(
        Asked(vendor=NEURON, limits=limits, requests=requests or {}, request=request), id=id
    )


def denied(limits, why, id, requests=None):
    return param(Denied(vendor=NEURON, limits=limits, requests=requests or {}, why=why), id=id)


ASKS = [
    parses({CORES: "1"}, asked(cores=1), id="Neuron one core"),
    parses({COUNT: "4"}, asked(4), id="Neuron four devices in a row"),
    parses({CORES: "2"}, asked(cores=2), id="Neuron two cores, of which one is taken"),
    parses({CORES: "4"}, asked(cores=4), id="Neuron cores of more than a device"),
    parses({COUNT: "2", CORES: "3"}, asked(2), id="Neuron beside a count cores do not matter"),
    parses({}, asked(2), requests={COUNT: "2"}, id="Neuron a count among requests alone"),
    parses(
        {CORES: "2"},
        asked(3),
        requests={COUNT: "3"},
        id="Neuron a count among requests goes before cores",
    ),
    parses({COUNT: "2k"}, asked(2000), id="Neuron 2k"),
    parses({CORES: "4294967294"}, asked(cores=4294967294), id="Neuron the most cores"),
    parses({"cpu": "1"}, None, id="Neuron nothing"),
]

DENIED = [
    denied({CORES: "3"}, f"{CORES} must be 1 or a multiple of 2, got 3", id="Neuron three cores"),
    denied({COUNT: "0", CORES: "2"}, f"{COUNT} must be greater than 0", id="Neuron no device"),
    denied({COUNT: "-1"}, f"{COUNT} must be greater than 0", id="Neuron -1 devices"),
    denied({COUNT: "1.5"}, f"{COUNT} must be an integer", id="Neuron 1.5 devices"),
    denied({CORES: "500m"}, f"{CORES} must be an integer", id="Neuron half a core"),
    denied({COUNT: "all"}, f"{COUNT} must be an integer", id="Neuron all devices"),
    denied(
        {COUNT: "2147483648"}, f"{COUNT} must not exceed 2147483647", id="Neuron too many devices"
    ),
    denied(
        {CORES: "4294967296"}, f"{CORES} must not exceed 4294967294", id="Neuron too many cores"
    ),
    denied(
        {},
        f"{CORES} must be 1 or a multiple of 2, got 5",
        requests={CORES: "5"},
        id="Neuron 5 cores in requests",
    ),
]

FOUR_CORES = dict(each=4, kind="inf1.6xlarge")
FITS = [
    fits([device()], {CORES: 1}, shares((0, 1)), written=ids(0, cores=True), id="Neuron one core"),
    fits(
        [device(0, Partition(0))],
        {CORES: 1},
        shares((0, 2)),
        written=ids(1, cores=True),
        id="Neuron the second core",
    ),
    fits(
        devices(16, 0),
        {COUNT: 4},
        shares((4, 3), (5, 3), (6, 3), (7, 3)),
        written=ids(4, 5, 6, 7),
        id="Neuron four devices in a row",
    ),
    fits(
        devices(2),
        {COUNT: 2},
        "1/2 NumaNotFit",
        id="Neuron two devices of a node without such runs",
    ),
    fits(
        devices(16, 7),
        {COUNT: 8},
        shares(*((i, 3) for i in range(8, 16))),
        written=ids(*range(8, 16)),
        id="the second half is free",
    ),
    fits(
        devices(16, 7, 13),
        {COUNT: 8},
        "1/16 NumaNotFit, 2/16 CardInsufficientCore",
        id="no half is free",
    ),
    fits(
        devices(16, 5, 14, kind="inf2.48xlarge"),
        {COUNT: 8},
        shares(*((i, 3) for i in range(6, 14))),
        written=ids(*range(6, 14)),
        id="Neuron a run across the halves",
    ),
    fits(
        [device(0, Partition(0))],
        {CORES: 2},
        "1/1 CardInsufficientCore",
        id="Neuron two cores, of which one is taken",
    ),
    fits(
        [device(0), device(1)],
        {COUNT: 1},
        shares((1, 3)),
        written=ids(1),
        id="Neuron one device is any device",
    ),
    fits(
        [device(0, Partition(1))],
        {COUNT: 1},
        "1/1 CardInsufficientCore",
        id="Neuron a device whose core is taken",
    ),
    fits(
        [device(0, ALL)], {CORES: 1}, "1/1 CardInsufficientCore", id="Neuron a device that is taken"
    ),
    fits([device(0, ALL, used=2)], {CORES: 1}, "1/1 CardTimeSlicingExhausted", id="Neuron no slot"),
    fits([device(0, healthy=False)], {COUNT: 1}, "1/1 CardNotHealth", id="Neuron a broken device"),
    fits(
        devices(2, kind="inf2.24xlarge"),
        {CORES: 4},
        shares((0, 3), (1, 3)),
        written=ids(0, 1, 2, 3, cores=True),
        id="Neuron cores of two devices",
    ),
    fits(devices(2), {CORES: 4}, "1/2 NumaNotFit", id="Neuron cores of two devices of Trainium"),
    fits(
        [device(0)], {COUNT: 2}, "NodeInsufficientDevice", id="Neuron more devices than there are"
    ),
    fits([device(0)], {CORES: 4}, "1/1 NumaNotFit", id="Neuron more cores than there are"),
    fits(
        [device(0)],
        {CORES: 4294967294},
        "1/1 NumaNotFit",
        id="Neuron far more cores than there are",
    ),
    fits(
        [device()],
        [{CORES: 1}, {CORES: 1}],
        shares((0, 1)) + shares((0, 2)),
        written=ids(0, 1, cores=True),
        id="Neuron two containers have a core each",
    ),
    fits(
        [device()],
        [{CORES: 1}, {CORES: 1}],
        shares((0, 1)) + shares((0, 2)),
        kinds=(INIT, INIT),
        written=ids(0, 1, cores=True),
        id="Neuron init containers keep their cores",
    ),
    fits(
        devices(2, kind="inf2.24xlarge"),
        [{COUNT: 1}, {CORES: 2}],
        shares((1, 3)) + shares((0, 3)),
        written=ids(1, 0, 1, cores=True),
        id="Neuron a device and the cores of another",
    ),
    fits(
        [*devices(8, 0, kind="inf2.48xlarge")][::-1],
        {COUNT: 4},
        shares((1, 3), (2, 3), (3, 3), (4, 3)),
        written=ids(1, 2, 3, 4),
        id="a run is one of indexes, whatever the order of trying",
    ),
    fits(
        devices(16, kind="inf2.48xlarge"),
        {COUNT: 4},
        shares((2, 3), (3, 3), (4, 3), (5, 3)),
        annotations={"aws.amazon.com/nouse-neuron-uuid": "n-AWSNeuron-1"},
        written=ids(2, 3, 4, 5),
        id="a run has no device that the pod rules out",
    ),
    fits(
        [device(i, kind="inf2.48xlarge", used=int(i == 2), mask=0) for i in range(8)],
        {COUNT: 4},
        shares((3, 3), (4, 3), (5, 3), (6, 3)),
        annotations=MUTEX,
        written=ids(3, 4, 5, 6),
        id="a run has no device that somebody uses, under mutex",
    ),
    fits(
        [device(i, kind="inf2.48xlarge", healthy=i != 1) for i in range(4)],
        {COUNT: 2},
        shares((2, 3), (3, 3)),
        written=ids(2, 3),
        id="a run has no broken device",
    ),
    fits(
        [device(**FOUR_CORES)],
        {COUNT: 1},
        shares((0, 15)),
        written=ids(0),
        id="a whole device is all its cores",
    ),
    fits(
        [device(0, Partition(0, 2), **FOUR_CORES)],
        {CORES: 2},
        shares((0, 12)),
        written=ids(2, 3, cores=True),
        id="the third and the fourth core",
    ),
    fits(
        [device(0, Partition(0), Partition(3), **FOUR_CORES)],
        {CORES: 1},
        shares((0, 2)),
        written=ids(1, cores=True),
        id="the first free core",
    ),
    fits(
        [device(0, Partition(1), **FOUR_CORES)],
        {CORES: 2},
        shares((0, 12)),
        written=ids(2, 3, cores=True),
        id="cores beside each other",
    ),
    fits(
        [device(0, Partition(1), Partition(3), **FOUR_CORES)],
        {CORES: 2},
        shares((0, 5)),
        written=ids(0, 2, cores=True),
        id="cores that are left",
    ),
    fits(
        [device(**FOUR_CORES)],
        {CORES: 4},
        shares((0, 15)),
        written=ids(0, 1, 2, 3, cores=True),
        id="four cores are one device of four",
    ),
    fits(
        [device(0, **FOUR_CORES), device(1, **FOUR_CORES)],
        {CORES: 6},
        shares((0, 15), (1, 3)),
        written=ids(0, 1, 2, 3, 4, 5, cores=True),
        id="six cores are a device of four and half of another",
    ),
    fits(
        [device(1, **FOUR_CORES)],
        {CORES: 1},
        shares((1, 1)),
        written=ids(4, cores=True),
        id="numbers of cores count the node's own",
    ),
]
