package prep

import (
	"encoding/binary"
	"math"
	"strings"
	"sync"
)

// bulkRNAPreparer makes a model's bulk RNA tensor. It is safe for concurrent use.
type bulkRNAPreparer struct {
	model      string
	length     int // of a request's array
	domain     Domain
	transforms []Transform
	cache      *vectorCache
	rows       sync.Pool // of *[]float32, length values each
}

func newBulkRNAPreparer(spec *Spec, in Input, cache *vectorCache) *bulkRNAPreparer {
	p := &bulkRNAPreparer{
		model:      spec.Name,
		length:     spec.BulkRNALength(),
		domain:     in.Domain,
		transforms: in.Transforms,
		cache:      cache,
	}
	p.rows.New = func() any {
		row := make([]float32, p.length)
		return &row
	}
	return p
}

// prepare makes the tensor for the value of a checked request's bulk_rna: the
// array's numbers after the transforms, or nil, for zeros untransformed, where
// there is none. Others have the same tensor: nobody may write to it.
func (p *bulkRNAPreparer) prepare(t token) ([]byte, *Error) {
	switch {
	case t.kind == missing, t.isNull():
		return nil, nil
	case t.kind != arrayKind:
		return nil, refuseRNA("must be an array of numbers or null")
	}
	key := p.cache.key(t.raw)
	if vector := p.cache.get(key); vector != nil {
		return vector, nil
	}
	pooled := p.rows.Get().(*[]float32)
	defer p.rows.Put(pooled)
	row := *pooled
	if err := p.parse(row, t.raw); err != nil {
		return nil, err
	}
	for i := range p.transforms {
		row = p.transforms[i].apply(row)
	}
	vector := make([]byte, 4*len(row))
	for i, v := range row {
		if nonFinite(float64(v)) {
			return nil, p.spoiled(i, v)
		}
		binary.LittleEndian.PutUint32(vector[4*i:], math.Float32bits(v))
	}
	p.cache.put(key, vector)
	return vector, nil
}

// parse reads a scanned JSON array of as many numbers as row takes.
func (p *bulkRNAPreparer) parse(row []float32, array []byte) *Error {
	n := 0
	pos := skipSpace(array, 1)
	for array[pos] != ']' {
		if c := array[pos]; c != '-' && c-'0' > 9 {
			return refuseRNA("the value at index %d is not a number; send one, or %s", n, unmeasured)
		}
		v, length := parseFloat32(array[pos:])
		switch {
		case math.IsInf(float64(v), 0):
			return refuseRNA("the value at index %d, %s, is not finite in 32-bit floating point", n, clip(string(array[pos:pos+length])))
		case v < 0 && v != notMeasured && p.domain == Counts:
			return refuseRNA("the value at index %d, %s, is negative; %s takes counts, and %s",
				n, clip(string(array[pos:pos+length])), p.model, unmeasured)
		case n < len(row):
			row[n] = v
		}
		n++
		if pos = skipSpace(array, pos+length); array[pos] == ',' {
			pos = skipSpace(array, pos+1)
		}
	}
	if n != len(row) {
		return refuseRNA("holds %d values; %s takes %d, one for each of its input genes", n, p.model, len(row))
	}
	return nil
}

// spoiled refuses a vector for a result that is not finite, at the index of the
// value that it came from.
func (p *bulkRNAPreparer) spoiled(index int, v float32) *Error {
	names := make([]string, len(p.transforms))
	for i := len(p.transforms) - 1; i >= 0; i-- {
		t := &p.transforms[i]
		names[i] = string(t.Name)
		if t.Name == SubsetColumns {
			index = t.Indices[index]
		}
	}
	return refuseRNA("the value at index %d becomes %v by what %s does to it: %s", index, v, p.model, strings.Join(names, ", "))
}

func refuseRNA(format string, args ...any) *Error {
	return refuse(InvalidRNA, bulkRNA.String(), format, args...)
}

// skipSpace is the first position from pos on that holds no JSON white space.
func skipSpace(text []byte, pos int) int {
	for text[pos] == ' ' || text[pos] == '\n' || text[pos] == '\r' || text[pos] == '\t' {
		pos++
	}
	return pos
}
