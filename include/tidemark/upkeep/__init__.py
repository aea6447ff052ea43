"""What maintenance does to a pipeline's folder, what it would gain, and how far back the tables reach then."""
