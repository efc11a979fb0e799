"""One ledger per LightningModule: what was done to it, kept in checkpoints and replayed on load."""
