"""Logs of a fit."""
