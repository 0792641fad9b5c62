package openapi

import (
	"bytes"
	_ "embed" // the template
	"encoding/json"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed docs.html.tmpl
var pageTemplate string

// Page is a document of the service as a page of HTML: one file without scripts, which
// loads nothing. Its error is a mistake in the template or in the document.
func (s Service) Page(document []byte) ([]byte, error) {
	var root yaml.MapSlice // keeps the order
	if err := yaml.UnmarshalWithOptions(document, &root, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	d := tree{root}
	t, err := template.New("").Funcs(template.FuncMap{
		"at":         d.at,
		"paragraphs": func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n\n") },
		"kind":       d.kind,
		"needed": func(schema any, field string) bool {
			return slices.Contains(list(d.at(schema, "required")), any(field))
		},
		"member": member,
		"open":   func(operation any) bool { return member(operation, "security") != nil }, // it says that none is asked for
		"name":   name,
		"pretty": pretty,
		"upper":  strings.ToUpper,
	}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	err = t.Execute(&page, struct {
		Service
		Document yaml.MapSlice
	}{s, root})
	return page.Bytes(), err
}

// tree is a document whose references can be followed.
type tree struct{ root yaml.MapSlice }

// at is what stands under keys, one in another; nil if there is no such. References on
// the way are followed.
func (d tree) at(node any, keys ...string) any {
	node = d.resolve(node)
	for _, key := range keys {
		node = d.resolve(member(node, key))
	}
	return node
}

// member is what stands under a key of an object; nil if there is no such.
func member(node any, key string) any {
	members, _ := node.(yaml.MapSlice)
	for _, m := range members {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// resolve follows a reference. What stands beside it stays, before what it refers to.
func (d tree) resolve(node any) any {
	path, ok := member(node, "$ref").(string)
	if !ok {
		return node
	}
	target, _ := d.at(d.root, strings.Split(strings.TrimPrefix(path, "#/"), "/")...).(yaml.MapSlice)
	return slices.Concat(node.(yaml.MapSlice)[1:], target)
}

// name is that of the schema that a node refers to and that has a section of its own;
// empty for any other node.
func name(node any) string {
	path, _ := member(node, "$ref").(string)
	name := path[strings.LastIndexByte(path, '/')+1:]
	if name == "Integer" {
		return ""
	}
	return name
}

func list(node any) []any {
	items, _ := node.([]any)
	return items
}

// kind says in words what a schema takes.
func (d tree) kind(schema any) string {
	if name := name(schema); name != "" {
		return name
	}
	if value := d.at(schema, "const"); value != nil {
		return pretty(value)
	}
	texts := func(values []any, text func(any) string) (all []string) {
		for _, v := range values {
			all = append(all, text(v))
		}
		return all
	}
	if values := list(d.at(schema, "enum")); values != nil {
		return strings.Join(texts(values, pretty), ", ")
	}
	types := list(d.at(schema, "type"))
	if one, ok := d.at(schema, "type").(string); ok {
		types = []any{one}
	}
	if types == nil {
		return strings.Join(texts(list(d.at(schema, "anyOf")), d.kind), " or ")
	}
	text := strings.Join(texts(types, func(v any) string { return fmt.Sprint(v) }), " or ")
	if items := member(schema, "items"); items != nil {
		text = strings.Replace(text, "array", "array of "+d.kind(items), 1)
	}
	return text
}

// pretty is a node as JSON for people: short arrays and objects in one line.
func pretty(node any) string {
	var text bytes.Buffer
	value, _ := yaml.MarshalWithOptions(node, yaml.JSON()) // it was read from JSON
	value = bytes.TrimSpace(value)
	if len(value) <= 80 {
		return string(value)
	}
	_ = json.Indent(&text, value, "", "  ")
	return text.String()
}
