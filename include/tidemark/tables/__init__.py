"""Change the files of a pipeline's Delta tables by reference."""
