"""Measurements behind the project's claims: each module writes a page in `docs/results`.

python -m benchmarks.end_to_end.quickstart
"""
