"""Win back what pruning lost: BatchNorm statistics, layer-wise reconstruction, distillation, low-rank adapters."""
