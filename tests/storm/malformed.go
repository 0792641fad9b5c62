// Package storm sends a real stack a great many requests at once, a third of them
// malformed, and holds each answer against the one it must be.
package storm

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"maps"
	"strings"
)

// malformed is one way of sending a request that cannot be served.
type malformed struct {
	name   string
	path   string // /invocations when empty
	header [2]string
	status int    // 400 when 0
	code   string // what the answer must say
	body   func(tile sound) []byte
}

// sound is a request that can be served, as a JSON object in parts.
type sound struct {
	image  []byte
	fields map[string]any
}

func (s sound) json() []byte {
	text, err := json.Marshal(s.fields)
	if err != nil {
		panic(err) // it holds nothing that cannot be written
	}
	return text
}

// with is the request with one field set to raw JSON.
func (s sound) with(field, raw string) []byte {
	fields := maps.Clone(s.fields)
	fields[field] = json.RawMessage(raw)
	return sound{s.image, fields}.json()
}

func (s sound) without(field string) []byte {
	fields := maps.Clone(s.fields)
	delete(fields, field)
	return sound{s.image, fields}.json()
}

func (s sound) picture(data []byte) []byte {
	return s.with("image_data", `"`+base64.StdEncoding.EncodeToString(data)+`"`)
}

func (s sound) base64(change func(text string) string) []byte {
	return s.with("image_data", `"`+change(base64.StdEncoding.EncodeToString(s.image))+`"`)
}

// ways are all the ways, each told from the others by its answer or its cause.
func ways() []malformed {
	const request, picture = "invalid_request", "invalid_image"
	var all []malformed
	add := func(name, code string, body func(s sound) []byte) {
		all = append(all, malformed{name: name, code: code, body: body})
	}
	text := func(name string, change func(s string) string) {
		add(name, request, func(s sound) []byte { return []byte(change(string(s.json()))) })
	}
	// Documents.
	text("empty", func(string) string { return "" })
	text("cut in half", func(s string) string { return s[:len(s)/2] })
	text("last brace missing", func(s string) string { return s[:len(s)-1] })
	text("something behind it", func(s string) string { return s + "x" })
	text("two documents", func(s string) string { return s + s })
	text("an array", func(s string) string { return "[" + s + "]" })
	text("a string", func(string) string { return `"tile"` })
	text("null", func(string) string { return "null" })
	text("byte order mark", func(s string) string { return "\xef\xbb\xbf" + s })
	text("NaN", func(s string) string { return strings.Replace(s, "{", `{"a":NaN,`, 1) })
	text("Infinity", func(s string) string { return strings.Replace(s, "{", `{"a":-Infinity,`, 1) })
	text("leading zero", func(s string) string { return strings.Replace(s, "{", `{"a":01,`, 1) })
	text("trailing comma", func(s string) string { return s[:len(s)-1] + ",}" })
	text("single quotes", func(s string) string { return strings.ReplaceAll(s, `"`, `'`) })
	text("comment", func(s string) string { return "/* tile */" + s })
	text("control character", func(s string) string { return strings.Replace(s, "{", "{\"a\":\"\x01\",", 1) })
	text("unknown escape", func(s string) string { return strings.Replace(s, "{", `{"a":"\q",`, 1) })
	text("half a surrogate", func(s string) string { return strings.Replace(s, "{", `{"a":"\ud800",`, 1) })
	text("not UTF-8", func(s string) string { return strings.Replace(s, "{", "{\"a\":\"\xff\",", 1) })
	text("unquoted key", func(s string) string { return strings.Replace(s, "{", "{a:1,", 1) })
	text("nested too deeply", func(s string) string {
		return strings.Replace(s, "{", `{"a":`+strings.Repeat("[", 500)+strings.Repeat("]", 500)+",", 1)
	})
	// Fields.
	for _, field := range []string{"image_data", "slide_name", "x", "y", "width", "height", "patch_idx"} {
		add(field+" missing", request, func(s sound) []byte { return s.without(field) })
		add(field+" null", request, func(s sound) []byte { return s.with(field, "null") })
	}
	for _, field := range []string{"x", "y", "patch_idx"} {
		for _, value := range []string{"7.5", `"7"`, "true", "[7]", "1e30"} {
			add(field+" "+value, request, func(s sound) []byte { return s.with(field, value) })
		}
	}
	add("image_data a number", request, func(s sound) []byte { return s.with("image_data", "7") })
	add("slide_name a number", request, func(s sound) []byte { return s.with("slide_name", "7") })
	add("tissue_ratio a string", request, func(s sound) []byte { return s.with("tissue_ratio", `"all"`) })
	add("resolution too large", request, func(s sound) []byte { return s.with("resolution", "1e999") })
	add("model_name missing", request, func(s sound) []byte { return s.without("model_name") })
	add("mode a number", request, func(s sound) []byte { return s.with("mode", "1") })
	add("mode unknown", "unsupported_mode", func(s sound) []byte { return s.with("mode", `"embed"`) })
	add("mode not offered", "unsupported_mode", func(s sound) []byte { return s.with("mode", `"prediction"`) })
	// Base64.
	for name, change := range map[string]func(string) string{
		"empty":               func(string) string { return "" },
		"a data URL":          func(s string) string { return "data:image/png;base64," + s },
		"padding missing":     func(s string) string { return s[:len(s)-1] },
		"URL-safe":            func(s string) string { return s[:8] + "-_" + s[10:] },
		"a stray character":   func(s string) string { return s[:100] + "*" + s[101:] },
		"padding in between":  func(s string) string { return s[:40] + "==" + s[42:] },
		"an escaped control":  func(s string) string { return s[:40] + `\u0000` + s[41:] },
		"a character too few": func(s string) string { return strings.TrimRight(s, "=")[1:] },
	} {
		add("base64: "+name, picture, func(s sound) []byte { return s.base64(change) })
	}
	// Pictures.
	for name, change := range map[string]func([]byte) []byte{
		"truncated":         func(b []byte) []byte { return b[:len(b)/2] },
		"a signature alone": func(b []byte) []byte { return b[:8] },
		"header damaged":    func(b []byte) []byte { return patched(b, 24) },
		"text":              func([]byte) []byte { return []byte("this is no picture") },
		"SVG":               func([]byte) []byte { return []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`) },
		"PDF":               func([]byte) []byte { return []byte("%PDF-1.7\n") },
		"zeros":             func([]byte) []byte { return make([]byte, 4096) },
	} {
		add("picture: "+name, picture, func(s sound) []byte { return s.picture(change(s.image)) })
	}
	for _, size := range [][2]int{{223, 224}, {224, 225}, {1, 1}, {512, 512}} {
		add(fmt.Sprintf("picture: %dx%d", size[0], size[1]), "wrong_shape", func(s sound) []byte {
			var buf bytes.Buffer
			if err := png.Encode(&buf, image.NewGray(image.Rect(0, 0, size[0], size[1]))); err != nil {
				panic(err)
			}
			return s.picture(buf.Bytes())
		})
	}
	// HTTP.
	whole := sound.json
	return append(all,
		malformed{name: "unknown model", status: 404, code: "unknown_model", body: func(s sound) []byte { return s.with("model_name", `"h2"`) }},
		malformed{name: "unknown model in the path", path: "/api/embed/h2", status: 404, code: "unknown_model", body: whole},
		malformed{name: "unknown route", path: "/api/embed", status: 404, code: "not_found", body: whole},
		malformed{name: "content type", header: [2]string{"Content-Type", "text/csv"}, status: 415, code: "unsupported_media_type", body: whole},
		malformed{name: "content encoding", header: [2]string{"Content-Encoding", "br"}, status: 415, code: "unsupported_media_type", body: whole},
		malformed{name: "accept", header: [2]string{"Accept", "image/png"}, status: 406, code: "not_acceptable", body: whole},
	)
}

func patched(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 0x55
	return b
}
