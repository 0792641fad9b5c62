"""Prints the protocol as PyPI's tritonclient declares it, as one JSON object.

``messages``: by full name, the fields, each [number, name, type, label, type name,
oneof]; ``enums``: by full name, the values by name; ``methods``: by name, [request,
response, client streams, server streams]. Types and labels are the names of
descriptor.proto in lower case, without their prefix.
"""

import json
import sys

from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

Field = descriptor_pb2.FieldDescriptorProto
TYPES = {v.number: v.name.removeprefix("TYPE_").lower() for v in Field.Type.DESCRIPTOR.values}
LABELS = {v.number: v.name.removeprefix("LABEL_").lower() for v in Field.Label.DESCRIPTOR.values}


def main():
    messages, enums, methods = {}, {}, {}

    def message(prefix, m):
        name = f"{prefix}.{m.name}"
        messages[name] = sorted(
            [
                f.number,
                f.name,
                TYPES[f.type],
                LABELS[f.label],
                f.type_name.lstrip("."),
                m.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else "",
            ]
            for f in m.field
        )
        for nested in m.nested_type:
            message(name, nested)
        for nested in m.enum_type:
            enum(name, nested)

    def enum(prefix, e):
        enums[f"{prefix}.{e.name}"] = {v.name: v.number for v in e.value}

    for module in (model_config_pb2, service_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for m in file.message_type:
            message(file.package, m)
        for e in file.enum_type:
            enum(file.package, e)
        for service in file.service:
            for m in service.method:
                types = [m.input_type.lstrip("."), m.output_type.lstrip(".")]
                methods[m.name] = [*types, m.client_streaming, m.server_streaming]
    json.dump({"messages": messages, "enums": enums, "methods": methods}, sys.stdout)


if __name__ == "__main__":
    main()
