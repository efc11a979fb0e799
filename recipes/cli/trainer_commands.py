"""Commands that run a recipe on a trainer, and their help beside the options."""

from __future__ import annotations

TRAINER_COMMANDS = {
    "fit": "train a recipe; its callbacks prune, recover and report",
    "validate": "evaluate on the validation split",
    "test": "evaluate on the test split, also from a pruned checkpoint (--ckpt_path)",
    "predict": "predict the test split",
    "plan": "choose the units to remove and write the plan; the model stays unchanged",
}
CALLBACK_HELP = """\
A callback of the recipe is addressed by its name: --trainer.callbacks.DepthPrune.remove '{"attention": 1}' or, of
two, --trainer.callbacks.DepthPrune.1.schedule 5. One more:
--trainer.callbacks+=LoRARecover --trainer.callbacks.rank 8"""
