package main

import (
	"maps"
	"strings"
	"testing"
)

// The exit code tells a mistake in what is configured from one in how it is called.
func TestCheck(t *testing.T) {
	const repository = "../../../tests/pt2/testdata/specs" // specs alone
	for _, test := range []struct {
		name           string
		args           []string
		env            map[string]string
		code           int
		stdout, stderr []string
	}{
		{"help", []string{"-h"}, nil, 0, nil, []string{"gateway check [flags]", "-triton-address"}},
		{"unknown flag", []string{"-no-such"}, nil, 2, nil, []string{"-no-such", "it is called wrongly"}},
		{"more", []string{"more"}, map[string]string{"PORT": "x"}, 2, nil, []string{`unexpected argument "more"`, `PORT="x"`}},
		{"mistakes", nil, map[string]string{"DRAIN_LIMIT": "x"}, 1, []string{
			`mistake: DRAIN_LIMIT="x": must be`, "mistake: model h1: ", "mistake: model tissue-seg: ", "warning: TRITON_ADDRESS=", "looked at: the configuration; ",
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			env := map[string]string{"PORT": "0", "METRICS_PORT": "0", "MODEL_REPOSITORY": repository, "TRITON_ADDRESS": "127.0.0.1:1"}
			maps.Copy(env, test.env)
			var stdout, stderr strings.Builder
			lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
			if code := check(t.Context(), test.args, lookup, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, not %d", code, test.code)
			}
			for _, want := range test.stdout {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("%q is not in:\n%s", want, stdout.String())
				}
			}
			for _, want := range test.stderr {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("%q is not in:\n%s", want, stderr.String())
				}
			}
		})
	}
}
