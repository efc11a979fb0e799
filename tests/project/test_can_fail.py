"""Tests that cannot fail, found by AST: values compared with themselves, constants, tests without assertions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from cases.paths import ROOT

EQUALITY = {"equal", "allclose", "isclose", "assert_close", "assert_same", "array_equal", "approx"}
CHECKS = {"raises", "warns", "fail", "deprecated_call"}
ALWAYS_TRUE = (ast.Constant, ast.Tuple, ast.JoinedStr, ast.Lambda, ast.GeneratorExp)

Function = ast.FunctionDef | ast.ClassDef


@cache
def trees() -> dict[str, ast.Module]:
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def called(call: ast.Call) -> str:
    """Return the name of a called function, without the modules or objects before the dot."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


@cache
def calls(node: ast.AST) -> set[str]:
    return {called(found) for found in ast.walk(node) if isinstance(found, ast.Call)}


@cache
def checks(node: ast.AST) -> bool:
    """Whether a function asserts, or expects an error or a warning, in its own lines."""
    names = calls(node)
    asserts = any(isinstance(found, ast.Assert) for found in ast.walk(node))
    return asserts or bool(names & CHECKS) or any(name.startswith("assert") for name in names)


def checking(functions: Iterable[Function]) -> set[str]:
    """Return the names of the functions with checks, their own or those of called functions."""
    names = [(function.name, calls(function)) for function in functions]
    found = {function.name for function in functions if checks(function)}
    while new := {name for name, inner in names if name not in found and inner & found}:
        found |= new
    return found


def same(left: ast.expr, right: ast.expr) -> bool:
    return ast.dump(left) == ast.dump(right)


def slips(tree: ast.Module, helpers: set[str]) -> Iterator[str]:
    """Yield each check that cannot fail, as line and source; `helpers` are functions with checks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            failing = not any(same(*pair) for pair in zip(sides, sides[1:], strict=False))
        elif isinstance(node, ast.Call) and called(node) in EQUALITY and len(node.args) > 1:
            failing = not same(*node.args[:2])
        elif isinstance(node, ast.Assert):
            failing = not isinstance(node.test, ALWAYS_TRUE)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            fixtures = {argument.arg for argument in node.args.args}
            failing = checks(node) or bool((calls(node) | fixtures) & helpers)
        else:
            continue
        if not failing:
            yield f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}"


def test_every_test_can_fail() -> None:
    nodes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, Function)]
    helpers = checking(nodes)
    found = {name: [*slips(tree, helpers)] for name, tree in trees().items()}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source",
    [
        "assert f(x) == f(x)",
        "assert 0 < x < x",
        "assert torch.equal(state[p]['exp_avg'], state[p]['exp_avg'])",
        "assert True",
        "assert (x == 1, 'message')",
        "assert (x for x in found)",
        "def test_runs():\n    run()",
    ],
)
def test_what_cannot_fail_is_found(source: str) -> None:
    assert len([*slips(ast.parse(source), set())]) == 1


@pytest.mark.parametrize(
    "source",
    [
        "assert f(x) == f(y)",
        "def test_raises():\n    with pytest.raises(ValueError, match='x'):\n        run()",
        "def test_by_a_helper():\n    resumed_equals_uninterrupted()",
        "def test_by_a_fixture(resumed_equals_uninterrupted):\n    run()",
    ],
)
def test_what_can_fail_is_left_alone(source: str) -> None:
    assert not [*slips(ast.parse(source), {"resumed_equals_uninterrupted"})]
