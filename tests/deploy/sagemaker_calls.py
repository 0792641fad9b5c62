"""Holds deploy/sagemaker/deploy.py against botocore's description of the two services."""

import contextlib
import io
import itertools
import json
import pathlib
import sys
import unittest
from unittest import mock

from botocore.exceptions import NoCredentialsError
from botocore.stub import Stubber

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "deploy" / "sagemaker"))
import deploy

ARN = "arn:aws:sagemaker:eu-west-1:111122223333:thing/x"
ROLE = "arn:aws:iam::111122223333:role/r"
TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/e/variant/AllTraffic",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
MODEL = ["model", "m", "--region", "eu-west-1", "--image", "i:1", "--role", ROLE, "--model-data"]
ENDPOINT = ["endpoint", "e", "--region", "eu-west-1", "--model", "m", "--instance-type", "ml.g5.xlarge"]
TRANSFORM = ["transform", "t", "--region", "eu-west-1", "--model", "m", "--instance-type", "ml.g5.xlarge"]
TRANSFORM += ["--input", "s3://b/in/", "--output", "s3://b/out/"]
DELETE = ["delete", "e", "--region", "eu-west-1"]


class Calls(unittest.TestCase):
    """Each command makes the calls that are expected, in their order, and no others."""

    def run_with(self, arguments, expected, code=0):
        """Run a command; expected are (operation, parameters, response or error code)."""
        made = []
        account = deploy.Account("eu-west-1", dry_run=False)
        stubs = {}
        for service, client in account.clients.items():
            stubs[service] = Stubber(client)
            stubs[service].activate()
            client.meta.events.register("before-parameter-build", lambda model, **_: made.append(model.name))
        for service, operation, parameters, response in expected:
            if isinstance(response, tuple):
                stubs[service].add_client_error(operation, *response, expected_params=parameters)
            else:
                stubs[service].add_response(operation, response, parameters)
        waits = []
        account.wait = lambda name, **parameters: waits.append((name, parameters))
        output, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(deploy, "Account", lambda *_: account),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            self.assertEqual(deploy.main(arguments), code, errors.getvalue())
        for stub in stubs.values():
            stub.assert_no_pending_responses()
        printed = [json.loads(line) for line in output.getvalue().splitlines()]
        self.assertEqual([line["operation"] for line in printed], [operation for _, operation, _, _ in expected])
        self.assertEqual([name.lower() for name in made], [line["operation"].replace("_", "") for line in printed])
        for line in printed:
            self.check_enums(account.clients[line["service"]], line)
        return waits, errors.getvalue()

    def check_enums(self, client, line):
        """Boto3 itself does not check a value against those that its service knows."""

        def walk(shape, value):
            if shape.type_name == "structure":
                for key, inner in value.items():
                    walk(shape.members[key], inner)
            elif shape.type_name == "list":
                for inner in value:
                    walk(shape.member, inner)
            elif getattr(shape, "enum", None):
                self.assertIn(value, shape.enum, shape.name)

        operation = client.meta.method_to_api_mapping[line["operation"]]
        walk(client.meta.service_model.operation_model(operation).input_shape, line["parameters"])

    def test_model(self):
        """A folder in S3 and an archive are registered, each in its own way."""
        for data, source in (
            (
                "s3://b/m/",
                {
                    "ModelDataSource": {
                        "S3DataSource": {"S3Uri": "s3://b/m/", "S3DataType": "S3Prefix", "CompressionType": "None"}
                    }
                },
            ),
            ("s3://b/m.tar.gz", {"ModelDataUrl": "s3://b/m.tar.gz"}),
        ):
            parameters = {
                "ModelName": "m",
                "ExecutionRoleArn": ROLE,
                "EnableNetworkIsolation": True,
                "PrimaryContainer": {"Image": "i:1", "Environment": {"MODELS": "h1,h0", "A": "b=c"}, **source},
            }
            expected = [("sagemaker", "create_model", parameters, {"ModelArn": ARN})]
            self.run_with([*MODEL, data, "--env", "MODELS=h1,h0", "--env", "A=b=c"], expected)

    def endpoint_calls(self):
        """Return what an endpoint takes."""
        variant = {
            "VariantName": "AllTraffic",
            "ModelName": "m",
            "InstanceType": "ml.g5.xlarge",
            "InitialInstanceCount": 2,
            "ModelDataDownloadTimeoutInSeconds": 900,
            "ContainerStartupHealthCheckTimeoutInSeconds": 900,
        }
        tracking = {
            "TargetValue": 96,
            "PredefinedMetricSpecification": {
                "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
            },
            "ScaleOutCooldown": 60,
            "ScaleInCooldown": 900,
        }
        policy = {
            **TARGET,
            "PolicyName": "e-in-flight",
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": tracking,
        }
        config = {"EndpointConfigName": "e", "ProductionVariants": [variant]}
        limits = {**TARGET, "MinCapacity": 2, "MaxCapacity": 6}
        return [
            ("sagemaker", "create_endpoint_config", config, {"EndpointConfigArn": ARN}),
            ("sagemaker", "create_endpoint", {"EndpointName": "e", "EndpointConfigName": "e"}, {"EndpointArn": ARN}),
            ("application-autoscaling", "register_scalable_target", limits, {}),
            ("application-autoscaling", "put_scaling_policy", policy, {"PolicyARN": ARN, "Alarms": []}),
        ]

    def test_endpoint(self):
        """The autoscaling is set once the endpoint is in service."""
        options = ["--min", "2", "--max", "6", "--in-flight", "96", "--start-timeout", "900"]
        waits, _ = self.run_with([*ENDPOINT, *options], self.endpoint_calls())
        self.assertEqual(waits, [("endpoint_in_service", {"EndpointName": "e"})])

    def test_refused(self):
        """What the service refuses is told, and nothing more is tried."""
        options = ["--min", "2", "--max", "6", "--in-flight", "96", "--start-timeout", "900"]
        service, operation, parameters, _ = self.endpoint_calls()[0]
        refusal = ("ValidationException", "Could not find model m")
        _, errors = self.run_with([*ENDPOINT, *options], [(service, operation, parameters, refusal)], code=1)
        self.assertIn("Could not find model m", errors)

    def test_transform(self):
        """A record a line, one a request."""
        parameters = {
            "TransformJobName": "t",
            "ModelName": "m",
            "BatchStrategy": "SingleRecord",
            "ModelClientConfig": {"InvocationsTimeoutInSeconds": 60, "InvocationsMaxRetries": 3},
            "TransformInput": {
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/in/"}},
                "ContentType": "application/json",
                "SplitType": "Line",
            },
            "TransformOutput": {"S3OutputPath": "s3://b/out/", "Accept": "application/json", "AssembleWith": "Line"},
            "TransformResources": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 3},
        }
        expected = [("sagemaker", "create_transform_job", parameters, {"TransformJobArn": ARN})]
        waits, _ = self.run_with([*TRANSFORM, "--instances", "3"], expected)
        self.assertEqual(waits, [("transform_job_completed_or_stopped", {"TransformJobName": "t"})])

    def delete_calls(self, gone):
        """Return what a removal takes, of things that are there or gone."""
        could_not, no_object = ("ValidationException", "Could not find it"), ("ObjectNotFoundException", "no target")
        return [
            ("application-autoscaling", "deregister_scalable_target", TARGET, no_object if gone else {}),
            ("sagemaker", "delete_endpoint", {"EndpointName": "e"}, could_not if gone else {}),
            ("sagemaker", "delete_endpoint_config", {"EndpointConfigName": "e"}, could_not if gone else {}),
            ("sagemaker", "delete_model", {"ModelName": "m"}, could_not if gone else {}),
        ]

    def test_delete(self):
        """All goes, the model only where it is named; what is gone does not matter."""
        for gone, model in itertools.product((False, True), repeat=2):
            calls = self.delete_calls(gone)
            waits, _ = self.run_with([*DELETE, "--model", "m"] if model else DELETE, calls if model else calls[:3])
            self.assertEqual(waits, [("endpoint_deleted", {"EndpointName": "e"})])

    def test_delete_refused(self):
        """A removal that is refused for another reason ends the command."""
        calls = self.delete_calls(gone=False)[:2]
        calls[1] = (*calls[1][:3], ("ValidationException", "the endpoint is being updated"))
        _, errors = self.run_with(DELETE, calls, code=1)
        self.assertIn("being updated", errors)


class CommandLine(unittest.TestCase):
    """Mistakes are found before anything is sent."""

    def fails(self, arguments, says):
        """Check that a command line is refused."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as end:
            deploy.parse(arguments)
        self.assertEqual(end.exception.code, 2)
        self.assertIn(says, errors.getvalue())

    def test_mistakes(self):
        """Each is named."""
        self.fails(["endpoint", "a_b", *ENDPOINT[2:]], "letters, digits and hyphens")
        self.fails([*MODEL, "bucket/key"], "s3://BUCKET/KEY")
        self.fails([*MODEL, "s3://b/folder"], "a / at its end")
        self.fails(["delete", "e", "--region", ""], "such as eu-west-1")
        self.fails([*MODEL, "s3://b/k/", "--env", "MODELS"], "NAME=VALUE")
        self.fails([*ENDPOINT, "--min", "0"], "at least 1")
        self.fails([*ENDPOINT, "--min", "5"], "--max 4 is less than --min 5")

    def test_dry_run_checks(self):
        """A rehearsal fails where boto3 would refuse to send a request, and sends none."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(deploy.main([*ENDPOINT, "--start-timeout", "1", "--dry-run"]), 1)
        self.assertIn("ModelDataDownloadTimeoutInSeconds", errors.getvalue())

    def test_without_dry_run(self):
        """Otherwise requests are sent, which fails here: there are no credentials."""
        with contextlib.redirect_stdout(io.StringIO()), self.assertRaises(NoCredentialsError):
            account = deploy.Account("eu-west-1", dry_run=False)
            account.call("sagemaker", "delete_model", ModelName="m")


if __name__ == "__main__":
    unittest.main()
