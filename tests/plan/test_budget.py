"""Budgets: what they say of kinds and shares, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from prunerecover.plan.budget import Budget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of remove, ratio, macs, params, latency, but got none"),
        ({"macs": 0.1, "params": 0.1}, r"but got \['macs', 'params'\]"),
        ({"remove": {"attn": 1}}, "Expected kinds among .*, but got 'attn'"),
        ({"remove": {"attention": 1.5}}, "a whole number of units >= 0 for 'attention', but got 1.5"),
        ({"remove": {"attention": True}}, "but got True"),
        ({"ratio": {"attention": 1.0}}, r"a removed share between 0 and 1 \(exclusive\), but got 1.0"),
        ({"macs": -0.1}, "but got -0.1"),
    ],
)
def test_bad_budget_is_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**arguments)


def test_share_of_cost_has_no_count() -> None:
    with pytest.raises(TypeError, match="a budget in units, but got one in a share of cost"):
        Budget(latency=0.2).counts({})


def test_budget_tells_kinds_and_share() -> None:
    assert Budget(remove={"mlp": 1}).kinds(("block", "mlp")) == ("mlp",)
    assert Budget(ratio={"block": 0.5}).counts({"block": 5}) == {"block": 2}
    assert Budget(macs=0.2).kinds(("block", "mlp")) == ("block", "mlp")
    assert Budget(params=0.2).share == ("params", 0.2)
    assert Budget(remove={"mlp": 1}).share is None
    assert Budget(remove={"mlp": 1}).to_dict() == {"remove": {"mlp": 1}}
