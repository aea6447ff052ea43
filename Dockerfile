# One image for every service: Airflow and Spark run the same locked packages. By digest: bin/compose-env.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/tidemark
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

COPY requirements.txt jars.sha256 ./
RUN pip install --require-hashes --requirement requirements.txt

COPY bin/fetch-jars bin/
RUN python bin/fetch-jars && rm -rf .cache

COPY pyproject.toml README.md LICENSE ./
COPY include include
COPY jobs jobs
COPY dags dags
COPY bin/archive-classes bin/healthy bin/kubernetes-entrypoint bin/
# The user below cannot write bytecode here, so that each command would compile the package again.
RUN pip install --no-deps --editable . && python -m compileall -q include jobs dags && python bin/archive-classes

# A named volume takes its owner from the folder that it covers.
ENV AIRFLOW_HOME=/opt/airflow
RUN useradd --create-home --uid 50000 tidemark \
    && mkdir --parents lake events "$AIRFLOW_HOME/logs" \
    && chown --recursive tidemark lake events "$AIRFLOW_HOME"
USER tidemark
ENTRYPOINT ["/opt/tidemark/bin/kubernetes-entrypoint"]
