"""Configure Spark's S3 access by the environment variables of delta-rs, so that both read the same store."""

from __future__ import annotations

import os


def get_s3_settings() -> dict[str, str]:
    """Return endpoint and region from the environment variables `AWS_...`.

    By default, Hadoop uses Amazon's endpoint. Spark itself reads the keys and passes them to executors.
    """
    settings = {}
    if address := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        settings["fs.s3a.endpoint"] = address
        settings["fs.s3a.connection.ssl.enabled"] = str(address.startswith("https:")).lower()
        hosted = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false").lower() == "true"
        settings["fs.s3a.path.style.access"] = str(not hosted).lower()
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        settings["fs.s3a.endpoint.region"] = region
    return {f"spark.hadoop.{name}": value for name, value in settings.items()}
