"""Replacements of removed units, fitted on unlabelled samples and judged by the output of the whole network."""
