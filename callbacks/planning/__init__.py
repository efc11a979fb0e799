"""What goes in a surgery: the planning functions on the network of a fit."""
