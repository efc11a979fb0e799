"""Whole runs: the quickstart, kills and resumes."""
