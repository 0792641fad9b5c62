"""Calls a SageMaker endpoint with boto3, the way its users do.

    sagemaker_client.py URL < CALLS

URL stands in for the service. CALLS is a JSON list of objects with the arguments of
``invoke_endpoint``: ``Body`` in base64, and perhaps ``ContentType`` and ``Accept``.
Prints a JSON list with, for each call, ``attempts`` and either ``body`` (base64) and
``content_type``, or ``error``: what the exception that was raised holds, and its class.
"""

import base64
import json
import sys

import boto3
from botocore.exceptions import ClientError


def call(client, arguments):
    """What became of one call."""
    arguments["Body"] = base64.b64decode(arguments["Body"])
    try:
        answer = client.invoke_endpoint(EndpointName="tiles", **arguments)
    except ClientError as error:
        answer = error.response
        told = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
        result = {"error": told | {"class": type(error).__name__}}
    else:
        result = {
            "body": base64.b64encode(answer["Body"].read()).decode(),
            "content_type": answer["ContentType"],
        }
    metadata = answer["ResponseMetadata"]
    return result | {"status": metadata["HTTPStatusCode"], "attempts": 1 + metadata["RetryAttempts"]}


def main():
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=sys.argv[1],
        region_name="eu-west-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",  # noqa: S106 - a signature is wanted, nobody checks it
    )
    json.dump([call(client, arguments) for arguments in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
