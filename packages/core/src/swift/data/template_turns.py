"""Chat templates that write message after message: one rendering yields the prompts of all turns.

Most templates are a head, a loop over the messages, and a tail that asks for an answer:

    {% for message in messages %} ... {% endfor %}{% if add_generation_prompt %} ... {% endif %}

Where head and loop look at nothing but the messages written so far, whatever they write for a conversation they also
write for its beginnings: only the tail differs. Then a mark before each message and before the tail splits one
rendering into the renderings of all beginnings. Templates that look ahead (`loop.last`, `messages[-1]`,
`messages | length`) or that carry something from the messages into the tail are not of this kind.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, Template, nodes

_GENERATION = "add_generation_prompt"
_SO_FAR = frozenset({"first", "index", "index0"})
"""What a loop knows of itself before it has come to its end."""
_CHANGING = frozenset({"strftime_now", "lipsum", "cycler", "joiner", "self", "caller", "context"})
"""Names whose value may differ between two renderings, or that reach beyond what is looked at here."""
_KNOWN: tuple[type[nodes.Node], ...] = (
    nodes.Add, nodes.And, nodes.Assign, nodes.AssignBlock, nodes.Break, nodes.Call, nodes.Compare, nodes.Concat,
    nodes.CondExpr, nodes.Const, nodes.Continue, nodes.Dict, nodes.Div, nodes.Filter, nodes.FloorDiv, nodes.For,
    nodes.Getattr, nodes.Getitem, nodes.If, nodes.Keyword, nodes.List, nodes.Macro, nodes.Mod, nodes.Mul, nodes.NSRef,
    nodes.Name, nodes.Neg, nodes.Not, nodes.Operand, nodes.Or, nodes.Output, nodes.Pair, nodes.Pos, nodes.Slice,
    nodes.Sub, nodes.TemplateData, nodes.Test, nodes.Tuple,
)  # fmt: skip
"""A template with any other node, such as an include or an extension's, is not looked into."""


@dataclass(frozen=True)
class TurnsTemplate:
    """A template that writes message after message."""

    template: Template
    """Writes what the original writes, and `mark` before each message and before the tail."""
    mark: str
    tails: Mapping[bool, str]
    """The tail that asks for an answer, and the one that doesn't."""


def turns_template(environment: Environment, source: str, variables: Mapping[str, Any]) -> TurnsTemplate | None:
    """Return the marked template; None where it isn't certain that one rendering holds those of all beginnings."""
    tree = environment.parse(source)
    loops = [(at, node) for at, node in enumerate(tree.body) if isinstance(node, nodes.For)]
    loops = [(at, loop) for at, loop in loops if isinstance(loop.iter, nodes.Name) and loop.iter.name == "messages"]
    if len(loops) != 1:
        return None
    ((at, loop),) = loops
    head, tail = tree.body[:at], tree.body[at + 1 :]
    plain = isinstance(loop.target, nodes.Name) and loop.test is None and not loop.else_ and not loop.recursive
    if not plain or not all(_looks_back(node) for node in [*head, loop.target, *loop.body]):
        return None
    if not _is_fixed(tail, set(_stored([*head, loop]))):
        return None
    # Nobody can write the mark into a message without knowing it.
    mark = f"\0{secrets.token_hex(8)}\0"
    loop.body.insert(0, _data(mark))
    tree.body.insert(at + 1, _data(mark))
    try:
        tails = {
            value: _written(environment, source, at + 1, {**variables, _GENERATION: value}) for value in (True, False)
        }
    except Exception:  # templates raise what they like; whoever renders the conversation reports it
        return None
    tree.set_environment(environment)
    return TurnsTemplate(environment.from_string(tree), mark, tails)


def _written(environment: Environment, source: str, start: int, variables: Mapping[str, Any]) -> str:
    """Return what the statements from `start` on write."""
    tree = environment.parse(source)
    tree.body = tree.body[start:]
    return environment.from_string(tree).render(**variables)


def _looks_back(node: nodes.Node, *, within: bool = False) -> bool:
    """Return whether a part of head or loop depends on nothing but the messages so far; `within` a loop of its own."""
    match node:
        case nodes.Getitem(node=nodes.Name(name="messages"), arg=nodes.Const(value=0)):
            return True  # there is always a first one
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute) if not within and attribute in _SO_FAR:
            return True
        case nodes.Name():
            forbidden = node.name in _CHANGING or node.name in (_GENERATION, "messages")
            return not forbidden and (within or node.name != "loop")
        case nodes.Filter(name="random"):
            return False
        case nodes.For():
            inner = [node.target, *node.body, *node.else_, *([node.test] if node.test else [])]
            return (
                not node.recursive
                and _looks_back(node.iter, within=within)
                and all(_looks_back(each, within=True) for each in inner)
            )
        case _:
            return isinstance(node, _KNOWN) and all(
                _looks_back(child, within=within) for child in node.iter_child_nodes()
            )


def _is_fixed(tail: Sequence[nodes.Node], stored: set[str]) -> bool:
    """Return whether the tail depends on nothing but `add_generation_prompt`."""
    changing = stored | _CHANGING | {"messages", "tools", "loop"}
    every = [each for node in tail for each in (node, *node.find_all(nodes.Node))]
    names = {each.name for each in every if isinstance(each, nodes.Name | nodes.NSRef)}
    random = any(isinstance(each, nodes.Filter) and each.name == "random" for each in every)
    return not random and not names & changing and all(isinstance(each, _KNOWN) for each in every)


def _stored(body: Sequence[nodes.Node]) -> Iterator[str]:
    """Yield the names that are given a value anywhere in there."""
    for node in body:
        for each in (node, *node.find_all((nodes.Name, nodes.Macro))):
            if isinstance(each, nodes.Macro) or (isinstance(each, nodes.Name) and each.ctx != "load"):
                yield each.name


def _data(text: str) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(text, lineno=1)], lineno=1)
