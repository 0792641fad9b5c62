package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	asked := "nothing"
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Path
		if r.URL.Path == "/readyz" {
			http.Error(w, "not ready: h1", http.StatusServiceUnavailable)
		}
	})
	server, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	defer server.Close()
	defer secure.Close()
	secureAddress, err := url.Parse(secure.URL)
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	goneAddress, err := url.Parse(gone.URL)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	port := "PORT=" + address.Port()
	for _, test := range []struct {
		name  string
		env   []string
		args  []string
		code  int
		asked string
		says  string
	}{
		{"it asks /ping of PORT", []string{port}, nil, 0, "GET /ping", ""},
		{"another path", []string{port}, []string{"/livez"}, 0, "GET /livez", ""},
		{"the port that SageMaker gives", []string{"SAGEMAKER_BIND_TO_PORT=" + address.Port()}, nil, 0, "GET /ping", ""},
		{"the address of HOST", []string{port, "HOST=127.0.0.1"}, nil, 0, "GET /ping", ""},
		{"over TLS, whatever the certificate's name", []string{"PORT=" + secureAddress.Port(), "TLS_CERT_FILE=c.pem", "TLS_KEY_FILE=k.pem"}, []string{"/livez"}, 0, "GET /livez", ""},
		{"not ready, and why", []string{port}, []string{"/readyz"}, 1, "GET /readyz", "not ready: h1"},
		{"nobody listens", []string{"PORT=" + goneAddress.Port()}, nil, 1, "nothing", "connection refused"},
		{"a port that nobody knows", []string{"PORT=0"}, nil, 1, "nothing", "give PORT a number"},
		{"a wrong setting", []string{"PORT=x"}, nil, 1, "nothing", "PORT"},
		{"not a path", []string{port}, []string{"livez"}, 1, "nothing", "usage"},
		{"help", []string{port}, []string{"-h"}, 0, "nothing", "usage"},
		{"two paths", []string{port}, []string{"/livez", "/ping"}, 1, "nothing", "usage"},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked = "nothing"
			lookup := func(name string) (string, bool) {
				for _, entry := range test.env {
					if value, ok := strings.CutPrefix(entry, name+"="); ok {
						return value, true
					}
				}
				return "", false
			}
			var stderr strings.Builder
			code := health(test.args, lookup, &stderr)
			if code != test.code || asked != test.asked || !strings.Contains(stderr.String(), test.says) || (test.says == "") != (stderr.Len() == 0) {
				t.Errorf("exit code %d, asked %s, said %q", code, asked, stderr.String())
			}
		})
	}
}
