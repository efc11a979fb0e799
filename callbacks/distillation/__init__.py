"""Teacher and student of `DistillRecover`."""
