package prep

import (
	"errors"
	"sync"

	"histogate/prep/raster"
)

// Preparer does stage 1 for one model. It is safe for concurrent use.
type Preparer struct {
	spec    *Spec
	table   *raster.Table
	formats []raster.Format
	bulkRNA *bulkRNAPreparer // nil for a model without
	// constants are the tensors of inputs that are the same for every request, nil for
	// the others.
	constants [][]byte
	samples   sync.Pool // of *Sample
	images    sync.Pool // of *[]byte: encoded images
}

// Sample is the tensors of one request. It comes from a pool.
//
// Whoever holds it may read its tensors until it calls Release, once. A sample
// whose tensors may still be read by someone else, such as a transport that has
// not let go of them, must not be released: it is dropped, and the garbage
// collector takes it when the last reader is gone.
type Sample struct {
	// Tensors has one entry for each of the spec's inputs, in their order:
	// row-major, little-endian, without a batch dimension.
	Tensors [][]byte
	owner   *Preparer
}

// Release gives the sample's memory back.
func (s *Sample) Release() { s.owner.samples.Put(s) }

// Option changes a preparer from what it is by default.
type Option func(*options)

type options struct {
	formats                  []raster.Format
	cacheEntries, cacheBytes int
}

// ImageFormats narrows the formats that a tile may have. The default is all
// that package raster reads.
func ImageFormats(formats ...raster.Format) Option {
	return func(o *options) { o.formats = formats }
}

// RNACache bounds the cache of prepared bulk RNA in vectors and in their bytes;
// a bound of zero switches it off. The default is [DefaultRNACacheEntries] and
// [DefaultRNACacheBytes].
func RNACache(entries, bytes int) Option {
	return func(o *options) { o.cacheEntries, o.cacheBytes = entries, bytes }
}

// The bounds of the bulk RNA cache: room for some 400 vectors of 20,000 genes,
// a slide taking one.
const (
	DefaultRNACacheEntries = 1024
	DefaultRNACacheBytes   = 32 << 20
)

// NewPreparer makes the preparer of a spec from [ReadSpec].
func NewPreparer(spec *Spec, with ...Option) *Preparer {
	chosen := options{formats: raster.Formats(), cacheEntries: DefaultRNACacheEntries, cacheBytes: DefaultRNACacheBytes}
	for _, option := range with {
		option(&chosen)
	}
	p := &Preparer{spec: spec, formats: chosen.formats}
	// As a tensor library does with a list of Python floats: the decimal is
	// rounded to float64, then to float32.
	var mean, std [3]float32
	for c := range 3 {
		mean[c], std[c] = float32(spec.Tile.Mean[c]), float32(spec.Tile.Std[c])
	}
	p.table = raster.NewTable(mean, std)
	if i := spec.bulkRNAInput(); i >= 0 {
		// The cache belongs to this model and its pipeline alone.
		cache := newVectorCache(chosen.cacheEntries, chosen.cacheBytes)
		p.bulkRNA = newBulkRNAPreparer(spec, spec.Inputs[i], cache)
	}
	p.constants = make([][]byte, len(spec.Inputs))
	for i, in := range spec.Inputs {
		if in.Source == ConstantSource {
			p.constants[i] = in.Blank()
		}
	}
	p.samples.New = func() any {
		s := &Sample{owner: p}
		for _, in := range spec.Inputs {
			s.Tensors = append(s.Tensors, make([]byte, Elements(in.Shape)*in.DType.Size()))
		}
		return s
	}
	p.images.New = func() any { return new([]byte) }
	return p
}

// Prepare checks the request's fields and makes the model's inputs of it. Its
// error is an [*Error] that belongs to this request alone; that is so even when
// the code for it panics, with the stack in the error.
func (p *Preparer) Prepare(r *Request) (sample *Sample, err error) {
	sample = p.samples.Get().(*Sample)
	defer func() {
		if cause := recover(); cause != nil {
			err = r.name(recovered(cause))
		}
		if err != nil {
			sample.Release()
			sample = nil
		}
	}()
	if err := r.validate(); err != nil {
		return sample, err
	}
	data := r.image
	if !r.isRaw {
		image := p.images.Get().(*[]byte)
		defer p.images.Put(image)
		if data, err = decodeBase64((*image)[:0], r.fields[imageData]); err != nil {
			return sample, r.name(refuse(InvalidImage, imageData.String(), "not valid base64: %s", err))
		}
		*image = data
	}
	for i, in := range p.spec.Inputs {
		var failure *Error
		switch in.Source {
		case TileSource:
			failure = p.tile(sample.Tensors[i], in.DType, data)
			if failure != nil && r.isRaw {
				failure.Field = "body" // where the caller has put it
			}
		case BulkRNASource:
			failure = p.bulkRNA.prepare(sample.Tensors[i], r.fields[bulkRNA])
		case ConstantSource:
			copy(sample.Tensors[i], p.constants[i])
		}
		if failure != nil {
			return sample, r.name(failure)
		}
	}
	return sample, nil
}

// RNACacheStats tells what the cache of prepared bulk RNA did and holds.
func (p *Preparer) RNACacheStats() CacheStats {
	if p.bulkRNA == nil {
		return CacheStats{}
	}
	return p.bulkRNA.cache.snapshot()
}

// tile decodes an encoded image into the tensor.
func (p *Preparer) tile(dst []byte, dtype DType, data []byte) *Error {
	layout := raster.Float32
	if dtype == Float16 {
		layout = raster.Float16
	}
	err := raster.Decode(data, p.spec.Tile.Width, p.spec.Tile.Height, p.formats, raster.Target{Layout: layout, Table: p.table, Dst: dst})
	if err == nil {
		return nil
	}
	code := InvalidImage
	var refused *raster.Error
	if errors.As(err, &refused) && refused.Kind == raster.WrongSize {
		code = WrongShape
	}
	return refuse(code, imageData.String(), "%s", err)
}
