"""Put histogate on SageMaker, and take it away again.

    deploy.py model NAME ...      register image and checkpoints as a model
    deploy.py endpoint NAME ...   serve a model: endpoint configuration, endpoint, autoscaling
    deploy.py transform NAME ...  run a model over records in S3, a JSON object a line
    deploy.py delete NAME ...     remove an endpoint and all that belongs to it

Each prints the calls that it makes. With --dry-run none is sent, but each is checked as
boto3 checks it before it sends one; no credentials are needed for that. Needs boto3.
"""

import argparse
import json
import re
import sys

import boto3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

VARIANT = "AllTraffic"
SCALED = "sagemaker:variant:DesiredInstanceCount"


class Account:
    """The services that are called, or a rehearsal of it."""

    def __init__(self, region, dry_run):
        self.dry_run = dry_run
        self.clients = {
            name: boto3.client(name, region_name=region) for name in ("sagemaker", "application-autoscaling")
        }
        if dry_run:
            # Runs when a request was checked and written, in the place of sending it.
            for client in self.clients.values():
                client.meta.events.register("before-call", lambda **_: (AWSResponse(None, 200, {}, None), {}))

    def call(self, service, operation, **parameters):
        """Make one call, and print it first."""
        print(json.dumps({"service": service, "operation": operation, "parameters": parameters}), flush=True)
        return getattr(self.clients[service], operation)(**parameters)

    def remove(self, service, operation, **parameters):
        """Make a call that removes something, which may be gone already."""
        try:
            self.call(service, operation, **parameters)
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            if code != "ObjectNotFoundException" and not (
                code == "ValidationException" and "Could not find" in message
            ):
                raise
            print(f"already gone: {message}", file=sys.stderr)

    def wait(self, name, **parameters):
        """Wait for a state of SageMaker's."""
        print(json.dumps({"wait": name, "parameters": parameters}), flush=True)
        if not self.dry_run:
            self.clients["sagemaker"].get_waiter(name).wait(**parameters)


def create_model(account, options):
    """Register the image and the checkpoints; the container gets no network."""
    container = {"Image": options.image, "Environment": dict(options.env)}
    if options.model_data.endswith("/"):  # a folder, copied as it is: no archive of many GB to make and to unpack
        source = {"S3Uri": options.model_data, "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}
    else:
        container["ModelDataUrl"] = options.model_data
    account.call(
        "sagemaker",
        "create_model",
        ModelName=options.name,
        ExecutionRoleArn=options.role,
        PrimaryContainer=container,
        EnableNetworkIsolation=True,
    )


def create_endpoint(account, options):
    """Serve a model on --min to --max instances, by the requests that are in flight."""
    account.call(
        "sagemaker",
        "create_endpoint_config",
        EndpointConfigName=options.name,
        ProductionVariants=[
            {
                "VariantName": VARIANT,
                "ModelName": options.model,
                "InstanceType": options.instance_type,
                "InitialInstanceCount": options.min,
                "ModelDataDownloadTimeoutInSeconds": options.start_timeout,
                "ContainerStartupHealthCheckTimeoutInSeconds": options.start_timeout,
            }
        ],
    )
    account.call("sagemaker", "create_endpoint", EndpointName=options.name, EndpointConfigName=options.name)
    account.wait("endpoint_in_service", EndpointName=options.name)
    target = scalable_target(options.name)
    account.call(
        "application-autoscaling",
        "register_scalable_target",
        **target,
        MinCapacity=options.min,
        MaxCapacity=options.max,
    )
    account.call(
        "application-autoscaling",
        "put_scaling_policy",
        PolicyName=f"{options.name}-in-flight",
        **target,
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={
            "TargetValue": options.in_flight,
            "PredefinedMetricSpecification": {
                "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
            },
            "ScaleOutCooldown": 60,
            "ScaleInCooldown": 900,
        },
    )


def transform(account, options):
    """Run a model over every line of the objects under --input.

    How many requests at once, and how large, the container says itself
    (/execution-parameters); a failed one is sent again, as a 503 asks for.
    """
    account.call(
        "sagemaker",
        "create_transform_job",
        TransformJobName=options.name,
        ModelName=options.model,
        BatchStrategy="SingleRecord",
        ModelClientConfig={"InvocationsTimeoutInSeconds": 60, "InvocationsMaxRetries": 3},
        TransformInput={
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": options.input}},
            "ContentType": "application/json",
            "SplitType": "Line",
        },
        TransformOutput={"S3OutputPath": options.output, "Accept": "application/json", "AssembleWith": "Line"},
        TransformResources={"InstanceType": options.instance_type, "InstanceCount": options.instances},
    )
    account.wait("transform_job_completed_or_stopped", TransformJobName=options.name)


def delete(account, options):
    """Remove an endpoint, its autoscaling and configuration, and with --model the model."""
    account.remove("application-autoscaling", "deregister_scalable_target", **scalable_target(options.name))
    account.remove("sagemaker", "delete_endpoint", EndpointName=options.name)
    account.wait("endpoint_deleted", EndpointName=options.name)
    account.remove("sagemaker", "delete_endpoint_config", EndpointConfigName=options.name)
    if options.model:
        account.remove("sagemaker", "delete_model", ModelName=options.model)


def scalable_target(endpoint):
    """What application-autoscaling calls the endpoint's instances."""
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{endpoint}/variant/{VARIANT}",
        "ScalableDimension": SCALED,
    }


def matching(pattern, says):
    """Return what takes a text that matches a pattern, and says what it must be otherwise."""

    def take(text):
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(says)
        return text

    return take


name = matching(
    r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
    "must be letters, digits and hyphens, 63 at most, with no hyphen at the ends",
)
s3 = matching(r"s3://[^/]+/.+", "must be s3://BUCKET/KEY")
region = matching(r"[a-z0-9]+(-[a-z0-9]+)+", "must be the name of a region, such as eu-west-1")


def model_data(text):
    """The address in S3 of what becomes the model folder."""
    if not s3(text).endswith(("/", ".tar.gz")):
        raise argparse.ArgumentTypeError("must be a folder, with a / at its end, or a .tar.gz")
    return text


def variable(text):
    """A setting for the container."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("must be NAME=VALUE")
    return key, value


def positive(text):
    """A number of things of which there is one at least."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)


def parse(arguments):
    """Read the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("name", type=name, metavar="NAME")
    common.add_argument("--region", type=region, required=True)
    common.add_argument("--dry-run", action="store_true", help="print and check the calls, send none")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(word, run):
        sub = commands.add_parser(word, parents=[common], help=run.__doc__.splitlines()[0], description=run.__doc__)
        sub.set_defaults(run=run)
        return sub

    sub = command("model", create_model)
    sub.add_argument("--image", required=True, help="the image of Dockerfile, in ECR")
    sub.add_argument("--role", required=True, help="ARN of the role that may read image and checkpoints")
    sub.add_argument(
        "--model-data",
        type=model_data,
        required=True,
        help="what becomes /opt/ml/model: a folder (with a / at its end) or a .tar.gz",
    )
    sub.add_argument(
        "--env", type=variable, action="append", default=[], metavar="NAME=VALUE", help="a setting of the gateway"
    )

    sub = command("endpoint", create_endpoint)
    sub.add_argument("--model", type=name, required=True)
    sub.add_argument("--instance-type", required=True, help="such as ml.g5.xlarge")
    sub.add_argument("--min", type=positive, default=1, help="instances at the start and at least (1)")
    sub.add_argument("--max", type=positive, default=4, help="instances at most (4)")
    sub.add_argument(
        "--in-flight", type=positive, default=192, help="requests at once that an instance is to have (192)"
    )
    sub.add_argument(
        "--start-timeout",
        type=positive,
        default=1800,
        help="seconds for the checkpoints to be copied, and to load (1800)",
    )

    sub = command("transform", transform)
    sub.add_argument("--model", type=name, required=True)
    sub.add_argument("--instance-type", required=True)
    sub.add_argument("--instances", type=positive, default=1)
    sub.add_argument("--input", type=s3, required=True, help="objects whose lines are bodies of /invocations")
    sub.add_argument("--output", type=s3, required=True, help="where NAME-OF-OBJECT.out is put for each")

    sub = command("delete", delete)
    sub.add_argument("--model", type=name, help="the model, where it is to go too")
    options = parser.parse_args(arguments)
    if options.run is create_endpoint and options.max < options.min:
        parser.error(f"--max {options.max} is less than --min {options.min}")
    return options


def main(arguments):
    """Do what the command line says; return the exit code."""
    options = parse(arguments)
    try:
        options.run(Account(options.region, options.dry_run), options)
    except WaiterError as error:
        print(f"{error}; its log is in CloudWatch under /aws/sagemaker", file=sys.stderr)
        return 1
    except (BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
