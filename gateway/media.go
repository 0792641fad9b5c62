package gateway

import (
	"bytes"
	"errors"
	"iter"
	"mime"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
)

// What the body and the answer of a request are made of, as its headers say.

const (
	mediaJSON   = fiber.MIMEApplicationJSON
	mediaFloats = fiber.MIMEOctetStream
	mediaImage  = "image/*"
)

// headerShape tells the shapes of the numbers of an answer in binary.
const headerShape = "X-Output-Shape"

// bodyOf tells which of the media types taken the body has, and refuses any
// other before a byte of it is read. A body of no type is JSON.
func bodyOf(c *fiber.Ctx, taken ...string) (string, error) {
	if encoding := c.Get(fiber.HeaderContentEncoding); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return "", refuse(CodeUnsupportedMediaType, "Content-Encoding %q is not taken; send the body as it is", clip(encoding))
	}
	kind := c.Get(fiber.HeaderContentType)
	if kind == "" {
		return mediaJSON, nil
	}
	media, _, err := mime.ParseMediaType(kind)
	if err == nil || errors.Is(err, mime.ErrInvalidMediaParameter) {
		for _, t := range taken {
			if covers(t, media) {
				return t, nil
			}
		}
	}
	return "", refuse(CodeUnsupportedMediaType, "Content-Type %q is not taken; send %s", clip(kind), strings.Join(taken, " or "))
}

// answerAs picks the media type of the answer out of those offered: the one that
// Accept rates highest, of equals the one that it names more exactly, and else the
// first. Without Accept it is the first.
func answerAs(c *fiber.Ctx, offers ...string) (string, error) {
	accept := string(bytes.Join(c.Request().Header.PeekAll(fiber.HeaderAccept), []byte(", ")))
	if accept == "" || accept == "*/*" {
		return offers[0], nil
	}
	best, most, exactly := "", 0.0, 0
	for _, offer := range offers {
		if q, exactness := rating(accept, offer); q > most || q == most && q > 0 && exactness > exactly {
			best, most, exactly = offer, q, exactness
		}
	}
	if best == "" {
		return "", refuse(CodeNotAcceptable, "the answer is %s, which Accept %q leaves out", strings.Join(offers, " or "), clip(accept))
	}
	return best, nil
}

// rating is the weight that an Accept header gives a media type, by the range that
// names it most exactly (RFC 9110, section 12.5.1): itself, type/*, or */*.
func rating(accept, media string) (q float64, exactness int) {
	for part := range strings.SplitSeq(accept, ",") {
		span, parameters, err := mime.ParseMediaType(part)
		if span == "*" {
			span = "*/*" // as old libraries write it
		}
		if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) || !covers(span, media) {
			continue
		}
		if found := 3 - strings.Count(span, "*"); found > exactness {
			q, exactness = 1, found
			if weight, err := strconv.ParseFloat(parameters["q"], 64); err == nil {
				q = weight
			}
		}
	}
	return q, exactness
}

// covers tells whether a media range includes a media type.
func covers(span, media string) bool {
	group, wild := strings.CutSuffix(span, "*")
	return span == "*/*" || span == media || wild && strings.HasSuffix(group, "/") && strings.HasPrefix(media, group)
}

// rawFields are the fields of a tile whose body is the image: those of the query,
// and then of the headers that can stand for two of them.
func rawFields(c *fiber.Ctx) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, text := range c.Context().QueryArgs().All() {
			if !yield(string(name), string(text)) {
				return
			}
		}
		for _, field := range [...]struct{ header, name string }{{"X-Model-Name", "model_name"}, {"X-Mode", "mode"}} {
			for _, text := range c.Request().Header.PeekAll(field.header) {
				if len(text) > 0 && !yield(field.name, string(text)) {
					return
				}
			}
		}
	}
}

// parserOf is how a body of a media type becomes a request.
func parserOf(c *fiber.Ctx, media string, body []byte) func() (*prep.Request, error) {
	if media == mediaImage {
		return func() (*prep.Request, error) { return prep.RawRequest(body, rawFields(c)) }
	}
	return func() (*prep.Request, error) { return prep.ParseRequest(body) }
}
