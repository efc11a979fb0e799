"""What each supported model family calls its parts: the only place that knows architectures."""

from prunerecover.families.describe import SUPPORTED, describe
from prunerecover.families.layout import Block, Branch, FeedForward, Layout

__all__ = ["SUPPORTED", "Block", "Branch", "FeedForward", "Layout", "describe"]
