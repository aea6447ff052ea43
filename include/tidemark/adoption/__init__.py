"""Take over the output of another system: run the state at an instant, compare, and commit it."""
