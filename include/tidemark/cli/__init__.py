"""The command `tidemark`: its commands, how their answers look on a terminal, and how far a run has come."""

from tidemark.cli.app import main

__all__ = ["main"]
