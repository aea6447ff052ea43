"""Flink SQL's interval join: a closed form, and a replay row by row where there is none."""
