"""Constructors of the libraries whose models are built again from plain data, one file per library."""
