package gateway

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"histogate/prep"
)

// The README tells of every setting, route and code, with its default.
func TestReadmeIsComplete(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // table row by what stands in backquotes in it
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "|") {
			for i, part := range strings.Split(line, "`") {
				if i%2 == 1 {
					rows[part] = line
				}
			}
		}
	}
	for _, s := range settings() {
		row, ok := rows[s.env]
		if !ok {
			t.Errorf("no row for the setting %s", s.env)
		} else if s.value != "" && s.env != "PREPROCESS_WORKERS" && !strings.Contains(row, s.value) {
			t.Errorf("the row of %s does not hold its default %q: %s", s.env, s.value, row)
		}
	}
	codes := declaredCodes(t)
	for _, code := range slices.Concat(codes, stage1Codes()) {
		if _, ok := rows[string(code)]; !ok {
			t.Errorf("no row for the code %s", code)
		}
	}
	g := run(t, func(c *Config) { c.RuntimeEmulation = true })
	for _, route := range g.app.GetRoutes(true) {
		if route.Method == http.MethodHead {
			continue
		}
		path := strings.NewReplacer(":model", "{model}", ":name", "{name}").Replace(route.Path)
		if _, ok := rows[route.Method+" "+path]; !ok {
			t.Errorf("no row for the route %s %s", route.Method, path)
		}
	}
}

// stage1Codes are the codes that package prep has.
func stage1Codes() []Code {
	return []Code{Code(prep.InvalidRequest), Code(prep.InvalidImage), Code(prep.WrongShape), Code(prep.InvalidRNA), Code(prep.UnsupportedMode)}
}
