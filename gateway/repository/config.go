package repository

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"

	"histogate/prep"
	"histogate/tritonclient/kserve"
)

// fixedBatch is the parameter that [FixedBatch] reads.
const fixedBatch = "fixed_batch"

// config is the model's config.pbtxt. The parameters are for the backend.
func (f *fitted) config() []byte {
	c := &kserve.ModelConfig{
		Name:         f.spec.Name,
		Backend:      backendName,
		MaxBatchSize: int32(f.spec.Batching.MaxBatchSize), // at most 1024, as checked
		SchedulingChoice: &kserve.ModelConfig_DynamicBatching{DynamicBatching: &kserve.ModelDynamicBatching{
			MaxQueueDelayMicroseconds: Microseconds(f.spec.Batching),
		}},
		InstanceGroup: []*kserve.ModelInstanceGroup{{Kind: kserve.ModelInstanceGroup_KIND_CPU, Count: 1}},
	}
	if f.cuda {
		c.InstanceGroup[0].Kind = kserve.ModelInstanceGroup_KIND_GPU
	}
	for i, in := range f.spec.Inputs {
		c.Input = append(c.Input, &kserve.ModelInput{Name: in.Name, DataType: DataType(f.spec.Sent(i)), Dims: in.Shape})
	}
	for _, out := range f.spec.Outputs {
		c.Output = append(c.Output, &kserve.ModelOutput{Name: out.Name, DataType: DataType(out.DType), Dims: out.Shape})
	}
	c.Parameters = tileParameters(f.spec)
	if f.inputTypes != nil {
		c.Parameters["input_dtypes"] = &kserve.ModelParameter{StringValue: strings.Join(f.inputTypes, ",")}
		c.Parameters["input_ranks"] = &kserve.ModelParameter{StringValue: strings.Join(f.inputRanks, ",")}
		c.Parameters[fixedBatch] = &kserve.ModelParameter{StringValue: strconv.FormatInt(f.fixedBatch, 10)}
	}
	return written(c)
}

// FixedBatch is how many rows the model's checkpoint was compiled for, as the backend
// is told; 0 where any number will do. A larger batch would be none of the model's.
func FixedBatch(c *kserve.ModelConfig) (rows int, err error) {
	text := c.Parameters[fixedBatch].GetStringValue()
	if text == "" {
		return 0, nil
	}
	if rows, err = strconv.Atoi(text); err != nil || rows < 0 {
		return 0, fmt.Errorf("the parameter %s is %q; it must be a number of rows, or 0 for any", fixedBatch, text)
	}
	return rows, nil
}

// written is the text of a config.pbtxt.
func written(c *kserve.ModelConfig) []byte {
	return []byte("# Made by gateway; what it was made from is the place for changes.\n" + prototext.MarshalOptions{Multiline: true}.Format(c))
}

// Microseconds is how Triton is told the wait of a batch.
func Microseconds(b prep.Batching) uint64 { return uint64(math.Round(b.MaxQueueDelayMS * 1000)) }

// DataType is how a config.pbtxt writes a spec's element type.
func DataType(t prep.DType) kserve.DataType {
	switch t {
	case prep.UInt8:
		return kserve.DataType_TYPE_UINT8
	case prep.Float16:
		return kserve.DataType_TYPE_FP16
	case prep.Int64:
		return kserve.DataType_TYPE_INT64
	default:
		return kserve.DataType_TYPE_FP32
	}
}
