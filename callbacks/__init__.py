"""Lightning callbacks over the engine."""

from prunerecover.callbacks.depth_prune import DepthPrune
from prunerecover.callbacks.distill_recover import DistillRecover
from prunerecover.callbacks.lora_recover import LoRARecover
from prunerecover.callbacks.prune import Prune
from prunerecover.callbacks.prune_report import PruneReport
from prunerecover.callbacks.recovery_schedule import RecoverySchedule
from prunerecover.callbacks.routed_lora_recover import RoutedLoRARecover
from prunerecover.callbacks.schedules.schedule import PruneSchedule
from prunerecover.callbacks.width_prune import WidthPrune

__all__ = [
    "DepthPrune",
    "DistillRecover",
    "LoRARecover",
    "Prune",
    "PruneReport",
    "PruneSchedule",
    "RecoverySchedule",
    "RoutedLoRARecover",
    "WidthPrune",
]
