package prep

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// checkFields holds a parsed YAML document against the struct that it will be
// read into: each key must be a field, each field a key unless its tag says
// omitempty, and each value of the field's type, since the YAML reader would cut
// 4.5 to 4 and take "4" for 4. All differences are reported, by their path.
func checkFields(document, like any) error {
	var mistakes []error
	compareFields("", document, reflect.TypeOf(like), &mistakes)
	return errors.Join(mistakes...)
}

func compareFields(path string, node any, t reflect.Type, mistakes *[]error) {
	complain := func(at, message string) { *mistakes = append(*mistakes, fmt.Errorf("%s: %s", at, message)) }
	switch t.Kind() {
	case reflect.Pointer: // tells an absent value from zero
		compareFields(path, node, t.Elem(), mistakes)
	case reflect.String:
		if _, ok := node.(string); !ok {
			complain(path, "must be a text")
		}
	case reflect.Int, reflect.Int64:
		switch n := node.(type) {
		case int64:
		case uint64:
			if n > math.MaxInt64 {
				complain(path, "must fit a 64-bit integer")
			}
		default:
			complain(path, "must be an integer")
		}
	case reflect.Float64:
		switch n := node.(type) {
		case int64, uint64, float64:
		case string: // so the YAML reader has 1e6, though it takes it for a number
			if _, err := strconv.ParseFloat(n, 64); err != nil || !strings.ContainsAny(n, "eE") {
				complain(path, "must be a number")
			}
		default:
			complain(path, "must be a number")
		}
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
