"""Names of single calls in a module's own forward, for example "relu:1" or "add:0[1]".

Two rules, both in the order of execution and counted from 0 for each name:

- The name of a call of a child is the child's path in the module: "act:0", "blocks.2:0". Of several paths of a child,
  the first in `named_modules` counts.
- The name of an operation on tensors is the name in ATen, without underscores around: `F.relu6` is "hardtanh", `x += y`
  is "add", `torch.concat` is "cat", `F.softmax` is "softmax". Where the module has a child at the same path, the name
  means the child, and the operation is "aten.relu:0"; the name with "aten." always works. Arithmetic on sizes is no
  call.

The number of an operand of an addition, a multiplication or a concatenation follows in brackets. An observer of a run
with a `TorchDispatchMode` finds the names without a trace: by the innermost module around an operation, and by the
number of earlier operations of the same name there. Not covered: operations that ATen runs in parts that depend on the
device (attention, `rms_norm`, dropout in training): each counts as one call, by its Python name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

ATEN = "aten."
# Python names of operations with another name in ATen.
ALIASES = {
    **{"iadd": "add", "imul": "mul", "isub": "sub", "itruediv": "div", "ipow": "pow", "imatmul": "matmul"},
    **{"multiply": "mul", "subtract": "sub", "truediv": "div", "divide": "div", "true_divide": "div"},
    **{"concat": "cat", "concatenate": "cat", "hstack": "cat", "vstack": "cat", "relu6": "hardtanh", "selu": "elu"},
    **{"prelu": "prelu_kernel", "log_sigmoid": "log_sigmoid_forward", "rrelu": "rrelu_with_noise"},
    **{"absolute": "abs", "negative": "neg", "clip": "clamp", "square": "pow"},
}
# Operations that ATen runs in parts, the same on all devices.
PARTS = {"softsign": ("abs", "add", "div"), "tanhshrink": ("tanh", "sub"), "rtruediv": ("reciprocal", "mul")}
NO_CALLS = ("getattr", "getitem", "setitem", "assert")
SIZES = frozenset({"size", "dim", "numel", "stride", "ndimension", "nelement", "item", "is_contiguous"})
FACTS = frozenset({"shape", "ndim", "device", "dtype", "layout", "is_cuda", "requires_grad"})
ARITHMETIC = ("_operator", "operator", "math", "builtins")


def named_calls(graph: fx.Graph, module: nn.Module) -> dict[str, fx.Node]:
    """Return the calls of a module's own forward by name, in the order of execution.

    Args:
        graph: Graph of the forward.
        module: Module of the graph.
    """
    children = {path for path, _ in module.named_modules()}
    counts: Counter[str] = Counter()
    numbers = numbers_in(graph)
    found: dict[str, fx.Node] = {}
    for node in graph.nodes:
        if node in numbers:
            continue
        if node.op == "call_module":
            found[f"{node.target}:{counts[node.target]}"] = node
            counts[node.target] += 1
        elif node.op in ("call_function", "call_method"):
            name = operation_of(node)
            if name in PARTS:
                counts.update(f"{ATEN}{part}" for part in PARTS[name])
            elif name not in NO_CALLS:
                key = f"{ATEN}{name}"
                found[f"{key if name in children else name}:{counts[key]}"] = node
                counts[key] += 1
    return found


def operation_of(node: fx.Node) -> str:
    """Return the ATen name of a node's operation, without underscores around."""
    target: Any = node.target
    name = (target if isinstance(target, str) else getattr(target, "__name__", str(target))).strip("_")
    name = ALIASES.get(name, name)
    reflected = name in ("sub", "div") and bool(node.args) and not isinstance(node.args[0], fx.Node)
    return {"sub": "rsub", "div": "rtruediv"}[name] if reflected else name


def find_call(named: Mapping[str, fx.Node], call: str, where: str) -> fx.Node:
    """Return the node of a call, named without an operand.

    Args:
        named: Calls by name, from `named_calls`.
        call: Name, for example "relu:1".
        where: Name of the module in messages.

    Raises:
        ValueError: If the forward lacks the call.
    """
    bare = call.removeprefix(ATEN)
    node = named.get(call) or named.get(bare)
    if node is None or (call not in named and node.op == "call_module"):
        raise ValueError(
            f"Expected a call that the forward of {where} makes ({', '.join(named) or 'it makes none'}), but got "
            f"'{call}'. Was the plan made for another model, or the call taken out before?"
        )
    return node


def numbers_in(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes of sizes and similar facts about tensors, and of values computed from facts alone."""
    numbers: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_number(node, numbers):
            numbers.add(node)
    return numbers


def _is_number(node: fx.Node, numbers: set[fx.Node]) -> bool:
    if node.op == "call_method":
        return node.target in SIZES
    if node.op != "call_function":
        return False
    function: Any = node.target
    if function is getattr:
        return node.args[1] in FACTS
    inputs = node.all_input_nodes
    return bool(inputs) and numbers.issuperset(inputs) and function.__module__ in ARITHMETIC
