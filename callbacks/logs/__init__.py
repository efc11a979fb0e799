"""Logs of a fit, and the report in loggers."""
