package tritonclient

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// marshal writes the request into a buffer that gRPC gives back when the last byte
// has left, or never will: that can be long after the call has ended.
func (c *call) marshal() mem.BufferSlice {
	c.sent = true
	c.share()
	head := c.appendHead(make([]byte, 0, 512))
	if c.slot != noSlot {
		return mem.BufferSlice{mem.SliceBuffer(head)}
	}
	size := len(head)
	for i := range c.Inputs {
		size += protowire.SizeTag(requestRawInputs) + protowire.SizeBytes(c.Inputs[i].bytes())
	}
	buffer := c.buffers.Get(size)
	message := (*buffer)[:copy(*buffer, head)]
	for i := range c.Inputs {
		message = protowire.AppendTag(message, requestRawInputs, protowire.BytesType)
		n := c.Inputs[i].bytes()
		message = protowire.AppendVarint(message, uint64(n))
		at := len(message)
		message = message[:at+n]
		c.Write(i, message[at:at+n:at+n])
	}
	*buffer = message
	return mem.BufferSlice{mem.NewBuffer(buffer, c.buffers)}
}

// share writes the inputs to a slot of the segment, if there is one for them.
func (c *call) share() {
	if c.segment == nil {
		return
	}
	size := 0
	for i := range c.Inputs {
		size += aligned(c.Inputs[i].bytes())
	}
	if size > c.segment.size {
		return
	}
	slot, ok := c.segment.take()
	if !ok {
		return
	}
	c.slot = slot
	data := c.segment.data(slot)
	for i := range c.Inputs {
		n := c.Inputs[i].bytes()
		c.Write(i, data[:n:n])
		data = data[aligned(n):]
	}
}

// release gives the slot back.
func (c *call) release(answered bool) {
	if c.slot != noSlot {
		c.segment.give(c.slot, answered)
	}
}

// appendHead appends all fields of the request but the inputs' data.
func (c *call) appendHead(b []byte) []byte {
	b = appendString(b, requestModel, c.Model)
	b = appendString(b, requestID, c.ID)
	var part [512]byte
	at := 0
	if c.slot != noSlot {
		at = c.slot * c.segment.size
	}
	for i := range c.Inputs {
		in := &c.Inputs[i]
		tensor := appendString(part[:0], tensorName, in.Name)
		tensor = appendString(tensor, tensorDatatype, string(in.Datatype))
		tensor = appendShape(tensor, in.Shape)
		if c.slot != noSlot {
			n := in.bytes()
			tensor = appendParameter(tensor, "shared_memory_region", textParameter(c.segment.name))
			tensor = appendParameter(tensor, "shared_memory_byte_size", numberParameter(n))
			tensor = appendParameter(tensor, "shared_memory_offset", numberParameter(at))
			at += aligned(n)
		}
		b = appendBytes(b, requestInput, tensor)
	}
	for i := range c.Outputs {
		b = appendBytes(b, requestOutput, appendString(part[:0], tensorName, c.Outputs[i].Name))
	}
	return b
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// appendParameter appends an entry to the parameters of a tensor.
func appendParameter(b []byte, key string, value []byte) []byte {
	entry := appendString(make([]byte, 0, 128), mapKey, key)
	return appendBytes(b, tensorParameters, appendBytes(entry, mapValue, value))
}

func textParameter(text string) []byte {
	return appendString(make([]byte, 0, 64), parameterString, text)
}

func numberParameter(n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(make([]byte, 0, 16), parameterInt64, protowire.VarintType), uint64(n))
}

func appendShape(b []byte, shape []int64) []byte {
	size := 0
	for _, d := range shape {
		size += protowire.SizeVarint(uint64(d))
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, tensorShape, protowire.BytesType), uint64(size))
	for _, d := range shape {
		b = protowire.AppendVarint(b, uint64(d))
	}
	return b
}
