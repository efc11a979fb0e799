"""Schedules of surgeries: a budget in one or several, or steps until a metric falls."""
