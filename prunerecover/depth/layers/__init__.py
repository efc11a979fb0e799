"""Removal of single layers: coupled operations, matching widths, and replacements."""
