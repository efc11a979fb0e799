"""Benchmarks for a GPU that is there for minutes: boxed in time, resumable row by row, rehearsed on a CPU."""
