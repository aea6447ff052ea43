"""Shows pipeline files that do not validate as an import error of Airflow.

Airflow stops every DAG of a file that has an import error, so it must not be the file of the healthy pipelines' DAGs.
"""

from __future__ import annotations

from tidemark_project import pipelines

from tidemark.errors import PipelineFileError

_, errors = pipelines()
if errors:
    raise PipelineFileError("\n".join(errors))
