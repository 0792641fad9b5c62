package prep

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// checkFields holds the keys of a parsed YAML document against the struct that
// it will be read into: each key must be a field, and each field a key unless
// its tag says omitempty. All differences are reported, by their path.
func checkFields(document, like any) error {
	var mistakes []error
	compareFields("", document, reflect.TypeOf(like), &mistakes)
	return errors.Join(mistakes...)
}

func compareFields(path string, node any, t reflect.Type, mistakes *[]error) {
	complain := func(at, message string) { *mistakes = append(*mistakes, fmt.Errorf("%s: %s", at, message)) }
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		items, ok := node.([]any)
		if !ok {
			complain(path, "must be a list")
			return
		}
		if t.Kind() == reflect.Array && len(items) != t.Len() {
			complain(path, fmt.Sprintf("must be a list of %d values", t.Len()))
		}
		for i, item := range items {
			compareFields(fmt.Sprintf("%s[%d]", path, i), item, t.Elem(), mistakes)
		}
	case reflect.Struct:
		object, ok := node.(map[string]any)
		if !ok {
			if path == "" {
				path = "the document"
			}
			complain(path, "must be an object")
			return
		}
		if path != "" {
			path += "."
		}
		var known []string
		for f := range t.Fields() {
			key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			known = append(known, key)
			value, present := object[key]
			switch {
			case present:
				compareFields(path+key, value, f.Type, mistakes)
			case options != "omitempty":
				complain(path+key, "missing")
			}
		}
		var unknown []string
		for key := range object {
			if !slices.Contains(known, key) {
				unknown = append(unknown, key)
			}
		}
		slices.Sort(unknown)
		for _, key := range unknown {
			complain(path+key, "unknown field; the fields here are "+strings.Join(known, ", "))
		}
	}
}
