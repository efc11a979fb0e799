"""Recovery after pruning: BatchNorm statistics, layer-wise reconstruction, distillation, low-rank adapters."""
