"""AWS Neuron's rows of the table."""

from hami.codec.device_config import chart_config
from hami.model import Device, DeviceUsage, Partition, Request
from hami.vendors.catalog import vendors
from testing.builders import INIT
from testing.vendor_rows import MUTEX, Rows

NEURON = vendors(chart_config())["AWSNeuron"]
neuron = Rows("Neuron", NEURON)
COUNT, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
ALL = Partition(0, 31)


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


ASKS = [
    neuron.asks("one core", {CORES: "1"}, asked(cores=1)),
    neuron.asks("four devices in a row", {COUNT: "4"}, asked(4)),
    neuron.asks("two cores, of which one is taken", {CORES: "2"}, asked(cores=2)),
    neuron.asks("cores of more than a device", {CORES: "4"}, asked(cores=4)),
    neuron.asks("beside a count cores do not matter", {COUNT: "2", CORES: "3"}, asked(2)),
    neuron.asks("a count among requests alone", {}, asked(2), requests={COUNT: "2"}),
    neuron.asks(
        "a count among requests goes before cores", {CORES: "2"}, asked(3), requests={COUNT: "3"}
    ),
    neuron.asks("2k", {COUNT: "2k"}, asked(2000)),
    neuron.asks("the most cores", {CORES: "4294967294"}, asked(cores=4294967294)),
    neuron.asks("nothing", {"cpu": "1"}, None),
]

DENIED = [
    neuron.denied("three cores", {CORES: "3"}, f"{CORES} must be 1 or a multiple of 2, got 3"),
    neuron.denied("no device", {COUNT: "0", CORES: "2"}, f"{COUNT} must be greater than 0"),
    neuron.denied("-1 devices", {COUNT: "-1"}, f"{COUNT} must be greater than 0"),
    neuron.denied("1.5 devices", {COUNT: "1.5"}, f"{COUNT} must be an integer"),
    neuron.denied("half a core", {CORES: "500m"}, f"{CORES} must be an integer"),
    neuron.denied("all devices", {COUNT: "all"}, f"{COUNT} must be an integer"),
    neuron.denied("too many devices", {COUNT: "2147483648"}, f"{COUNT} must not exceed 2147483647"),
    neuron.denied("too many cores", {CORES: "4294967296"}, f"{CORES} must not exceed 4294967294"),
    neuron.denied(
        "5 cores in requests",
        {},
        f"{CORES} must be 1 or a multiple of 2, got 5",
        requests={CORES: "5"},
    ),
]

FOUR_CORES = dict(each=4, kind="inf1.6xlarge")
FITS = [
    neuron.fits("one core", [device()], {CORES: 1}, shares((0, 1)), ids(0, cores=True)),
    neuron.fits(
        "the second core", [device(0, Partition(0))], {CORES: 1}, shares((0, 2)), ids(1, cores=True)
    ),
    neuron.fits(
        "four devices in a row",
        devices(16, 0),
        {COUNT: 4},
        shares((4, 3), (5, 3), (6, 3), (7, 3)),
        ids(4, 5, 6, 7),
    ),
    neuron.fits(
        "two devices of a node without such runs", devices(2), {COUNT: 2}, "1/2 NumaNotFit"
    ),
    neuron.fits(
        "the second half is free",
        devices(16, 7),
        {COUNT: 8},
        shares(*((i, 3) for i in range(8, 16))),
        ids(*range(8, 16)),
    ),
    neuron.fits(
        "no half is free",
        devices(16, 7, 13),
        {COUNT: 8},
        "1/16 NumaNotFit, 2/16 CardInsufficientCore",
    ),
    neuron.fits(
        "a run across the halves",
        devices(16, 5, 14, kind="inf2.48xlarge"),
        {COUNT: 8},
        shares(*((i, 3) for i in range(6, 14))),
        ids(*range(6, 14)),
    ),
    neuron.fits(
        "two cores, of which one is taken",
        [device(0, Partition(0))],
        {CORES: 2},
        "1/1 CardInsufficientCore",
    ),
    neuron.fits(
        "one device is any device", [device(0), device(1)], {COUNT: 1}, shares((1, 3)), ids(1)
    ),
    neuron.fits(
        "a device whose core is taken",
        [device(0, Partition(1))],
        {COUNT: 1},
        "1/1 CardInsufficientCore",
    ),
    neuron.fits("a device that is taken", [device(0, ALL)], {CORES: 1}, "1/1 CardInsufficientCore"),
    neuron.fits("no slot", [device(0, ALL, used=2)], {CORES: 1}, "1/1 CardTimeSlicingExhausted"),
    neuron.fits("a broken device", [device(0, healthy=False)], {COUNT: 1}, "1/1 CardNotHealth"),
    neuron.fits(
        "cores of two devices",
        devices(2, kind="inf2.24xlarge"),
        {CORES: 4},
        shares((0, 3), (1, 3)),
        ids(0, 1, 2, 3, cores=True),
    ),
    neuron.fits("cores of two devices of Trainium", devices(2), {CORES: 4}, "1/2 NumaNotFit"),
    neuron.fits("more devices than there are", [device(0)], {COUNT: 2}, "NodeInsufficientDevice"),
    neuron.fits("more cores than there are", [device(0)], {CORES: 4}, "1/1 NumaNotFit"),
    neuron.fits(
        "far more cores than there are", [device(0)], {CORES: 4294967294}, "1/1 NumaNotFit"
    ),
    neuron.fits(
        "two containers have a core each",
        [device()],
        [{CORES: 1}, {CORES: 1}],
        shares((0, 1)) + shares((0, 2)),
        ids(0, 1, cores=True),
    ),
    neuron.fits(
        "init containers keep their cores",
        [device()],
        [{CORES: 1}, {CORES: 1}],
        shares((0, 1)) + shares((0, 2)),
        ids(0, 1, cores=True),
        kinds=(INIT, INIT),
    ),
    neuron.fits(
        "a device and the cores of another",
        devices(2, kind="inf2.24xlarge"),
        [{COUNT: 1}, {CORES: 2}],
        shares((1, 3)) + shares((0, 3)),
        ids(1, 0, 1, cores=True),
    ),
    neuron.fits(
        "a run is one of indexes, whatever the order of trying",
        [*devices(8, 0, kind="inf2.48xlarge")][::-1],
        {COUNT: 4},
        shares((1, 3), (2, 3), (3, 3), (4, 3)),
        ids(1, 2, 3, 4),
    ),
    neuron.fits(
        "a run has no device that the pod rules out",
        devices(16, kind="inf2.48xlarge"),
        {COUNT: 4},
        shares((2, 3), (3, 3), (4, 3), (5, 3)),
        ids(2, 3, 4, 5),
        annotations={"aws.amazon.com/nouse-neuron-uuid": "n-AWSNeuron-1"},
    ),
    neuron.fits(
        "a run has no device that somebody uses, under mutex",
        [device(i, kind="inf2.48xlarge", used=int(i == 2), mask=0) for i in range(8)],
        {COUNT: 4},
        shares((3, 3), (4, 3), (5, 3), (6, 3)),
        ids(3, 4, 5, 6),
        annotations=MUTEX,
    ),
    neuron.fits(
        "a run has no broken device",
        [device(i, kind="inf2.48xlarge", healthy=i != 1) for i in range(4)],
        {COUNT: 2},
        shares((2, 3), (3, 3)),
        ids(2, 3),
    ),
    neuron.fits(
        "a whole device is all its cores",
        [device(**FOUR_CORES)],
        {COUNT: 1},
        shares((0, 15)),
        ids(0),
    ),
    neuron.fits(
        "the third and the fourth core",
        [device(0, Partition(0, 2), **FOUR_CORES)],
        {CORES: 2},
        shares((0, 12)),
        ids(2, 3, cores=True),
    ),
    neuron.fits(
        "the first free core",
        [device(0, Partition(0), Partition(3), **FOUR_CORES)],
        {CORES: 1},
        shares((0, 2)),
        ids(1, cores=True),
    ),
    neuron.fits(
        "cores beside each other",
        [device(0, Partition(1), **FOUR_CORES)],
        {CORES: 2},
        shares((0, 12)),
        ids(2, 3, cores=True),
    ),
    neuron.fits(
        "cores that are left",
        [device(0, Partition(1), Partition(3), **FOUR_CORES)],
        {CORES: 2},
        shares((0, 5)),
        ids(0, 2, cores=True),
    ),
    neuron.fits(
        "four cores are one device of four",
        [device(**FOUR_CORES)],
        {CORES: 4},
        shares((0, 15)),
        ids(0, 1, 2, 3, cores=True),
    ),
    neuron.fits(
        "six cores are a device of four and half of another",
        [device(0, **FOUR_CORES), device(1, **FOUR_CORES)],
        {CORES: 6},
        shares((0, 15), (1, 3)),
        ids(0, 1, 2, 3, 4, 5, cores=True),
    ),
    neuron.fits(
        "numbers of cores count the node's own",
        [device(1, **FOUR_CORES)],
        {CORES: 1},
        shares((1, 1)),
        ids(4, cores=True),
    ),
]
