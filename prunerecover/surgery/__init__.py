"""The only code that changes the structure of a network, and how its changes are taken back."""
