"""What comes after surgery: statistics, reconstruction and training on."""
