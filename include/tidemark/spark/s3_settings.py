"""Object stores as Spark is told of them: by the same variables as delta-rs, so that both see one lake."""

from __future__ import annotations

import os


def get_s3_settings() -> dict[str, str]:
    """Where S3 is, by the environment's `AWS_...`; keys Spark takes from there by itself, and hands to executors.

    Nothing where they name no address: then it is Amazon's own, and Hadoop finds it.
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
