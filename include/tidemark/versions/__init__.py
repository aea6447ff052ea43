"""Build candidate versions of a pipeline, and promote or roll back."""
