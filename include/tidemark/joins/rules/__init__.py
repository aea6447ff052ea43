"""Rules of each engine: what is late, how long rows stay, and what matches."""
