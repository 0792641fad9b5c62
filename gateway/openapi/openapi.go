// Package openapi writes down what a gateway serves: as an OpenAPI 3.1 document for
// programs, and as a page of HTML for people. The models, the errors and the limits in
// them are those that it is given.
package openapi

import (
	"bytes"
	_ "embed" // the two templates
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/goccy/go-yaml"

	"histogate/prep"
	"histogate/prep/raster"
)

//go:embed openapi.yaml.tmpl
var documentTemplate string

// Service is what a gateway serves.
type Service struct {
	Models  []*prep.Spec    // at least one
	Default string          // the model of a request to /invocations that names none; empty where it must
	Formats []raster.Format // that an image may have
	// Keys and RuntimeEmulation tell whether an API key is asked for, and whether there
	// is the route of SageMaker's runtime.
	Keys, RuntimeEmulation bool
	MaxBodyBytes           int
	MaxBatchRequests       int
	// Failures are all that a request can be answered with, one a code.
	Failures []Failure
	// Metadata and ModelError are examples of answers.
	Metadata, ModelError any
}

// Failure is what a request is told that failed.
type Failure struct {
	Code   string
	Status int
	Body   any // an example
}

// Document is the OpenAPI document of a service, in JSON. Its error is a mistake in the
// template.
func (s Service) Document() ([]byte, error) {
	t, err := template.New("").Funcs(template.FuncMap{
		"json":         inline,
		"names":        names,
		"orNone":       func(names []string) []string { return append(names, "") },
		"models":       func() []*prep.Spec { return s.Models },
		"octets":       octets,
		"failures":     func(codes ...string) (string, error) { return s.responses(s.Keys, codes) },
		"openFailures": func(codes ...string) (string, error) { return s.responses(false, codes) },
	}).Parse(documentTemplate)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, s); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text.Bytes())
}

// inline writes a value as JSON, which can stand anywhere in YAML.
func inline(v any) (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return strings.TrimSuffix(text.String(), "\n"), err
}

// names are all that models are known by.
func names(models []*prep.Spec) (all []string) {
	for _, m := range models {
		all = append(append(all, m.Name), m.Aliases...)
	}
	return all
}

// responses are the lines of an operation that tell of its failures: of those with the
// given codes, and of those that any operation can end in.
func (s Service) responses(keyed bool, codes []string) (string, error) {
	codes = append(codes, "malformed_http", "method_not_allowed", "request_timeout", "header_too_large", "internal")
	if keyed {
		codes = append(codes, "unauthorized")
	}
	byStatus := map[int][]string{}
	var statuses []int
	for _, f := range s.Failures {
		if i := slices.Index(codes, f.Code); i >= 0 {
			codes = slices.Delete(codes, i, i+1)
			if byStatus[f.Status] == nil {
				statuses = append(statuses, f.Status)
			}
			byStatus[f.Status] = append(byStatus[f.Status], f.Code)
		}
	}
	if len(codes) > 0 {
		return "", fmt.Errorf("these codes are no failures: %v", codes)
	}
	slices.Sort(statuses)
	var text strings.Builder
	for _, status := range statuses {
		response, err := inline(failureResponse(status, byStatus[status]))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "        \"%d\": %s\n", status, response)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

func failureResponse(status int, codes []string) any {
	type object = map[string]any
	reference := func(kind, name string) object { return object{"$ref": "#/components/" + kind + "/" + name} }
	headers := object{}
	for _, h := range []struct {
		status int // 0 for all
		name   string
	}{{0, "X-Request-Id"}, {401, "WWW-Authenticate"}, {405, "Allow"}, {503, "Retry-After"}} {
		if h.status == 0 || h.status == status {
			headers[h.name] = reference("headers", h.name)
		}
	}
	examples := object{}
	for _, code := range codes {
		examples[code] = reference("examples", code)
	}
	return object{
		"description": strings.Join(codes, ", "),
		"headers":     headers,
		"content": object{"application/json": object{
			"schema":   object{"allOf": []any{reference("schemas", "Failure"), object{"properties": object{"code": object{"enum": codes}}}}},
			"examples": examples,
		}},
	}
}

// Route is a route whose path says the mode.
type Route struct {
	Path, ID, Summary string
	Mode              prep.Mode
	Answer            string // the schema of its answers
	Models            []*prep.Spec
}

// Routes are those of the modes, with the models that have each.
func (s Service) Routes() []Route {
	routes := []Route{
		{Path: "/api/embed/{model}", ID: "embed", Mode: prep.Embedding, Answer: "Answer", Summary: "A tile's embedding"},
		{Path: "/api/predict/{model}", ID: "predict", Mode: prep.Prediction, Answer: "Answer",
			Summary: "A tile's prediction: a count for each output gene, or 0 or 1 for each pixel"},
		{Path: "/api/predict_with_embedding/{model}", ID: "predictWithEmbedding", Mode: prep.PredictionWithEmbedding, Answer: "AnswerWithEmbedding",
			Summary: "Both, from one forward pass"},
	}
	for i := range routes {
		for _, m := range s.Models {
			if slices.Contains(m.Modes, routes[i].Mode) {
				routes[i].Models = append(routes[i].Models, m)
			}
		}
	}
	return routes
}

// TakesBulkRNA tells whether one of its models does.
func (r Route) TakesBulkRNA() bool { return slices.ContainsFunc(r.Models, (*prep.Spec).TakesBulkRNA) }

// Example is of the route's first model; nil where no model has the mode.
func (r Route) Example() *Example {
	if r.Models == nil {
		return nil
	}
	return &Example{r.Models[0], r.Mode}
}

// TakesBulkRNA tells whether one of the models does.
func (s Service) TakesBulkRNA() bool { return slices.ContainsFunc(s.Models, (*prep.Spec).TakesBulkRNA) }

// ShortestBulkRNA is the least number of values that a model takes.
func (s Service) ShortestBulkRNA() int { return slices.Min(s.lengths()) }

// LongestBulkRNA is the largest number of values that a model takes.
func (s Service) LongestBulkRNA() int { return slices.Max(s.lengths()) }

func (s Service) lengths() (all []int) {
	for _, m := range s.Models {
		if m.TakesBulkRNA() {
			all = append(all, m.BulkRNALength())
		}
	}
	return all
}

// Counts tells whether all models that take bulk RNA take counts alone.
func (s Service) Counts() bool {
	return !slices.ContainsFunc(s.Models, func(m *prep.Spec) bool {
		return slices.ContainsFunc(m.Inputs, func(in prep.Input) bool { return in.Source == prep.BulkRNASource && in.Domain != prep.Counts })
	})
}

// AllModes are what a call of many tiles may have as its mode.
func (s Service) AllModes() (all []any) {
	for _, mode := range s.modes() {
		all = append(all, mode)
	}
	return append(all, "", nil)
}

// InvocationModes are the modes of /invocations.
func (s Service) InvocationModes() []prep.Mode { return append(s.modes(), "metadata") }

// modes are those that some model has.
func (s Service) modes() (all []prep.Mode) {
	for _, r := range s.Routes() {
		if r.Models != nil {
			all = append(all, r.Mode)
		}
	}
	return all
}

// MustName lists what a document sent to /invocations must say to mean a model.
func (s Service) MustName(m *prep.Spec) []string {
	must := []string{}
	if !slices.Contains(names([]*prep.Spec{m}), s.Default) {
		must = append(must, "model_name")
	}
	if !slices.Contains(m.Modes, prep.Prediction) {
		must = append(must, "mode")
	}
	return must
}

// NamesOf are what model_name can be to mean a model. Null and nothing are no name.
func (s Service) NamesOf(m *prep.Spec) (all []any) {
	own := names([]*prep.Spec{m})
	for _, name := range own {
		all = append(all, name)
	}
	if slices.Contains(own, s.Default) {
		all = append(all, "", nil)
	}
	return all
}

// ModesOf are what mode can be for a model. Null and nothing stand for prediction.
func (s Service) ModesOf(m *prep.Spec) (all []any) {
	for _, mode := range m.Modes {
		all = append(all, mode)
	}
	if slices.Contains(m.Modes, prep.Prediction) {
		all = append(all, "", nil)
	}
	return all
}
