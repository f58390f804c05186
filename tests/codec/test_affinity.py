"""What a pod prefers, of nodes and of other pods."""

import json

import pytest

from hami.codec.affinity import MAX_REQUIREMENTS, MAX_VALUES
from hami.codec.pods import parse_pod
from hami.model import NodePreference, NodeRequirement
from testing.cases import cases

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SSD = {"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}
IS_SSD = NodeRequirement("disk", "In", frozenset({"ssd", "nvme"}))


def read(**spec):
    return parse_pod(json.dumps({"spec": {"containers": [], **spec}}).encode())


def preferences(*terms):
    return read(affinity={"nodeAffinity": {PREFERRED: list(terms)}}).preferences


def term(weight, *expressions, fields=()):
    return {
        "weight": weight,
        "preference": {"matchExpressions": list(expressions), "matchFields": list(fields)},
    }


def test_preferred_node_affinity():
    by_name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert preferences(
        term(3, SSD, {"key": "gone", "operator": "DoesNotExist"}), term(100, fields=[by_name])
    ) == (
        NodePreference(3, (IS_SSD, NodeRequirement("gone", "DoesNotExist"))),
        NodePreference(100, (NodeRequirement("", "In", frozenset({"n1"})),)),
    )


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {},
        {"nodeAffinity": None},
        {"nodeAffinity": {}},
        {"nodeAffinity": {PREFERRED: None}},
        {"nodeAffinity": {PREFERRED: []}},
        {"nodeAffinity": {PREFERRED: [term(5), {"weight": 5, "preference": {}}]}},
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [SSD]}]
                }
            }
        },
    ],
)
def test_what_is_required_or_empty_is_no_preference(affinity):
    assert read(affinity=affinity).preferences == ()


def test_terms_beyond_the_bound_do_not_count():
    assert (
        preferences(*[term(1, SSD)] * (MAX_REQUIREMENTS + 5))
        == (NodePreference(1, (IS_SSD,)),) * MAX_REQUIREMENTS
    )
    long = term(1, *[SSD] * MAX_REQUIREMENTS)
    assert preferences(term(1, SSD), long, term(1, SSD)) == (NodePreference(1, (IS_SSD,)),)
    many = term(1, SSD | {"values": [f"value-{number}" for number in range(MAX_VALUES)]})
    assert preferences(term(1, SSD), many, term(1, SSD)) == (NodePreference(1, (IS_SSD,)),)


NEAR = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}


@cases(
    "spec, soft",
    ("nothing", {}, False),
    ("near other pods", {"affinity": {"podAffinity": {PREFERRED: [NEAR]}}}, True),
    ("away from other pods", {"affinity": {"podAntiAffinity": {PREFERRED: [NEAR]}}}, True),
    ("empty", {"affinity": {"podAffinity": {PREFERRED: []}, "podAntiAffinity": None}}, False),
    (
        "required",
        {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [NEAR["podAffinityTerm"]]
                }
            }
        },
        False,
    ),
    ("of nodes", {"affinity": {"nodeAffinity": {PREFERRED: [term(1, SSD)]}}}, False),
    (
        "a hard spread",
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
        False,
    ),
    (
        "a soft spread",
        {
            "topologySpreadConstraints": [
                {"whenUnsatisfiable": "DoNotSchedule"},
                {"whenUnsatisfiable": "ScheduleAnyway"},
            ]
        },
        True,
    ),
    ("null", {"topologySpreadConstraints": None}, False),
)
def test_soft_constraints_that_only_kube_scheduler_can_judge(spec, soft):
    assert read(**spec).soft_constraints is soft


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NO_NODE = NodeRequirement("", "In")
IN_A = NodeRequirement("zone", "In", frozenset({"a"}))


def node_terms(selector=None, *terms):
    spec = {"nodeSelector": selector}
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}
        spec["affinity"] = {"nodeAffinity": {REQUIRED: required}}
    return read(**spec).node_terms


@cases(
    "selector, terms, expected",
    ("nothing", None, (), ()),
    ("selector", {"zone": "a"}, (), ((IN_A,),)),
    ("terms", None, ([SSD], [SSD, SSD]), ((IS_SSD,), (IS_SSD, IS_SSD))),
    ("both", {"zone": "a"}, ([SSD], [SSD]), ((IN_A, IS_SSD),) * 2),
    ("an empty term is met by no node", None, ([], [SSD]), ((IS_SSD,),)),
    ("only empty terms", {"zone": "a"}, ([],), ((NO_NODE,),)),
    ("a term with too many conditions", None, ([SSD] * (MAX_REQUIREMENTS + 1),), ((NO_NODE,),)),
    (
        "too many terms",
        None,
        ([SSD],) * (MAX_REQUIREMENTS + 5),
        ((IS_SSD,),) * MAX_REQUIREMENTS,
    ),
    (
        "a large selector",
        {str(number): "" for number in range(MAX_REQUIREMENTS + 1)},
        (),
        ((NO_NODE,),),
    ),
)
def test_a_node_must_meet_a_term_of_selector_and_required_affinity(selector, terms, expected):
    assert node_terms(selector, *terms) == expected
