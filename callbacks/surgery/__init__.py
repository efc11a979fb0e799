"""Surgery inside a Trainer: the module, its optimizers, averaged copies and wrapper change together."""
