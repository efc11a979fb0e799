"""Groups of coupled entries, with units that can be removed one by one."""
