"""Whom the policies of the API server trust because of a name.

A pattern of names may restrict: a policy that judges too many accounts is a nuisance. It must not permit a write, since
whoever creates a namespace or an account chooses its name. What permits is a right that the policy asks the authorizer
for, or the exact name of an account or a group of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from testing.cel import (
    Binary,
    Call,
    Conditional,
    Index,
    Items,
    Literal,
    Name,
    Node,
    Not,
    Select,
    parse,
)

__all__ = ["patterns_that_permit"]

Object = dict[str, Any]
LOGIC = ("&&", "||")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "in")
TESTS = ("matches", "contains", "startsWith", "endsWith", "allowed")
"""Functions whose result is a boolean."""
BRANCHING = ("all", "exists")
"""Macros that are true if their body is, for all items or for one."""
MACROS = (*BRANCHING, "exists_one", "existsOne", "filter", "map", "transformList", "transformMap")
WHO = ("username", "groups", "uid")
"""Fields of ``request.userInfo`` that say who somebody is. Its ``extra`` are statements of an authenticator."""


class Effect(IntEnum):
    """What a policy does if an expression is true. EITHER: something is computed with the result."""

    PERMITS = 1
    EITHER = 0
    RESTRICTS = -1

    @property
    def inverted(self) -> Effect:
        """The effect of the opposite."""
        return Effect(-self)


@dataclass(frozen=True)
class Scope:
    """What names mean where an expression stands. *variables*: those of the policy. *users*: the names of macros that
    stand for who sends the request; True for a whole name, False for what is made of it."""

    variables: Mapping[str, Node]
    users: Mapping[str, bool] = field(default_factory=dict)


def patterns_that_permit(policy: Object) -> list[str]:
    """Returns what is wrong with *policy*, one sentence for each comparison with a name that is not exact."""
    name = policy["metadata"]["name"]
    return [
        f"{name}: {place} may permit by a name that is not exact: {comparison}"
        for place, text, effect, scope in _expressions(policy)
        for comparison in _by_name(parse(text), effect, scope)
    ]


def _expressions(policy: Object) -> Iterator[tuple[str, str, Effect, Scope]]:
    """Yields the expressions of *policy* with their places. Where a condition is true, the validations judge a request;
    a mutation and a webhook may do anything."""
    validates = policy["kind"] == "ValidatingAdmissionPolicy"
    condition = Effect.RESTRICTS if validates else Effect.EITHER
    for part in (policy.get("spec", {}), *policy.get("webhooks", ())):
        scope = Scope(
            {entry["name"]: parse(entry["expression"]) for entry in part.get("variables", ())}
        )
        for entry in part.get("matchConditions", ()):
            yield f"match condition {entry['name']}", entry["expression"], condition, scope
        for number, entry in enumerate(part.get("validations", ())):
            yield f"validation {number}", entry["expression"], Effect.PERMITS, scope
        for number, entry in enumerate(part.get("mutations", ())):
            change = entry.get("jsonPatch") or entry["applyConfiguration"]
            yield f"mutation {number}", change["expression"], Effect.EITHER, scope


def _by_name(node: Node, effect: Effect, scope: Scope) -> Iterator[Node]:
    """Yields the comparisons in *node* by which a name that is not exact may permit a request."""
    match node:
        case Not(operand):
            yield from _by_name(operand, effect.inverted, scope)
        case Binary("!=", left, right):
            yield from _by_name(Binary("==", left, right), effect.inverted, scope)
        case Binary(operator, left, right) if operator in LOGIC:
            yield from _by_name(left, effect, scope)
            yield from _by_name(right, effect, scope)
        case Conditional(condition, then, otherwise):
            yield from _by_name(condition, Effect.EITHER, scope)
            yield from _by_name(then, effect, scope)
            yield from _by_name(otherwise, effect, scope)
        case Call(Node() as target, function, arguments) if function in MACROS:
            body_effect = effect if function in BRANCHING else Effect.EITHER
            yield from _in_macro(target, arguments, body_effect, scope)
        case Select(Name("variables"), name) if name in scope.variables:
            yield from _by_name(scope.variables[name], effect, scope)
        case _ if _is_exact(node, scope) or not _says_who(node, scope):
            return
        case _ if effect != Effect.RESTRICTS:
            yield node
        case _:
            for part in node.parts:
                yield from _computed_with(part, scope)


def _in_macro(
    target: Node, arguments: tuple[Node, ...], effect: Effect, scope: Scope
) -> Iterator[Node]:
    """Yields the same of a macro for the items of *target*. Its first arguments are the variables of its body."""
    names = [argument.name for argument in arguments[:-1] if isinstance(argument, Name)]
    users = {name: exact for name, exact in scope.users.items() if name not in names}
    if _says_who(target, scope):
        users |= dict.fromkeys(names, _is_list_of_names(target, scope))
    inner = Scope(scope.variables, users)
    yield from _computed_with(target, scope)
    for body in arguments[len(names) :]:
        yield from _by_name(body, effect, inner)


def _computed_with(node: Node, scope: Scope) -> Iterator[Node]:
    """Yields the comparisons in a value, which may permit whether they are true or false."""
    match node:
        case Select(Name("variables"), name) if name in scope.variables:
            yield from _computed_with(scope.variables[name], scope)
        case Not() | Conditional():
            yield from _by_name(node, Effect.EITHER, scope)
        case Binary(operator) if operator in (*LOGIC, *COMPARISONS):
            yield from _by_name(node, Effect.EITHER, scope)
        case Call(Node(), function) if function in (*MACROS, *TESTS):
            yield from _by_name(node, Effect.EITHER, scope)
        case _:
            for part in node.parts:
                yield from _computed_with(part, scope)


def _is_exact(node: Node, scope: Scope) -> bool:
    """Reports whether *node* compares a whole name, or the groups, with names of Kubernetes as they are."""
    match node:
        case Binary("==", left, right):
            return (_is_whole(left, scope) and _is_of_kubernetes(right)) or (
                _is_whole(right, scope) and _is_of_kubernetes(left)
            )
        case Binary("in", name, Items(names)):
            return _is_whole(name, scope) and all(map(_is_of_kubernetes, names))
        case Binary("in", name, groups):
            return _is_of_kubernetes(name) and _is_whole(groups, scope)
    return False


def _is_of_kubernetes(node: Node) -> bool:
    """Reports whether *node* is the name of an account, with its namespace, or of a user or group that Kubernetes has
    reserved."""
    match node:
        case Literal(str() as name):
            system, *rest = name.split(":")
            if system != "system" or not rest or not all(rest):
                return False
            return rest[0] != "serviceaccount" or len(rest) == 3
    return False


def _is_whole(node: Node, scope: Scope) -> bool:
    """Reports whether *node* is the user name, a group or all groups, as they are."""
    match node:
        case Name(name):
            return scope.users.get(name, False)
        case Select(Name("variables"), name) if name in scope.variables:
            return _is_whole(scope.variables[name], scope)
        case Call(Select() as optional, "orValue", (Literal("") | Items(()),)):
            return _is_whole(optional, scope)
        case Select(holder, name):
            return _is_user_info(holder) and name in WHO
    return False


def _is_list_of_names(node: Node, scope: Scope) -> bool:
    """Reports whether the items of *node* are groups, or the user name as it is."""
    if isinstance(node, Items):
        return all(_is_whole(item, scope) for item in node.items)
    return _is_whole(node, scope)


def _says_who(node: Node, scope: Scope) -> bool:
    """Reports whether the value of *node* depends on the name of who sends the request."""
    match node:
        case Name(name):
            return name in scope.users
        case Select(Name("variables"), name) if name in scope.variables:
            return _says_who(scope.variables[name], scope)
        case Select(holder, name) if _is_user_info(holder):
            return name in WHO
        case Index(holder, Literal(str() as name)) if _is_user_info(holder):
            return name in WHO
    return _is_user_info(node) or any(_says_who(part, scope) for part in node.parts)


def _is_user_info(node: Node) -> bool:
    """Reports whether *node* is all that the API server says of who sends the request."""
    match node:
        case Call(None, "dyn", (value,)):
            return _is_user_info(value)
        case Select(holder, "userInfo") | Index(holder, Literal("userInfo")):
            return holder in (Name("request"), Call(None, "dyn", (Name("request"),)))
    return False
