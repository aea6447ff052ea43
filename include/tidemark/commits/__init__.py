"""What is committed: the ledger, the tables that it speaks for, and what committed slices say about each other."""
