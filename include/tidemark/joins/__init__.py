"""Joins of the engines as Spark queries; `rules` has the boundary rules of each engine."""
