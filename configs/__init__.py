"""YAML recipes, found by name: `prunerecover fit --config digits_vit_depth`."""
