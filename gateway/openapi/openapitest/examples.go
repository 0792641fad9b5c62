// Package openapitest holds a running gateway against the OpenAPI document that it
// serves: whatever the document gives as an example is sent to it, and what it answers
// has to be what the document says.
package openapitest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
)

// Server is a gateway and the document that it serves.
type Server struct {
	Document Document
	Text     []byte // of the document
	url, key string
	validate validator.Validator
}

// Document is what of an OpenAPI document is looked at here.
type Document struct {
	Paths      map[string]map[string]Operation
	Components struct {
		Examples map[string]Example
	}
}

// Operation is a route with a method.
type Operation struct {
	Parameters []struct {
		Name, In string
		Schema   struct{ Enum []string }
	}
	RequestBody struct{ Content map[string]Media }
	Responses   map[string]struct{ Content map[string]Media }
}

// Media is a form that a body has.
type Media struct{ Examples map[string]Example }

// Example is a body, or a data URI that holds one.
type Example struct {
	Value         any
	ExternalValue string
}

// Read fetches the document of a gateway, with an API key if there is one, and checks
// that it is one of OpenAPI 3.1.
func Read(t *testing.T, url, key string) *Server {
	t.Helper()
	s := &Server{url: url, key: key}
	status, text := s.Do(t, http.MethodGet, "/openapi.json", nil)
	if status != http.StatusOK {
		t.Fatalf("/openapi.json: %d %s", status, text)
	}
	s.Text = text
	if err := json.Unmarshal(text, &s.Document); err != nil {
		t.Fatal(err)
	}
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	var errs []error
	if s.validate, errs = validator.NewValidator(document); errs != nil {
		t.Fatal(errs)
	}
	if _, mistakes := s.validate.ValidateDocument(); mistakes != nil {
		t.Fatalf("the document is none of OpenAPI 3.1: %v", mistakes)
	}
	return s
}

// Do sends a request and holds what comes back against the document. Headers are name,
// value pairs. It returns the status and the body.
func (s *Server) Do(t *testing.T, method, path string, body []byte, headers ...string) (int, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if s.key != "" {
		request.Header.Set("X-API-Key", s.key)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if s.validate == nil {
		return response.StatusCode, text // the document itself
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	if _, mistakes := s.validate.ValidateHttpResponse(request, response); mistakes != nil {
		t.Errorf("%s %s: the answer is not what the document says: %v\n%.300s", method, path, mistakes, text)
	}
	return response.StatusCode, text
}

// SendExamples sends every example of a request, and each route that needs none a plain
// request. The answers have to be like the examples of answers.
func (s *Server) SendExamples(t *testing.T) {
	for path, methods := range s.Document.Paths {
		for method, operation := range methods {
			answers := operation.Responses["200"].Content
			used := map[string]bool{}
			check := func(media, name string, status int, got []byte) {
				t.Helper()
				example, ok := answers[media].Examples[name]
				used[media+name] = true
				if status != http.StatusOK || !ok && answers != nil {
					t.Errorf("%s %s, %s: %d, an example of the answer: %v: %.300s", method, path, name, status, ok, got)
				} else if ok {
					compare(t, fmt.Sprintf("%s %s, %s", method, path, name), example, media, got)
				}
			}
			at := s.fill(path, operation)
			documents := operation.RequestBody.Content["application/json"].Examples
			for name, example := range documents {
				body, _ := json.Marshal(example.Value) // it was read from JSON
				status, got := s.Do(t, strings.ToUpper(method), at, body, "Content-Type", "application/json")
				check("application/json", name, status, got)
			}
			for name, example := range operation.RequestBody.Content["image/*"].Examples {
				kind, image := data(t, example.ExternalValue)
				fields, choice := url.Values{}, url.Values{}
				for field, value := range documents[name].Value.(map[string]any) {
					switch field {
					case "image_data":
						continue
					case "model_name", "mode":
						choice.Set(field, fmt.Sprint(value))
					}
					fields.Set(field, fmt.Sprint(value))
				}
				status, got := s.Do(t, strings.ToUpper(method), at+"?"+fields.Encode(), image, "Content-Type", kind)
				check("application/json", name, status, got)
				status, got = s.Do(t, strings.ToUpper(method), at+"?"+choice.Encode(), image, "Content-Type", kind)
				check("application/json", "alone", status, got)
				status, got = s.Do(t, strings.ToUpper(method), at+"?"+choice.Encode(), image, "Content-Type", kind, "Accept", "application/octet-stream")
				check("application/octet-stream", "octets", status, got)
			}
			if method == "get" {
				status, got := s.Do(t, http.MethodGet, at, nil)
				only := ""
				for media, body := range answers {
					for name := range body.Examples {
						check(media, name, status, got)
					}
					only = media
				}
				if only == "" {
					check("", "", status, got)
				}
			}
			for media, body := range answers {
				for name := range body.Examples {
					if !used[media+name] {
						t.Errorf("%s %s: no request is answered with the example %s", method, path, name)
					}
				}
			}
		}
	}
}

// fill is a path with the first of the values that its parameters can have.
func (s *Server) fill(path string, operation Operation) string {
	for _, p := range operation.Parameters {
		value := "any"
		if p.Schema.Enum != nil {
			value = p.Schema.Enum[0]
		}
		path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
	}
	return path
}

// data is what a data URI holds.
func data(t *testing.T, uri string) (kind string, content []byte) {
	t.Helper()
	kind, text, ok := strings.Cut(strings.TrimPrefix(uri, "data:"), ";base64,")
	content, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil {
		t.Fatalf("%.80s is no data URI: %v", uri, err)
	}
	return kind, content
}

// compare holds an answer against an example.
func compare(t *testing.T, where string, example Example, media string, got []byte) {
	t.Helper()
	switch media {
	case "application/json":
		var value any
		if err := json.Unmarshal(got, &value); err != nil {
			t.Errorf("%s: %v", where, err)
			return
		}
		if want := shorten(example.Value); !reflect.DeepEqual(shorten(value), want) {
			t.Errorf("%s: the answer\n%.1000s\nis unlike the example\n%.1000v", where, got, want)
		}
	case "application/octet-stream":
		if _, like := data(t, example.ExternalValue); len(got) == 0 || len(got)%4 != 0 || len(like)%4 != 0 {
			t.Errorf("%s: %d bytes, like %d, are no float32", where, len(got), len(like))
		}
	default:
		if beginning := example.Value.(string); !strings.HasPrefix(string(got), beginning) {
			t.Errorf("%s: %.40q, and not %q", where, got, beginning)
		}
	}
}

// shorten leaves out of an answer what is made up or left out in an example: the numbers
// of a model, all but the first genes, and of the document itself what is in it.
func shorten(value any) any {
	switch v := value.(type) {
	case map[string]any:
		if v["openapi"] != nil {
			return []any{v["openapi"], v["info"].(map[string]any)["title"], v["paths"] != nil}
		}
		short := map[string]any{}
		for name, member := range v {
			list, _ := member.([]any)
			switch {
			case list == nil:
				short[name] = shorten(member)
			case name == "output", name == "embedding":
				short[name] = areNumbers(list)
			case name == "input_genes", name == "output_genes":
				short[name] = list[:min(3, len(list))]
			default:
				short[name] = shorten(member)
			}
		}
		return short
	case []any:
		short := make([]any, len(v))
		for i := range v {
			if list, ok := v[i].([]any); ok {
				short[i] = areNumbers(list)
			} else {
				short[i] = shorten(v[i])
			}
		}
		return short
	default:
		return value
	}
}

func areNumbers(list []any) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(v any) bool { _, ok := v.(float64); return !ok })
}
