package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"

	"histogate/gateway/openapi"
	"histogate/prep"
)

// What is served, told of itself: /openapi.json for programs and /docs for people.

// documents are the two. Neither changes while a gateway serves.
type documents struct {
	openapi []byte // JSON
	page    []byte // HTML
}

func (g *Gateway) documents() (d documents, err error) {
	service := openapi.Service{
		Formats:          g.cfg.ImageFormats,
		Keys:             g.keys != nil,
		RuntimeEmulation: g.cfg.RuntimeEmulation,
		MaxBodyBytes:     g.cfg.MaxBodyBytes,
		MaxBatchRequests: g.cfg.mostTiles(),
	}
	for _, m := range g.models.list {
		service.Models = append(service.Models, m.spec)
	}
	if g.models.fallback != nil {
		service.Default = g.models.fallback.spec.Name
	}
	shortened := *service.Models[0]
	shortened.InputGenes = shortened.InputGenes[:min(3, len(shortened.InputGenes))]
	shortened.OutputGenes = shortened.OutputGenes[:min(3, len(shortened.OutputGenes))]
	service.Metadata = describe(&shortened)

	const id = "JBSWY3DPEHPK3PXPJBSWY3DPEH" // of every example
	for _, err := range g.errorExamples() {
		a := classify(err)
		service.Failures = append(service.Failures, openapi.Failure{Code: string(a.code), Status: a.status, Body: a.body(id)})
		if a.code == CodeUnknownModel {
			service.ModelError = newModelError("NAME", a.body(id), a.status)
		}
	}
	if d.openapi, err = service.Document(); err == nil {
		d.page, err = service.Page(d.openapi)
	}
	return d, err
}

// errorExamples are of all that a request can be answered with, one a code.
func (g *Gateway) errorExamples() []error {
	first := g.models.list[0].spec
	stage1 := func(code prep.Code, field, detail string) error {
		return &prep.Error{Code: code, Field: field, Detail: detail, Slide: "slide-1", Patch: "0"}
	}
	tile, _ := prep.ParseRequest([]byte(`{"slide_name":"slide-1","patch_idx":0}`)) // JSON it is
	stage2 := func(code Code) error { return &tileError{tile.Naming(), refuse(code, "")} }
	lacking := prep.Mode("segmentation")
	for _, mode := range []prep.Mode{prep.Embedding, prep.Prediction} {
		if !slices.Contains(first.Modes, mode) {
			lacking = mode
		}
	}
	notOffered, _ := errors.AsType[*prep.Error](first.CheckMode(lacking))
	return []error{
		stage1(prep.InvalidRequest, "x", "must be an integer, and 1.5 has a fraction"),
		stage1(prep.InvalidImage, "image_data", "not valid base64: empty; the tile is expected as an encoded image in base64"),
		stage1(prep.WrongShape, "image_data", fmt.Sprintf("the PNG is 1x1 pixels; the model takes %dx%d and nothing is resized", first.Tile.Width, first.Tile.Height)),
		stage1(prep.InvalidRNA, "bulk_rna", "must be an array of numbers or null"),
		stage1(notOffered.Code, notOffered.Field, notOffered.Detail),
		refuse(CodeMalformedHTTP, "there are both a Content-Length and a Transfer-Encoding; send one of them"),
		refuse(CodeUnauthorized, noKey),
		fiber.ErrNotFound,
		unknownModel("h9", g.models.names),
		wrongMethod(fiber.MethodPost),
		refuse(CodeNotAcceptable, "the answer is %s, which Accept %q leaves out", strings.Join([]string{mediaJSON, mediaFloats}, " or "), "text/html"),
		fiber.ErrRequestTimeout,
		g.bodies.tooLarge(),
		refuse(CodeUnsupportedMediaType, "Content-Type %q is not taken; send %s", "text/plain", mediaJSON+" or "+mediaImage),
		fiber.ErrRequestHeaderFieldsTooLarge,
		refuse(CodeInternal, ""),
		refuse(CodeBusy, ""),
		stage2(CodeQueueTimeout),
		stage2(CodeBackendUnavailable),
		stage2(CodeBackendTimeout),
		stage2(CodeForwardFailed),
	}
}

func serveOpenAPI(documents func() (documents, error)) fiber.Handler {
	return func(c *fiber.Ctx) error {
		d, err := documents()
		if err != nil {
			return err
		}
		c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
		return c.Send(d.openapi)
	}
}

// servePage serves the page, which may do nothing but show itself.
func servePage(documents func() (documents, error)) fiber.Handler {
	return func(c *fiber.Ctx) error {
		d, err := documents()
		if err != nil {
			return err
		}
		c.Set(fiber.HeaderContentType, fiber.MIMETextHTMLCharsetUTF8)
		c.Set(fiber.HeaderContentSecurityPolicy, "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'")
		return c.Send(d.page)
	}
}
