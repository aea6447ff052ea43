"""Record committed slices: the ledger's commit is the commit of the pipeline."""
