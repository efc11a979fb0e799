"""An extension of griffe for mkdocs.yml: examples in docstrings are shown as code, whatever section they are in."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class DoctestsAsCode(griffe.Extension):
    """Puts fences around doctests."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of each function, class and module as it is read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
