"""Peaks of memory in separate processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def peaks_of(script: str) -> tuple[int, int]:
    """Return the two peaks printed by a script: `resource.getrusage(resource.RUSAGE_SELF).ru_maxrss`, in KiB."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    first, second = map(int, result.stdout.split()[-2:])
    return first, second
