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
	samples sync.Pool        // of *Sample
	images  sync.Pool        // of *[]byte: encoded images
}

// Sample is the tensors of one request, in as little memory as they can be made
// of: many wait at once, and a tile of bytes is a quarter of one of floats. It
// comes from a pool and is its holder's until Release.
type Sample struct {
	owner   *Preparer
	rgb     []byte // the tile, three bytes a pixel
	bulkRNA []byte // after its transforms; shared and immutable; nil for zeros
}

// Write writes the tensor of the spec's i-th input to dst, which has its
// [Spec.SentBytes]: row-major, little-endian, without a batch dimension.
func (s *Sample) Write(i int, dst []byte) {
	switch in := &s.owner.spec.Inputs[i]; {
	case in.Source == TileSource && s.owner.spec.TileTransport == UInt8Transport:
		raster.WritePlanes(dst, s.rgb)
	case in.Source == TileSource:
		s.owner.table.Write(dst, layout(in.DType), s.rgb)
	case in.Source == BulkRNASource && s.bulkRNA != nil:
		copy(dst, s.bulkRNA)
	default:
		in.WriteBlank(dst)
	}
}

// Release gives the sample's memory back. It is called once, by its holder.
func (s *Sample) Release() {
	s.bulkRNA = nil
	s.owner.samples.Put(s)
}

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
	p := &Preparer{spec: spec, formats: chosen.formats, table: newTable(&spec.Tile)}
	if i := spec.bulkRNAInput(); i >= 0 {
		// The cache belongs to this model and its pipeline alone.
		cache := newVectorCache(chosen.cacheEntries, chosen.cacheBytes)
		p.bulkRNA = newBulkRNAPreparer(spec, spec.Inputs[i], cache)
	}
	p.samples.New = func() any { return &Sample{owner: p, rgb: make([]byte, 3*spec.Tile.Width*spec.Tile.Height)} }
	p.images.New = func() any { return new([]byte) }
	return p
}

// Prepare checks the request's fields and makes the model's inputs of it, but for
// what is left to [Sample.Write] and cannot fail. Its
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
		defer p.keep(image)
		if data, err = decodeBase64((*image)[:0], r.fields[imageData]); err != nil {
			return sample, r.name(refuse(InvalidImage, imageData.String(), "not valid base64: %s", err))
		}
		*image = data
	}
	if failure := p.tile(sample.rgb, data); failure != nil {
		if r.isRaw {
			failure.Field = "body" // where the caller has put it
		}
		return sample, r.name(failure)
	}
	if p.bulkRNA != nil {
		var failure *Error
		if sample.bulkRNA, failure = p.bulkRNA.prepare(r.fields[bulkRNA]); failure != nil {
			return sample, r.name(failure)
		}
	}
	return sample, nil
}

// mostKept is the largest buffer of an encoded image that is kept for the next request.
// A tile takes less; a body may be far larger than any tile.
const mostKept = 1 << 20

func (p *Preparer) keep(image *[]byte) {
	if cap(*image) <= mostKept {
		p.images.Put(image)
	}
}

// RNACacheStats tells what the cache of prepared bulk RNA did and holds.
func (p *Preparer) RNACacheStats() CacheStats {
	if p.bulkRNA == nil {
		return CacheStats{}
	}
	return p.bulkRNA.cache.snapshot()
}

// tile decodes an encoded image.
func (p *Preparer) tile(rgb, data []byte) *Error {
	err := raster.Decode(data, p.spec.Tile.Width, p.spec.Tile.Height, p.formats, rgb)
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
