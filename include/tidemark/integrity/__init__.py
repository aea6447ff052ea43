"""Check that ledger, tables and files agree, and repair them."""
