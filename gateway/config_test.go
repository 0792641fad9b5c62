package gateway

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func read(args []string, env map[string]string) (*Config, error) {
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	return ReadConfig(args, lookup, io.Discard)
}

func TestConfigPrecedence(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		env  map[string]string
		port int
	}{
		{"default", nil, nil, 8080},
		{"alias", nil, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081"}, 8081},
		{"variable over alias", nil, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081", "PORT": "8082"}, 8082},
		{"empty is not set", nil, map[string]string{"PORT": ""}, 8080},
		{"flag over all", []string{"-port", "0"}, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081", "PORT": "8082"}, 0},
	} {
		c, err := read(test.args, test.env)
		if err != nil || c.Port != test.port {
			t.Errorf("%s: port %v, error %v; want %d", test.name, c, err, test.port)
		}
	}
	c, err := read([]string{"--models=h1, h0", "--drain-limit", "3s"}, map[string]string{"LOG_LEVEL": "debug"})
	if err != nil || strings.Join(c.Models, " ") != "h1 h0" || c.DrainLimit != 3*time.Second || c.LogLevel.String() != "DEBUG" {
		t.Errorf("%+v, %v", c, err)
	}
}

// What an operator hardly meant is taken and told in the log.
func TestConfigWarnings(t *testing.T) {
	for _, test := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{nil, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081", "PORT": "8082"}, `SAGEMAKER_BIND_TO_PORT=\"8081\" is passed over for PORT=\"8082\"`},
		{[]string{"-port", "0"}, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081"}, `SAGEMAKER_BIND_TO_PORT=\"8081\" is passed over for -port=\"0\"`},
		{nil, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081", "PORT": "8081"}, ""},
		{nil, map[string]string{"SAGEMAKER_BIND_TO_PORT": "8081"}, ""},
		{nil, map[string]string{"MAX_BODY_BYTES": "500000"}, "MAX_BODY_BYTES=500000 is less than the 1048576"},
		{nil, map[string]string{"MAX_BODY_BYTES": "1048576"}, ""},
	} {
		cfg, err := read(append(test.args, "-model-repository", t.TempDir()), test.env)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		if _, err := New(t.Context(), cfg, slog.New(slog.NewJSONHandler(&log, nil))); err == nil { // there is no model
			t.Fatal("served")
		}
		if got := log.String(); strings.Contains(got, `"WARN"`) != (test.want != "") || !strings.Contains(got, test.want) {
			t.Errorf("%v %v: %s, want %s", test.args, test.env, got, test.want)
		}
	}
	_, err := read(nil, map[string]string{"SAGEMAKER_BIND_TO_PORT": "abc", "PORT": "8082", "PREPROCESS_WORKERS": "1000000000"})
	for _, want := range []string{`SAGEMAKER_BIND_TO_PORT="abc": must be a port number`, `PREPROCESS_WORKERS="1000000000": must be a whole number from 1 to 4096`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestConfigReportsEveryMistake(t *testing.T) {
	_, err := read([]string{"-port", "70000", "more"}, map[string]string{
		"REQUEST_TIMEOUT": "25", "MAX_IN_FLIGHT": "0", "TRITON_ADDRESS": "nowhere", "LOG_LEVEL": "loud",
		"PREPROCESS_WORKERS": "x", "GATEWAY_NICE": "20", "SAGEMAKER_BIND_TO_PORT": "8081",
	})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		`-port="70000"`, `"more"`, `REQUEST_TIMEOUT="25"`, `"30s"`, `MAX_IN_FLIGHT="0"`, `TRITON_ADDRESS="nowhere"`, `host:port`,
		`LOG_LEVEL="loud"`, `PREPROCESS_WORKERS="x"`, `GATEWAY_NICE="20": must be a whole number from 0 to 19`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported in:\n%v", want, err)
		}
	}
	if _, err := read(nil, map[string]string{"PORT": "9090"}); err == nil || !strings.Contains(err.Error(), "both 9090") {
		t.Errorf("one port for two servers: %v", err)
	}
	if _, err := read(nil, map[string]string{"DRAIN_DELAY": "20s"}); err == nil || !strings.Contains(err.Error(), "DRAIN_DELAY=20s is not less than the 20s of DRAIN_LIMIT") {
		t.Errorf("a delay as long as the limit: %v", err)
	}
	if _, err := read(nil, map[string]string{"DRAIN_DELAY": "-1s", "PPROF": "maybe"}); err == nil || !strings.Contains(err.Error(), `DRAIN_DELAY="-1s"`) || !strings.Contains(err.Error(), `PPROF="maybe"`) {
		t.Errorf("a delay below zero, and a maybe: %v", err)
	}
	for endpoint, want := range map[string]string{
		"http://user:secret@collector:4318":   "OTEL_EXPORTER_OTLP_HEADERS", // Triton would show it in its arguments
		"http://user:secret%@collector:4318":  "must be the URL",
		"user:secret@collector:4318":          "must be the URL",
		"http://user:secret@collector:a port": "must be the URL",
	} {
		if _, err := read(nil, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}); err == nil ||
			!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	if _, err := read([]string{"-no-such"}, nil); err == nil {
		t.Error("an unknown flag is taken")
	}
}

func TestUsageListsEverySetting(t *testing.T) {
	var usage strings.Builder
	if _, err := ReadConfig([]string{"-h"}, func(string) (string, bool) { return "", false }, &usage); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("-h: %v", err)
	}
	for _, s := range settings() {
		if !strings.Contains(usage.String(), "-"+s.flag()+" ("+s.env+")") {
			t.Errorf("%s is missing in the usage", s.env)
		}
	}
}
