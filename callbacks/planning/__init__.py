"""Planning of surgeries: the planning functions on the network of a fit."""
