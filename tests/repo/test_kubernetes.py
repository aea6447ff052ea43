"""Tests of the Kubernetes manifest and of spark-submit's API requests that need no cluster."""

import json
import os
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFEST = list(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text()))
RESOURCES = {(resource["kind"], resource["metadata"]["name"]): resource for resource in MANIFEST}
IMAGE = "registry/tidemark@sha256:0123"


def validate(resource):
    kubernetes_validate.validate(resource, "1.37", strict=True)


@pytest.mark.parametrize("resource", MANIFEST, ids=lambda resource: resource["kind"])
def test_kubernetes_manifest_is_valid(resource):
    validate(resource)


def test_kubernetes_schema_rejects_misspelt_field():
    with pytest.raises(kubernetes_validate.ValidationError, match="acessModes"):
        validate({**RESOURCES["PersistentVolumeClaim", "tidemark-lake"], "spec": {"acessModes": []}})


def create_submit_command(server):
    """Run `bin/kubernetes-submit`; return the spark-submit command that it prints."""
    command = [sys.executable, ROOT / "bin/kubernetes-submit", "flights_weather"]
    command += ["--server", server, "--image", IMAGE, "--to", "2013-01-02T00:00Z"]
    return shlex.split(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_kubernetes_submit_names_match_manifest_and_image():
    command = create_submit_command("https://host:6443")

    settings = dict(value.split("=", 1) for option, value in pairwise(command) if option == "--conf")
    assert ("ServiceAccount", settings["spark.kubernetes.authenticate.driver.serviceAccountName"]) in RESOURCES
    assert ("Namespace", settings["spark.kubernetes.namespace"]) in RESOURCES
    for role in ("driver", "executor"):
        claim = f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.lake"
        assert ("PersistentVolumeClaim", settings[f"{claim}.options.claimName"]) in RESOURCES
        assert settings[f"{claim}.mount.path"] == settings["spark.kubernetes.driverEnv.TIDEMARK_LAKE"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "WORKDIR /opt/tidemark\n" in dockerfile
    assert 'ENTRYPOINT ["/opt/tidemark/bin/kubernetes-entrypoint"]' in dockerfile
    for path in ("jobs/run_slices.py", "include/pipelines/flights_weather.yaml"):
        assert any(part.endswith(f"/opt/tidemark/{path}") for part in command)
        assert (ROOT / path).exists()
    assert command[-2:] == ["--to", "2013-01-02T00:00Z"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flights_wether"], "Did you mean flights_weather"),
        (["--to", "2013-01-02T00:00Z", "flights_weather"], "Write the pipeline before all options."),
    ],
)
def test_kubernetes_submit_wrong_pipeline_ends_with_error_line(words, message):
    command = [sys.executable, ROOT / "bin/kubernetes-submit", *words, "--server", "https://host", "--image", IMAGE]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.splitlines()[-1].startswith("kubernetes-submit: ")
    assert message in process.stderr
    assert "Traceback" not in process.stderr


@pytest.fixture
def api():
    """Run a cluster's API that accepts all resources; return its address and the resources."""
    resources = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self):
            resource = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            resources.append(json.loads(json.dumps(resource)))
            resource["metadata"] |= {"uid": "1", "resourceVersion": "1"}
            self.respond(201, resource)

        do_PATCH = do_PUT = do_POST  # noqa: N815

        def do_GET(self):
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self.respond(404, status)

        def respond(self, code, content):
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", resources
    server.shutdown()


@pytest.mark.slow
def test_kubernetes_submit_creates_valid_driver_pod(api):
    server, resources = api
    command = create_submit_command(server)
    command[1:1] = ["--conf", "spark.kubernetes.submission.waitAppCompletion=false"]

    process = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ""})

    assert process.returncode == 0, process.stderr
    for resource in resources:
        validate(resource)
    [pod] = [resource for resource in resources if resource["kind"] == "Pod"]
    assert pod["spec"]["serviceAccountName"] == "tidemark-driver"
    [container] = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["args"][0] == "driver"
    assert "local:///opt/tidemark/jobs/run_slices.py" in container["args"]
    assert container["args"][-2:] == ["--to", "2013-01-02T00:00Z"]
    assert {"name": "TIDEMARK_LAKE", "value": "/opt/tidemark/lake"} in container["env"]
    assert {"mountPath": "/opt/tidemark/lake", "name": "lake"}.items() <= next(
        mount for mount in container["volumeMounts"] if mount["name"] == "lake"
    ).items()
    assert container["resources"]["limits"]["memory"]


def run_entrypoint(tmp_path, *arguments, **variables):
    """Run the image's entry point with fake programs; return the command that it executes."""
    for name in ("java", "spark-submit", "other"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    command = [ROOT / "bin/kubernetes-entrypoint", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_kubernetes_entrypoint_runs_driver_executor_or_command(tmp_path):
    assert run_entrypoint(tmp_path, "other", "a b") == ["other", "a", "b"]

    driver = run_entrypoint(tmp_path, "driver", "--class", "x", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    address = ["--conf", "spark.driver.bindAddress=10.0.0.7"]
    assert driver == ["spark-submit", *address, "--deploy-mode", "client", "--class", "x"]

    names = "DRIVER_URL EXECUTOR_ID EXECUTOR_CORES APPLICATION_ID EXECUTOR_POD_IP RESOURCE_PROFILE_ID EXECUTOR_POD_NAME"
    variables = {f"SPARK_{name}": name.lower() for name in names.split()} | {"SPARK_EXECUTOR_MEMORY": "600m"}
    variables |= {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 9, 0)}
    executor = run_entrypoint(tmp_path, "executor", **variables)
    assert executor[:6] == ["java", "-Dn=0", "-Dn=9", "-Dn=10", "-Xms600m", "-Xmx600m"]
    assert executor[-2:] == ["--podName", "executor_pod_name"]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" in executor
