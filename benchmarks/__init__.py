"""Measurements of what the project claims: one module, one page in `docs/results`.

python -m benchmarks.end_to_end.quickstart
"""
