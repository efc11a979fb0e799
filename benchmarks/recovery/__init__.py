"""Steps after surgery: statistics, reconstruction and further training."""
