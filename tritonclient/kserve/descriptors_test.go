package kserve_test

import (
	"cmp"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"histogate/tritonclient/kserve"
)

// field is one field of a message, comparable with what the reference prints.
type field struct {
	number      int32
	name        string
	kind, label string
	typeName    string
	oneof       string
}

// leftOut are fields of the reference that are not declared, on purpose.
var leftOut = map[string][]string{
	"inference.ModelConfig": {"sequence_batching", "ensemble_scheduling", "model_operations"},
}

// The protocol was written down from a table; here every message, field number,
// type, enum value and method is held against the descriptors of PyPI's
// tritonclient.
func TestProtocolAgreesWithThePublishedClient(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(root, "build/tools/bin/python"), filepath.Join(root, "tests/reference/descriptors.py")).Output()
	if err != nil {
		t.Fatalf("the reference did not run (deploy/setup makes its environment): %v", err)
	}
	var reference struct {
		Messages map[string][][6]any
		Enums    map[string]map[string]int32
		Methods  map[string][4]any
	}
	if err := json.Unmarshal(out, &reference); err != nil {
		t.Fatal(err)
	}

	messages, enums, methods := 0, 0, 0
	for _, file := range []protoreflect.FileDescriptor{kserve.File_grpc_service_proto, kserve.File_model_config_proto} {
		proto := protodesc.ToFileDescriptorProto(file)
		var visit func(prefix string, m *descriptorpb.DescriptorProto)
		enum := func(prefix string, e *descriptorpb.EnumDescriptorProto) {
			enums++
			got := map[string]int32{}
			for _, v := range e.Value {
				got[v.GetName()] = v.GetNumber()
			}
			if name := prefix + "." + e.GetName(); !reflect.DeepEqual(got, reference.Enums[name]) {
				t.Errorf("enum %s is %v, the reference has %v", name, got, reference.Enums[name])
			}
		}
		visit = func(prefix string, m *descriptorpb.DescriptorProto) {
			messages++
			name := prefix + "." + m.GetName()
			wantFields, ok := reference.Messages[name]
			if !ok {
				t.Errorf("the reference has no message %s", name)
			}
			var got, want []field
			for _, f := range m.Field {
				g := field{f.GetNumber(), f.GetName(), lower(f.GetType().String(), "TYPE_"), lower(f.GetLabel().String(), "LABEL_"), strings.TrimPrefix(f.GetTypeName(), "."), ""}
				if f.OneofIndex != nil {
					g.oneof = m.OneofDecl[*f.OneofIndex].GetName()
				}
				got = append(got, g)
			}
			for _, f := range wantFields {
				if w := (field{int32(f[0].(float64)), f[1].(string), f[2].(string), f[3].(string), f[4].(string), f[5].(string)}); !slices.Contains(leftOut[name], w.name) {
					want = append(want, w)
				}
			}
			slices.SortFunc(got, func(a, b field) int { return cmp.Compare(a.number, b.number) })
			if !slices.Equal(got, want) {
				t.Errorf("message %s is\n%v\nthe reference has\n%v", name, got, want)
			}
			for _, nested := range m.NestedType {
				visit(name, nested)
			}
			for _, nested := range m.EnumType {
				enum(name, nested)
			}
		}
		for _, m := range proto.MessageType {
			visit(proto.GetPackage(), m)
		}
		for _, e := range proto.EnumType {
			enum(proto.GetPackage(), e)
		}
		for _, s := range proto.Service {
			for _, m := range s.Method {
				methods++
				got := [4]any{strings.TrimPrefix(m.GetInputType(), "."), strings.TrimPrefix(m.GetOutputType(), "."), m.GetClientStreaming(), m.GetServerStreaming()}
				if got != reference.Methods[m.GetName()] {
					t.Errorf("method %s is %v, the reference has %v", m.GetName(), got, reference.Methods[m.GetName()])
				}
			}
		}
	}
	if messages < 70 || enums < 5 || methods != 15 {
		t.Errorf("only %d messages, %d enums and %d methods were compared", messages, enums, methods)
	}
}

func lower(s, prefix string) string { return strings.ToLower(strings.TrimPrefix(s, prefix)) }
