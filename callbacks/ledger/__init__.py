"""One ledger per LightningModule: a record of all surgery, kept in checkpoints and replayed on load."""
