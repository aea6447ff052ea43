"""Flink SQL's interval join in closed form, and a row-by-row simulation of lanes without one."""
