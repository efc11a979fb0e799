"""Search for the units that go: how much has to go, and which units reach it at the least divergence."""
