"""ExtenderArgs in, results out."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from pytest import param

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


@pytest.mark.parametrize(
    "text, names, nodes",
    [
        param('{"pod":{},"nodenames":["a"]}', ["a"], None, id="lower case"),
        param('{"POD":{},"NODENAMES":["a"],"nOdEs":null}', ["a"], None, id="mixed case"),
        param('{"Pod":{},"NodeNames":["a"]} trailing', ["a"], None, id="trailing words"),
        param(
            '{"Pod":{},"NodeNames":["a"]}{"Pod":{},"NodeNames":["b"]}',
            ["a"],
            None,
            id="only the first value",
        ),
        param(' \r\n\t{"Pod":{},"NodeNames":["ä"]}\n,', ["ä"], None, id="blanks before"),
        param('{"Pod":{},"NodeNames":null,"Nodes":null}', None, None, id="null lists"),
        param('{"Pod":{}}', None, None, id="no lists"),
        param('{"Pod":{},"NodeNames":[]}', [], None, id="no names"),
        param('{"Pod":{},"Nodes":{}}', None, (), id="no items"),
        param('{"Pod":{},"Nodes":{"Items":null}}', None, (), id="null items"),
        param(
            '{"Pod":{},"Later":{"field":[1,{}]},"NodeNames":["a"]}', ["a"], None, id="unknown field"
        ),
    ],
)
@pytest.mark.parametrize("padding", ["", "x" * extender.MAX_VALUES], ids=["short", "long"])
def test_forms_that_are_read(text, names, nodes, padding):
    """Members of long texts are found in another way."""
    text = text.replace("{", f'{{"Padding" : "{padding}" , ', 1) if padding else text
    args = parse_filter(text.encode())
    assert (args.names, args.nodes) == (names, nodes)


MISSING = "extender args missing pod"


@pytest.mark.parametrize(
    "data, says",
    [
        param(b"", "EOF", id="empty"),
        param(b" \n", "EOF", id="blank"),
        param(b"{}", MISSING, id="no pod"),
        param(b'{"Pod": null , "NodeNames":["a"]}', MISSING, id="null pod"),
        param(b'{"Pod":{}', "body: ", id="truncated"),
        param(b"null", "body: Expected `object`, got `null`: 'null'", id="null"),
        param(b"[]", "body: Expected `object`, got `array`: '[]'", id="array"),
        param(
            b'"x" y', "body: Expected `object`, got `str`: '\"x\" y'", id="text with more behind"
        ),
        param(b"\xff\xfe{}", "body: ", id="UTF-16"),
        param(b'{"Pod":{"metadata":{"name":"\xff"}}}', "pod: ", id="invalid UTF-8"),
        param(b'{"Pod":{"metadata":{"name":"\\ud800"}}}', "body: ", id="lone surrogate"),
        param(
            b'{"Pod":{"metadata":{"annotations":{"hami.io/vgpu-node":1}}}}',
            "pod: Expected `str`, got `int`",
            id="annotation of another type",
        ),
        param(b'{"Pod":[]}', "pod: Expected `object`, got `array`: '[]'", id="pod a list"),
        param(
            b'{"Pod":{},"NodeNames":"a"}',
            "NodeNames: Expected `array | null`, got `str`: '\"a\"'",
            id="names a text",
        ),
        param(
            b'{"Pod":{},"NodeNames":[1]}',
            "NodeNames: Expected `str`, got `int` - at `$[0]`: '[1]'",
            id="name a number",
        ),
        param(
            b'{"Pod":{},"Nodes":[]}',
            "Nodes: Expected `object | null`, got `array`: '[]'",
            id="nodes a list",
        ),
        param(
            b'{"Pod":{},"Nodes":{"items":{}}}',
            "Nodes.items: Expected `array | null`, got `object`: '{}'",
            id="items an object",
        ),
        param(
            b'{"Pod":{},"Nodes":{"items":[null]}}',
            "node: Expected `object`, got `null`: 'null'",
            id="node null",
        ),
        param(
            b'{"Pod":{},"Nodes":{"items":[{"x":"\xff"}]}}',
            "Nodes.items: ",
            id="node that could not be echoed",
        ),
        param(b'{"Pod":' + b"[" * 100_000, "body: ", id="deep"),
        param(b'{"Pod":{}} ' + b"[" * 100_000 + b"]", "", id="deep behind the end"),
        param(
            b'{"Pod":{"x":' + b'{"y":' * 50_000 + b"1" + b"}" * 50_002,
            "body: ",
            id="deep and complete",
        ),
    ],
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


@pytest.mark.parametrize(
    "data, parse",
    [
        param(
            b'{"Pod":{},"Nodes":{"items":[' + b"1," * LARGE + b"1]}}",
            read,
            id="elements that are no nodes",
        ),
        param(b'{"Pod":{},"Nodes":{"items":[' + b"{}," * LARGE + b"{}]}}", read, id="empty nodes"),
        param(
            b'{"Pod":{},"Nodes":{"items":[' + b"[" + b"{}," * LARGE + b"{}]]}}",
            read,
            id="a node that is a list",
        ),
        param(b'{"Pod":{},"NodeNames":[' + b'"ab",' * LARGE + b'"ab"]}', read, id="names"),
        param(b'{"Pod":{"x":[' + b"{}," * LARGE + b"{}]}}", read, id="values of a pod"),
        param(
            b'{"Pod":{},"NodeNames":["a"]' + b',"x":1' * LARGE + b"}",
            read,
            id="the same field again and again",
        ),
        param(
            b"{" + b",".join(b'"%d":1' % number for number in range(LARGE // 4)) + b"}",
            read,
            id="fields",
        ),
        param(
            b'{"Pod":{},"Nodes":{'
            + b",".join(b'"%d":1' % number for number in range(LARGE // 4))
            + b"}}",
            read,
            id="fields of a list of nodes",
        ),
        param(
            FEW + b',"x":[' + b"{}," * LARGE + b"{}]} more", read, id="unknown values before more"
        ),
        param(FEW + b"} [" + b"{}," * LARGE + b"{}]", read, id="more"),
        param(
            b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":['
            + b'{"UID":""},' * LARGE
            + b'{"UID":""}]}}}',
            parse_preemption,
            id="victims",
        ),
    ],
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


@pytest.mark.parametrize(
    "data, says",
    [
        param(
            b'{"Pod":{"x":"%s"}}' % (b"x" * extender.MAX_OBJECT),
            "Pod: 4194312 bytes, expected at most 4194304",
            id="pod",
        ),
        param(
            b'{"Pod":{},"Nodes":{"items":[{"x":"%s"}]}}' % (b"x" * extender.MAX_OBJECT),
            "Nodes.items: 4194312 bytes, expected at most 4194304",
            id="node",
        ),
        param(
            b'{"Pod":{"metadata":{"name":"%s"}}}' % (b"x" * 254),
            "Pod.metadata.name: 254 characters, expected at most 253",
            id="name",
        ),
        param(
            b'{"Pod":{"metadata":{"namespace":"%s"}}}' % (b"x" * 64),
            "Pod.metadata.namespace: 64 characters, expected at most 63",
            id="namespace",
        ),
        param(
            b'{"Pod":{"metadata":{"uid":"%s"}}}' % (b"x" * 129),
            "Pod.metadata.uid: 129 characters, expected at most 128",
            id="uid",
        ),
        param(
            b'{"Pod":{"metadata":{"labels":{"scheduling.x-k8s.io/pod-group":"%s"}}}}'
            % (b"x" * 254),
            "the group of the pod: 254 characters, expected at most 253",
            id="group",
        ),
        param(
            b'{"Pod":{"metadata":{"annotations":{"a":"%s","b":"%s"}}}}'
            % (b"x" * 262_000, b"x" * 143),
            "Pod.metadata.annotations: 262145 characters, expected at most 262144",
            id="annotations",
        ),
    ],
)
def test_what_no_object_has_is_refused(data, says):
    with pytest.raises(MalformedInput) as caught:
        read(data)
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "field, most", [("PodName", 253), ("PodNamespace", 63), ("PodUID", 128), ("Node", 253)]
)
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


@pytest.mark.parametrize(
    "text, victims",
    [
        param('{"pod":{},"nodenametometavictims":{}} more', {}, id="lower case with more behind"),
        param('{"Pod":{},"NodeNameToMetaVictims":{"a":{}}}', {"a": Victims()}, id="no fields"),
        param(
            '{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":null}}}',
            {"a": Victims()},
            id="null pods",
        ),
        param(
            '{"Pod":{},"NodeNameToMetaVictims":{"a":{"Later":1,"Pods":[{"UID":"u","Name":"p"}]}}}',
            {"a": Victims((Victim("u"),))},
            id="unknown fields",
        ),
    ],
)
def test_forms_of_preemption_that_are_read(text, victims):
    assert parse_preemption(text.encode()).victims == victims


@pytest.mark.parametrize(
    "data, says",
    [
        (b"", "EOF"),
        (b"{}", MISSING),
        (b"[]", "body: "),
        (
            b'{"Pod":{}}',
            "NodeNameToMetaVictims: missing: the extender needs nodeCacheCapable: true",
        ),
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
    ],
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


@pytest.mark.parametrize(
    "data, args",
    [
        param(body(BIND), BindArgs(PodRef("ns", "p", "u"), "n1"), id="whole"),
        param(
            b'{"podname":"p","PODNAMESPACE":"ns","podUid":"u","node":"n1"} more',
            BindArgs(PodRef("ns", "p", "u"), "n1"),
            id="mixed case with more behind",
        ),
        param(b'{"PodName":null}', BindArgs(PodRef("", "", ""), ""), id="nothing"),
    ],
)
def test_bind(data, args):
    assert parse_bind(data) == args


@pytest.mark.parametrize(
    "data, says",
    [
        (b"", "EOF"),
        (b"3", "body: Expected `object`, got `int`"),
        (b'{"PodName":3}', "PodName: Expected `str | null`, got `int`: '3'"),
        (b'{"PodUID":["u"]}', "PodUID: "),
        (b'{"Node":"\xff"}', "Node: "),
    ],
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


@pytest.mark.parametrize(
    "rendered, text",
    [
        param(
            render_filter(["n2"]),
            '{"Nodes":null,"NodeNames":["n2"],"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":""}',
            id="chosen",
        ),
        param(
            render_filter(None, {"node1": "2/2 CardInsufficientMemory"}),
            '{"Nodes":null,"NodeNames":null,"FailedNodes":'
            '{"node1":"2/2 CardInsufficientMemory"},"FailedAndUnresolvableNodes":null,"Error":""}',
            id="none fits",
        ),
        param(
            render_filter(None, {}, "EOF"),
            '{"Nodes":null,"NodeNames":null,"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":"EOF"}',
            id="error",
        ),
        param(
            render_filter([]),
            '{"Nodes":null,"NodeNames":[],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}',
            id="no names",
        ),
        param(
            render_simulation([msgspec.Raw(b'{"a": 1}')], {}),
            '{"Nodes":{"metadata":{},"items":[{"a": 1}]},"NodeNames":null,"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":""}',
            id="chosen",
        ),
        param(
            render_simulation([msgspec.Raw(b'{"a": 1}'), msgspec.Raw(b'{"b":2}')], {}),
            '{"Nodes":{"metadata":{},"items":[{"a": 1},{"b":2}]},"NodeNames":null,"FailedNodes":null,'
            '"FailedAndUnresolvableNodes":null,"Error":""}',
            id="two",
        ),
        param(
            render_simulation([], {"n1": "node unregistered"}),
            '{"Nodes":null,"NodeNames":null,"FailedNodes":'
            '{"n1":"node unregistered"},"FailedAndUnresolvableNodes":null,"Error":""}',
            id="none",
        ),
        param(render_preemption({}), '{"NodeNameToMetaVictims":{}}', id="veto"),
        param(
            render_preemption({"n1": Victims((Victim("u"),), 1)}),
            '{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"u"}],"NumPDBViolations":1}}}',
            id="victims",
        ),
        param(render_bind(), '{"Error":""}', id="bound"),
        param(
            render_bind('pod "pod1" not found'),
            '{"Error":"pod \\"pod1\\" not found"}',
            id="not bound",
        ),
    ],
)
def test_results(rendered, text):
    assert rendered.decode() == text
