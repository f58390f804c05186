"""ExtenderArgs in, results out."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given

from hami.codec import extender
from hami.codec.extender import (
    BindArgs,
    Victim,
    Victims,
    parse_bind,
    parse_filter,
    parse_nodes,
    parse_preemption,
    render_bind,
    render_filter,
    render_preemption,
    render_simulation,
)
from hami.errors import MalformedInput
from hami.model import PodRef
from testing.cases import cases
from testing.fuzz import bodies

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "annotations": {"hami.io/gpu-scheduler-policy": "binpack"},
    },
    "spec": {
        "containers": [
            {
                "name": "c",
                "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}},
            }
        ]
    },
}
NODE = {
    "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": "[]"}},
    "status": {"allocatable": {"cpu": "1"}},
}
LIVE = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}
SIMULATED = {"Pod": POD, "Nodes": {"metadata": {}, "items": [NODE]}, "NodeNames": None}
PREEMPT = {
    "Pod": POD,
    "NodeNameToVictims": None,
    "NodeNameToMetaVictims": {
        "n1": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1},
        "n2": {"Pods": [], "NumPDBViolations": 0},
    },
}
BIND = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"}


def body(document):
    return json.dumps(document).encode()


def test_live_filter():
    args = parse_filter(body(LIVE))
    assert (args.pod.ref, args.names, args.nodes) == (PodRef("ns", "p", "u"), ["n1", "n2"], None)


@pytest.mark.parametrize("blank", ["", " \n\t\r"])
def test_simulation_keeps_the_nodes_as_they_came(blank):
    first, second = '{"metadata":{"name":"n1"}, "novel":[1,2]}', '{"metadata":{"name":"n,2]}"}}'
    items = f"[{blank}{first}{blank},{blank}{second}{blank}]"
    args = parse_filter(f'{{"Pod":{{}},"Nodes":{{"items":{items}}}}}'.encode())
    assert [bytes(raw).decode() for raw in args.nodes] == [first, second]
    assert [node.name for node in parse_nodes(args.nodes)] == ["n1", "n,2]}"]


def read(data):
    """Everything of the arguments, nodes too."""
    args = parse_filter(data)
    return args, list(parse_nodes(args.nodes or ()))


@cases(
    "text, names, nodes",
    ("lower case", '{"pod":{},"nodenames":["a"]}', ["a"], None),
    ("mixed case", '{"POD":{},"NODENAMES":["a"],"nOdEs":null}', ["a"], None),
    ("trailing words", '{"Pod":{},"NodeNames":["a"]} trailing', ["a"], None),
    (
        "only the first value",
        '{"Pod":{},"NodeNames":["a"]}{"Pod":{},"NodeNames":["b"]}',
        ["a"],
        None,
    ),
    ("blanks before", ' \r\n\t{"Pod":{},"NodeNames":["ä"]}\n,', ["ä"], None),
    ("null lists", '{"Pod":{},"NodeNames":null,"Nodes":null}', None, None),
    ("no lists", '{"Pod":{}}', None, None),
    ("no names", '{"Pod":{},"NodeNames":[]}', [], None),
    ("no items", '{"Pod":{},"Nodes":{}}', None, ()),
    ("null items", '{"Pod":{},"Nodes":{"Items":null}}', None, ()),
    ("unknown field", '{"Pod":{},"Later":{"field":[1,{}]},"NodeNames":["a"]}', ["a"], None),
)
@cases("padding", ("short", ""), ("long", "x" * extender.MAX_VALUES))
def test_forms_that_are_read(text, names, nodes, padding):
    """Members of long texts are found in another way."""
    text = text.replace("{", f'{{"Padding" : "{padding}" , ', 1) if padding else text
    args = parse_filter(text.encode())
    assert (args.names, args.nodes) == (names, nodes)


MISSING = "extender args missing pod"


@cases(
    "data, says",
    ("empty", b"", "EOF"),
    ("blank", b" \n", "EOF"),
    ("no pod", b"{}", MISSING),
    ("null pod", b'{"Pod": null , "NodeNames":["a"]}', MISSING),
    ("truncated", b'{"Pod":{}', "body: "),
    ("null", b"null", "body: Expected `object`, got `null`: 'null'"),
    ("array", b"[]", "body: Expected `object`, got `array`: '[]'"),
    ("text with more behind", b'"x" y', "body: Expected `object`, got `str`: '\"x\" y'"),
    ("UTF-16", b"\xff\xfe{}", "body: "),
    ("invalid UTF-8", b'{"Pod":{"metadata":{"name":"\xff"}}}', "pod: "),
    ("lone surrogate", b'{"Pod":{"metadata":{"name":"\\ud800"}}}', "body: "),
    (
        "annotation of another type",
        b'{"Pod":{"metadata":{"annotations":{"hami.io/vgpu-node":1}}}}',
        "pod: Expected `str`, got `int`",
    ),
    ("pod a list", b'{"Pod":[]}', "pod: Expected `object`, got `array`: '[]'"),
    (
        "names a text",
        b'{"Pod":{},"NodeNames":"a"}',
        "NodeNames: Expected `array | null`, got `str`: '\"a\"'",
    ),
    (
        "name a number",
        b'{"Pod":{},"NodeNames":[1]}',
        "NodeNames: Expected `str`, got `int` - at `$[0]`: '[1]'",
    ),
    (
        "nodes a list",
        b'{"Pod":{},"Nodes":[]}',
        "Nodes: Expected `object | null`, got `array`: '[]'",
    ),
    (
        "items an object",
        b'{"Pod":{},"Nodes":{"items":{}}}',
        "Nodes.items: Expected `array | null`, got `object`: '{}'",
    ),
    (
        "node null",
        b'{"Pod":{},"Nodes":{"items":[null]}}',
        "node: Expected `object`, got `null`: 'null'",
    ),
    (
        "node that could not be echoed",
        b'{"Pod":{},"Nodes":{"items":[{"x":"\xff"}]}}',
        "Nodes.items: ",
    ),
    ("deep", b'{"Pod":' + b"[" * 100_000, "body: "),
    ("deep behind the end", b'{"Pod":{}} ' + b"[" * 100_000 + b"]", ""),
    ("deep and complete", b'{"Pod":{"x":' + b'{"y":' * 50_000 + b"1" + b"}" * 50_002, "body: "),
)
def test_malformed_filter(data, says):
    if not says:
        assert parse_filter(data).names is None
        return
    with pytest.raises(MalformedInput) as caught:
        read(data)
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 500


@given(bodies(LIVE) | bodies(SIMULATED))
def test_any_filter_is_read_or_malformed(data):
    try:
        read(data)
    except MalformedInput as error:
        assert error.field


FEW, LARGE = b'{"Pod":{},"NodeNames":["a"]', 1 << 20


@cases(
    "data, parse",
    ("elements that are no nodes", b'{"Pod":{},"Nodes":{"items":[' + b"1," * LARGE + b"1]}}", read),
    ("empty nodes", b'{"Pod":{},"Nodes":{"items":[' + b"{}," * LARGE + b"{}]}}", read),
    (
        "a node that is a list",
        b'{"Pod":{},"Nodes":{"items":[' + b"[" + b"{}," * LARGE + b"{}]]}}",
        read,
    ),
    ("names", b'{"Pod":{},"NodeNames":[' + b'"ab",' * LARGE + b'"ab"]}', read),
    ("values of a pod", b'{"Pod":{"x":[' + b"{}," * LARGE + b"{}]}}", read),
    (
        "the same field again and again",
        b'{"Pod":{},"NodeNames":["a"]' + b',"x":1' * LARGE + b"}",
        read,
    ),
    ("fields", b"{" + b",".join(b'"%d":1' % number for number in range(LARGE // 4)) + b"}", read),
    (
        "fields of a list of nodes",
        (
            b'{"Pod":{},"Nodes":{'
            + b",".join(b'"%d":1' % number for number in range(LARGE // 4))
            + b"}}"
        ),
        read,
    ),
    ("unknown values before more", FEW + b',"x":[' + b"{}," * LARGE + b"{}]} more", read),
    ("more", FEW + b"} [" + b"{}," * LARGE + b"{}]", read),
    (
        "victims",
        (
            b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":['
            + b'{"UID":""},' * LARGE
            + b'{"UID":""}]}}}'
        ),
        parse_preemption,
    ),
)
def test_a_text_takes_little_more_memory_once_it_is_read(data, parse):
    tracemalloc.start()
    try:
        parse(data)
    except MalformedInput as error:
        assert len(str(error)) < 500
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2 * len(data)


@cases(
    "data, says",
    (
        "pod",
        b'{"Pod":{"x":"%s"}}' % (b"x" * extender.MAX_OBJECT),
        "Pod: 4194312 bytes, expected at most 4194304",
    ),
    (
        "node",
        b'{"Pod":{},"Nodes":{"items":[{"x":"%s"}]}}' % (b"x" * extender.MAX_OBJECT),
        "Nodes.items: 4194312 bytes, expected at most 4194304",
    ),
    (
        "name",
        b'{"Pod":{"metadata":{"name":"%s"}}}' % (b"x" * 254),
        "Pod.metadata.name: 254 characters, expected at most 253",
    ),
    (
        "namespace",
        b'{"Pod":{"metadata":{"namespace":"%s"}}}' % (b"x" * 64),
        "Pod.metadata.namespace: 64 characters, expected at most 63",
    ),
    (
        "uid",
        b'{"Pod":{"metadata":{"uid":"%s"}}}' % (b"x" * 129),
        "Pod.metadata.uid: 129 characters, expected at most 128",
    ),
    (
        "group",
        (b'{"Pod":{"metadata":{"labels":{"scheduling.x-k8s.io/pod-group":"%s"}}}}' % (b"x" * 254)),
        "the group of the pod: 254 characters, expected at most 253",
    ),
    (
        "annotations",
        (
            b'{"Pod":{"metadata":{"annotations":{"a":"%s","b":"%s"}}}}'
            % (b"x" * 262_000, b"x" * 143)
        ),
        "Pod.metadata.annotations: 262145 characters, expected at most 262144",
    ),
)
def test_what_no_object_has_is_refused(data, says):
    with pytest.raises(MalformedInput) as caught:
        read(data)
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 500


@cases("field, most", ("PodName", 253), ("PodNamespace", 63), ("PodUID", 128), ("Node", 253))
def test_what_no_bind_has_is_refused(field, most):
    assert parse_bind(body({field: "x" * most}))
    with pytest.raises(
        MalformedInput, match=f"^{field}: {most + 1} characters, expected at most {most}"
    ):
        parse_bind(body({field: "x" * (most + 1)}))


def test_preemption():
    args = parse_preemption(body(PREEMPT))
    assert args.pod.ref == PodRef("ns", "p", "u")
    assert args.victims == {"n1": Victims((Victim("u1"), Victim("u2")), 1), "n2": Victims(())}
    assert (args.victims["n1"].uids, args.victims["n2"].uids) == (("u1", "u2"), ())
    assert json.loads(render_preemption(args.victims)) == {
        "NodeNameToMetaVictims": PREEMPT["NodeNameToMetaVictims"]
    }


@cases(
    "text, victims",
    ("lower case with more behind", '{"pod":{},"nodenametometavictims":{}} more', {}),
    ("no fields", '{"Pod":{},"NodeNameToMetaVictims":{"a":{}}}', {"a": Victims()}),
    ("null pods", '{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":null}}}', {"a": Victims()}),
    (
        "unknown fields",
        '{"Pod":{},"NodeNameToMetaVictims":{"a":{"Later":1,"Pods":[{"UID":"u","Name":"p"}]}}}',
        {"a": Victims((Victim("u"),))},
    ),
)
def test_forms_of_preemption_that_are_read(text, victims):
    assert parse_preemption(text.encode()).victims == victims


@cases(
    "data, says",
    (b"", "EOF"),
    (b"{}", MISSING),
    (b"[]", "body: "),
    (b'{"Pod":{}}', "NodeNameToMetaVictims: missing: the extender needs nodeCacheCapable: true"),
    (
        b'{"Pod":{},"NodeNameToVictims":{"a":{}},"NodeNameToMetaVictims":null}',
        "NodeNameToMetaVictims: missing",
    ),
    (
        b'{"Pod":{},"NodeNameToMetaVictims":[]}',
        "NodeNameToMetaVictims: Expected `object | null`, got `array`",
    ),
    (
        b'{"Pod":{},"NodeNameToMetaVictims":{"a":null}}',
        "NodeNameToMetaVictims: Expected `object`, got `null`",
    ),
    (
        b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":[null]}}}',
        "NodeNameToMetaVictims: Expected `object`",
    ),
    (b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":[{}]}}}', "NodeNameToMetaVictims: "),
    (
        b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"\xff"}]}}}',
        "NodeNameToMetaVictims: ",
    ),
    (
        b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"NumPDBViolations":"1"}}}',
        "NodeNameToMetaVictims: Expected `int`",
    ),
)
def test_malformed_preemption(data, says):
    with pytest.raises(MalformedInput) as caught:
        parse_preemption(data)
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 500


@given(bodies(PREEMPT))
def test_any_preemption_is_read_or_malformed(data):
    try:
        args = parse_preemption(data)
    except MalformedInput as error:
        assert error.field
    else:
        again = body({"Pod": POD, **json.loads(render_preemption(args.victims))})
        assert {
            node: victims.uids for node, victims in parse_preemption(again).victims.items()
        } == {node: victims.uids for node, victims in args.victims.items()}


@cases(
    "data, args",
    ("whole", body(BIND), BindArgs(PodRef("ns", "p", "u"), "n1")),
    (
        "mixed case with more behind",
        b'{"podname":"p","PODNAMESPACE":"ns","podUid":"u","node":"n1"} more',
        BindArgs(PodRef("ns", "p", "u"), "n1"),
    ),
    ("nothing", b'{"PodName":null}', BindArgs(PodRef("", "", ""), "")),
)
def test_bind(data, args):
    assert parse_bind(data) == args


@cases(
    "data, says",
    (b"", "EOF"),
    (b"3", "body: Expected `object`, got `int`"),
    (b'{"PodName":3}', "PodName: Expected `str | null`, got `int`: '3'"),
    (b'{"PodUID":["u"]}', "PodUID: "),
    (b'{"Node":"\xff"}', "Node: "),
)
def test_malformed_bind(data, says):
    with pytest.raises(MalformedInput) as caught:
        parse_bind(data)
    assert str(caught.value).startswith(says)


@given(bodies(BIND))
def test_any_bind_is_read_or_malformed(data):
    try:
        parse_bind(data)
    except MalformedInput as error:
        assert error.field


@cases(
    "rendered, text",
    (
        "chosen",
        render_filter(["n2"]),
        (
            '{"Nodes":null,"NodeNames":["n2"],"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":""}'
        ),
    ),
    (
        "none fits",
        render_filter(None, {"node1": "2/2 CardInsufficientMemory"}),
        (
            '{"Nodes":null,"NodeNames":null,"FailedNodes":'
            '{"node1":"2/2 CardInsufficientMemory"},"FailedAndUnresolvableNodes":null,"Error":""}'
        ),
    ),
    (
        "error",
        render_filter(None, {}, "EOF"),
        (
            '{"Nodes":null,"NodeNames":null,"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":"EOF"}'
        ),
    ),
    (
        "no names",
        render_filter([]),
        '{"Nodes":null,"NodeNames":[],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}',
    ),
    (
        "chosen",
        render_simulation([msgspec.Raw(b'{"a": 1}')], {}),
        (
            '{"Nodes":{"metadata":{},"items":[{"a": 1}]},"NodeNames":null,"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":""}'
        ),
    ),
    (
        "two",
        render_simulation([msgspec.Raw(b'{"a": 1}'), msgspec.Raw(b'{"b":2}')], {}),
        (
            '{"Nodes":{"metadata":{},"items":[{"a": 1},{"b":2}]},"NodeNames":null,"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":""}'
        ),
    ),
    (
        "none",
        render_simulation([], {"n1": "node unregistered"}),
        (
            '{"Nodes":null,"NodeNames":null,"FailedNodes":'
            '{"n1":"node unregistered"},"FailedAndUnresolvableNodes":null,"Error":""}'
        ),
    ),
    ("veto", render_preemption({}), '{"NodeNameToMetaVictims":{}}'),
    (
        "victims",
        render_preemption({"n1": Victims((Victim("u"),), 1)}),
        '{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"u"}],"NumPDBViolations":1}}}',
    ),
    ("bound", render_bind(), '{"Error":""}'),
    ("not bound", render_bind('pod "pod1" not found'), '{"Error":"pod \\"pod1\\" not found"}'),
)
def test_results(rendered, text):
    assert rendered.decode() == text
