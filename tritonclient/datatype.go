package tritonclient

import (
	"strings"

	"histogate/tritonclient/kserve"
)

// Datatype is the type of a tensor's elements as the protocol writes it:
// "FP32", "INT64". A config.pbtxt writes the same types as TYPE_FP32, TYPE_INT64.
type Datatype string

// The datatypes that models behind the gateway take and give.
const (
	Bool    Datatype = "BOOL"
	Uint8   Datatype = "UINT8"
	Uint16  Datatype = "UINT16"
	Uint32  Datatype = "UINT32"
	Uint64  Datatype = "UINT64"
	Int8    Datatype = "INT8"
	Int16   Datatype = "INT16"
	Int32   Datatype = "INT32"
	Int64   Datatype = "INT64"
	Float16 Datatype = "FP16"
	Float32 Datatype = "FP32"
	Float64 Datatype = "FP64"
)

// Size is the number of bytes of one element; 0 for a type without a fixed size
// or one that is not known.
func (d Datatype) Size() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, Float16:
		return 2
	case Uint32, Int32, Float32:
		return 4
	case Uint64, Int64, Float64:
		return 8
	default:
		return 0
	}
}

// DatatypeOf translates the type of a config.pbtxt.
func DatatypeOf(t kserve.DataType) Datatype {
	return Datatype(strings.TrimPrefix(t.String(), "TYPE_"))
}
