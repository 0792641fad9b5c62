package prep

// Batch is a request of many tiles of one model and mode: a JSON object with the
// members mode, a string that may be missing or null, and requests, an array of tile
// requests. It aliases the body that it was parsed from.
type Batch struct {
	Mode  string // empty when it has none
	Tiles []*Request
}

// ParseBatch reads the JSON document of a batch of at most so many tiles. Each of
// them is checked on its own, by [Preparer.Prepare]: one that is not even an object
// fails there, and so does one that holds NaN or an infinity as Python's json writes
// them. Its error, an [*Error], is about the document as a whole.
func ParseBatch(body []byte, most int) (_ *Batch, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = recovered(cause)
		}
	}()
	var requests, mode token
	var start, end int // of requests
	s := scanner{data: body, passNonFinite: true}
	err = s.document(func(key, value token) {
		switch key.text() {
		case "requests":
			requests, start, end = value, s.pos-len(value.raw), s.pos
		case "mode":
			mode = value
		}
	})
	if err != nil {
		return nil, refuse(InvalidRequest, "", "the body is %s", err)
	}
	for _, at := range s.passed {
		if s.passNonFinite, s.key = false, (token{}); at < start || at >= end {
			return nil, refuse(InvalidRequest, "", "the body is %s", s.nonFinite(at, "a value"))
		}
	}
	b := new(Batch)
	switch {
	case mode.kind == missing, mode.isNull():
	case mode.kind == stringKind:
		b.Mode = mode.text()
	default:
		return nil, refuse(InvalidRequest, "mode", "must be a string")
	}
	if requests.kind != arrayKind {
		return nil, refuse(InvalidRequest, "requests", "missing, or no array; an array of tile requests is expected")
	}
	count := 0
	s = scanner{data: requests.raw, passNonFinite: true}
	_ = s.array(1, func(element token) { // it was sound a moment ago
		if count++; count <= most {
			b.Tiles = append(b.Tiles, tileOf(element))
		}
	})
	if count > most {
		return nil, refuse(InvalidRequest, "requests", "%d tiles, and one call takes %d; send them in several calls", count, most)
	}
	return b, nil
}

// tileOf is the request that an element of a batch is.
func tileOf(element token) *Request {
	r := new(Request)
	if element.kind != objectKind {
		r.broken = refuse(InvalidRequest, "", "must be a tile request, an object, not %s", element.describe())
		return r
	}
	s := scanner{data: element.raw}
	if err := s.object(1, r.member); err != nil {
		r.broken = r.name(refuse(InvalidRequest, "", "the tile is %s", err))
	}
	return r
}
