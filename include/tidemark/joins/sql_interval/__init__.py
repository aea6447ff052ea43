"""Flink SQL's interval join in closed form, and a row-by-row replay of lanes without one."""
