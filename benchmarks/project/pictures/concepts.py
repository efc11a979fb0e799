"""Six pictures of docs/concepts.md: the flow, a block, a group, replacements, the ledger, library and frontier."""

from __future__ import annotations

from benchmarks.project.pictures.drawing import Drawing


def draw_flow() -> Drawing:
    """Return the steps from a network to a smaller one."""
    drawing = Drawing(760, 250, "From a model to a pruned and recovered one, step by step")
    drawing.box(160, 14, 590, 104, fill="band")
    drawing.box(10, 132, 292, 104, fill="band")
    drawing.text(172, 32, "planning: only decides, the model stays as it is", 11, "start", soft=True)
    drawing.text(168, 150, "still planning", 11, "start", soft=True)
    steps = [
        ("model", "yours, trained", "grey"),
        ("sites", "what may go", "blue"),
        ("library", "all variants, scored", "blue"),
        ("program", "one variant per site", "blue"),
        ("refine", "scored again on top", "blue"),
        ("fit", "towards the dense", "blue"),
        ("plan", "edits and tensors", "orange"),
        ("apply", "surgery, in place", "green"),
        ("recover", "train on", "green"),
        ("merge, save", "one linear of two", "green"),
    ]
    for number, (name, about, fill) in enumerate(steps):
        x, y = 16 + 148 * (number % 5), 42 + 118 * (number // 5)
        drawing.box(x, y, 134, 60, f"{name}\n{about}", fill)
        if number % 5:
            drawing.arrow([(x - 14, y + 30), (x - 1, y + 30)])
    drawing.arrow([(675, 102), (675, 126), (83, 126), (83, 159)])
    return drawing


def draw_block() -> Drawing:
    """Return a transformer block with its removable units."""
    drawing = Drawing(
        760, 300, "A transformer block: the block, its attention, its MLP, their heads, neurons and activation may go"
    )
    drawing.box(70, 16, 640, 226, fill="gone")
    drawing.text(82, 34, "block", 12, "start")
    drawing.arrow([(10, 212), (750, 212)])
    drawing.text(14, 204, "x", 12, "start")
    for left, name, inner in (
        (96, "attention", (("norm", "grey"), ("heads, and\ntheir dimensions", "blue"), ("projection", "grey"))),
        (
            396,
            "mlp",
            (("norm", "grey"), ("linear, and\nits neurons", "blue"), ("activation", "orange"), ("linear", "grey")),
        ),
    ):
        width = 260 if name == "attention" else 284
        drawing.box(left, 46, width, 118, fill="green")
        drawing.text(left + 10, 64, name, 12, "start")
        sizes = [44, 112, 74] if name == "attention" else [44, 88, 66, 48]
        x = left + 8
        for (words, fill), size in zip(inner, sizes, strict=True):
            drawing.box(x, 78, size, 70, words, fill, 10.5)
            x += size + 7
        drawing.arrow([(left - 10, 212), (left - 10, 113), (left - 1, 113)])
        drawing.line([(left + width, 113), (left + width + 10, 113)])
        drawing.arrow([(left + width + 10, 113), (left + width + 10, 203)])
        drawing.box(left + width + 1, 203, 18, 18, "+", "plain", 13)
    for number, (fill, words) in enumerate(
        (
            ("green", "branch: goes whole"),
            ("orange", "activation: goes whole"),
            ("blue", "group: some of its units go"),
            ("gone", "block: goes whole"),
        )
    ):
        drawing.box(16 + 186 * number, 262, 18, 18, fill=fill)
        drawing.text(40 + 186 * number, 275, words, 11, "start")
    return drawing


def draw_group() -> Drawing:
    """Return coupled channels of several layers."""
    drawing = Drawing(
        760, 240, "One channel of a residual stream: all layers that make, scale or read it lose it together"
    )
    columns = (
        (20, "conv 0", "makes them"),
        (160, "conv 1, conv 2", "add to them"),
        (300, "BatchNorm", "scales them"),
        (440, "sum", "has them"),
        (580, "conv 3", "reads them"),
    )
    for number, (x, name, about) in enumerate(columns):
        drawing.box(x, 16, 124, 208, fill="band")
        drawing.text(x + 62, 36, name)
        drawing.text(x + 62, 52, about, 11, soft=True)
        for unit in range(5):
            drawing.box(x + 14, 64 + 31 * unit, 96, 23, f"channel {unit}", "gone" if unit == 2 else "blue", 11)
            if number and unit != 2:
                drawing.line([(x - 30, 76 + 31 * unit), (x + 14, 76 + 31 * unit)])
    drawing.text(722, 142, "goes", 12)
    return drawing


def draw_replacements() -> Drawing:
    """Return the replacements of removed units, before and after merging."""
    drawing = Drawing(760, 322, "Replacements of removed units, and what they are after merging")
    for x, words in ((90, "removed"), (330, "replacement, fitted"), (630, "merged")):
        drawing.text(x, 26, words, 12, soft=True)
    rows = (
        ("activation", (("linear", "grey"), ("slope, bias", "green"), ("linear", "grey")), (("one linear", "blue"),)),
        ("attention or MLP", (("affine map, or constant", "green"),), (("stays: one small layer", "green"),)),
        (
            "run of blocks",
            (("linear before", "grey"), ("map", "green")),
            (("the linear before, other values", "blue"),),
        ),
        ("both branches", (("zero", "green"), ("zero", "green")), (("the block is gone", "gone"),)),
    )
    for number, (name, before, after) in enumerate(rows):
        y = 40 + 70 * number
        drawing.box(10, y, 740, 58, fill="band")
        drawing.box(22, y + 11, 136, 36, name, "gone")
        drawing.arrow([(164, y + 29), (188, y + 29)])
        for left, width, parts in ((194, 280, before), (522, 216, after)):
            size = (width - 8 * (len(parts) - 1)) / len(parts)
            for place, (words, fill) in enumerate(parts):
                drawing.box(left + place * (size + 8), y + 11, size, 36, words, fill, 11)
        drawing.arrow([(480, y + 29), (516, y + 29)])
    return drawing


def draw_ledger() -> Drawing:
    """Return the content of a pruned run's checkpoint, and its readers."""
    drawing = Drawing(760, 270, "A Lightning checkpoint with the ledger, and its two readers")
    drawing.box(10, 14, 300, 242, fill="band")
    drawing.text(24, 34, "last.ckpt", 13, "start")
    drawing.box(24, 44, 272, 30, "state_dict: weights of the smaller network", "grey", 11)
    drawing.box(24, 80, 272, 30, "optimizers, schedulers, loops", "grey", 11)
    drawing.box(24, 116, 272, 128, fill="orange")
    drawing.text(36, 134, '"prunerecover": the ledger', 12, "start")
    entries = (
        "plans: all edits, by network",
        "events: each surgery, when and what",
        "adapters, file of the dense teacher",
    )
    for number, words in enumerate((*entries, "random states, places in optimizers")):
        drawing.text(44, 156 + 21 * number, words, 11.5, "start", soft=True)
    readers = (
        (
            14,
            "Trainer with one of the callbacks",
            ("undo the live edits", "replay the plans", "read weights and states", "train on"),
        ),
        (
            144,
            "load_pruned, without Lightning",
            ("build the dense network", "replay the plans", "read the weights", "merge"),
        ),
    )
    for y, title, steps in readers:
        drawing.box(372, y, 378, 112, fill="band")
        drawing.text(386, y + 20, title, 12, "start")
        for number, words in enumerate(steps):
            x, line = 386 + 178 * (number % 2), y + 30 + 40 * (number // 2)
            drawing.box(x, line, 170, 32, f"{number + 1}. {words}", "green", 10.5)
        drawing.arrow([(312, 180), (340, 180), (340, y + 56), (370, y + 56)])
    return drawing


def draw_library() -> Drawing:
    """Return sites with their variants, and the frontier of their plans."""
    drawing = Drawing(
        760, 290, "A library: the variants of each site, one of them chosen; and the frontier of all budgets"
    )
    drawing.text(24, 28, "library: one row per site, one box per variant", 12, "start")
    sites = ("attention 0", "mlp 0", "attention 1", "mlp 1")
    variants = {
        "attention": ("dense", "3 heads", "2 heads", "1 head", "constant"),
        "mlp": ("dense", "3/4", "1/2", "1/4", "affine"),
    }
    chosen = (3, 1, 0, 2)
    for row, (site, pick) in enumerate(zip(sites, chosen, strict=True)):
        y = 50 + 46 * row
        drawing.text(24, y + 20, site, 11.5, "start", soft=True)
        for place, words in enumerate(variants[site.split()[0]]):
            drawing.box(102 + 68 * place, y, 62, 30, words, "orange" if place == pick else "blue", 11)
    drawing.text(24, 252, "Each box: its fit, its divergence alone, and what it saves.", 11, "start", soft=True)
    drawing.text(24, 270, "Orange: the variants that one budget takes.", 11, "start", soft=True)
    left, bottom, right, top = 500, 236, 736, 50
    drawing.text(488, 28, "frontier: one plan per budget", 12, "start")
    drawing.arrow([(left, bottom), (right, bottom)])
    drawing.arrow([(left, bottom), (left, top)])
    drawing.text((left + right) / 2, 256, "share of the cost that goes", 11, soft=True)
    drawing.text(left + 8, 58, "divergence", 11, "start", soft=True)
    spots = [(left + 34 * number, bottom - 8 - 4.2 * number**2) for number in range(1, 7)]
    drawing.line([(left, bottom), *spots])
    for number, (x, y) in enumerate(spots):
        drawing.box(x - 5, y - 5, 10, 10, fill="orange" if number == 3 else "blue")
    return drawing
