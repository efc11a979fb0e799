"""Schedules of surgeries: a budget in one or several surgeries, or steps until a metric falls."""
