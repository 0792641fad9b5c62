package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"histogate/tests/hygiene"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// certify writes a certificate for 127.0.0.1 that is its own root, and its key.
func certify(t *testing.T, folder string, serial int64) (cert, key string) {
	t.Helper()
	return certifyUntil(t, folder, serial, time.Now().Add(time.Hour))
}

func certifyUntil(t *testing.T, folder string, serial int64, until time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}, &x509.Certificate{}, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// trusting is the configuration of a client that trusts a certificate.
func trusting(t *testing.T, cert string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
}

// runTLS serves over TLS, and returns what a client needs to know.
func runTLS(t *testing.T, change func(*Config)) (*running, *tls.Config) {
	t.Helper()
	cert, key := certify(t, t.TempDir(), 1)
	r := launch(t, testSpec, testConfig, func(c *Config) {
		c.TLSCertFile, c.TLSKeyFile = cert, key
		if change != nil {
			change(c)
		}
	}, nil)
	client := trusting(t, cert)
	until(t, "it serves", func() bool { return r.models.pinged.missing() == nil })
	return r, client
}

// dialTLS opens a connection of its own to the API.
func (r *running) dialTLS(t *testing.T, client *tls.Config) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	conn, _ := r.dial(t)
	secure := tls.Client(conn, client)
	if err := secure.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return secure, bufio.NewReader(secure)
}

// All that is promised of plain HTTP holds over TLS.
func TestHygieneOverTLS(t *testing.T) {
	const limit, timeout = 9 << 20, 4 * time.Second
	r, client := runTLS(t, func(c *Config) {
		c.MaxBodyBytes, c.MaxInFlightBytes, c.RequestTimeout = limit, limit, timeout
	})
	hygiene.Target{
		Address: strings.TrimPrefix(r.url, "http://"), TLS: client, Model: "small", BodyLimit: limit, Timeout: timeout,
	}.Run(t)
}

func TestTLS(t *testing.T) {
	r, client := runTLS(t, nil)
	old := client.Clone()
	old.MaxVersion = tls.VersionTLS11
	conn, _ := r.dial(t)
	if err := tls.Client(conn, old).HandshakeContext(t.Context()); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	client.NextProtos = []string{"h2", "http/1.1"}
	secure, answers := r.dialTLS(t, client)
	if state := secure.ConnectionState(); state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("TLS version %#x, protocol %q", state.Version, state.NegotiatedProtocol)
	}
	if status, closes := ask(t, secure, answers); status != http.StatusOK || closes {
		t.Errorf("a tile: %d, closed: %v", status, closes)
	}

	// A client that takes the port for one of plain HTTP is told, whatever it sends.
	for _, body := range []string{goodTile, strings.Repeat("x", 1<<20)} {
		response, err := http.Post(r.url+"/invocations", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var f failure
		err = json.NewDecoder(response.Body).Decode(&f)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusBadRequest || f.Code != CodeMalformedHTTP || !strings.Contains(f.Detail, "https") {
			t.Errorf("plain HTTP: %d %+v, %v", response.StatusCode, f, err)
		}
	}
}

// The certificate is read again on request: connections that are open go on, new ones
// see the new one, and what cannot be used changes nothing.
func TestCertificateIsReadAgain(t *testing.T) {
	folder := t.TempDir()
	r, _ := runTLS(t, func(c *Config) { c.TLSCertFile, c.TLSKeyFile = certify(t, folder, 1) })
	before, beforeAnswers := r.dialTLS(t, trusting(t, r.cfg.TLSCertFile))
	serial := func() int64 {
		conn, _ := r.dialTLS(t, trusting(t, r.cfg.TLSCertFile))
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	certify(t, folder, 2)
	r.Reload()
	if n := serial(); n != 2 {
		t.Errorf("certificate %d", n)
	}
	good, err := os.ReadFile(r.cfg.TLSKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.cfg.TLSKeyFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Reload()
	if n := serial(); n != 2 || !strings.Contains(r.log.String(), "certificate could not be read again") {
		t.Errorf("certificate %d after a key that is none; log:\n%s", n, r.log)
	}
	if strings.Contains(r.log.String(), string(good)) {
		t.Error("the private key is logged")
	}
	if status, _ := ask(t, before, beforeAnswers); status != http.StatusOK {
		t.Errorf("a connection that was open: %d", status)
	}
}

func TestTLSFilesThatAreWrong(t *testing.T) {
	cert, key := certify(t, t.TempDir(), 1)
	_, other := certify(t, t.TempDir(), 2)
	for _, test := range []struct{ cert, key, named string }{
		{cert, "/nonexistent/key", "no such file"},
		{cert, other, "does not match"},
		{key, key, "TLS_CERT_FILE="},
	} {
		if _, err := New(t.Context(), &Config{TLSCertFile: test.cert, TLSKeyFile: test.key}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), test.named) {
			t.Errorf("%+v: %v", test, err)
		}
	}
	for _, name := range []string{"TLS_CERT_FILE", "TLS_KEY_FILE"} {
		if _, err := read(nil, map[string]string{name: cert}); err == nil || !strings.Contains(err.Error(), "TLS_CERT_FILE and TLS_KEY_FILE is set alone") {
			t.Errorf("%s alone: %v", name, err)
		}
	}
}

// While draining, connections of TLS are served and then closed as plain ones are,
// with its farewell; one whose handshake never comes keeps nobody waiting.
func TestDrainOverTLS(t *testing.T) {
	r, client := runTLS(t, nil)
	idle, idleAnswers := r.dialTLS(t, client)
	if status, closes := ask(t, idle, idleAnswers); status != http.StatusOK || closes {
		t.Fatalf("before the drain: %d, closed: %v", status, closes)
	}
	unused, unusedAnswers := r.dialTLS(t, client)
	_, quietAnswers := r.dialTLS(t, client)
	silent, _ := r.dial(t)
	half, halfAnswers := r.dialTLS(t, client)
	if _, err := io.WriteString(half, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.stop()
	until(t, "it drains", r.draining.Load)
	for name, c := range map[string]struct {
		net.Conn
		answers *bufio.Reader
	}{"idle": {idle, idleAnswers}, "unused": {unused, unusedAnswers}} {
		if status, closes := ask(t, c, c.answers); status != http.StatusOK || !closes {
			t.Errorf("on an %s connection: %d, closed: %v", name, status, closes)
		}
		if _, err := c.answers.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("after the answer on an %s connection: %v", name, err)
		}
	}
	if _, err := quietAnswers.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("a quiet connection: %v", err)
	}
	if text, err := io.ReadAll(silent); len(text) > 0 || err != nil {
		t.Errorf("without a handshake: %q, %v", text, err)
	}
	response, err := http.ReadResponse(halfAnswers, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a request that stopped half-way: %d", response.StatusCode)
	}
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	r.ended <- nil // for the clean-up
	if took := time.Since(began); took > halfSentLimit+3*time.Second {
		t.Errorf("it ended after %s", took)
	}
}

// recorder keeps what it reads.
type recorder struct {
	net.Conn
	read bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.read.Write(p[:n])
	return n, err
}

// The end of a connection is told in the words of TLS, by an alert, whichever way it
// comes: without that it could be somebody on the way who cut it.
func TestTLSEndsWithItsFarewell(t *testing.T) {
	r, client := runTLS(t, nil)
	client.MaxVersion = tls.VersionTLS12 // which does not hide that it is an alert
	for _, test := range []struct {
		name, fields string
		drain        bool
	}{
		{name: "after the last answer", fields: "Connection: close"},
		{name: "after headers not all read", fields: "Cookie: " + strings.Repeat("x", 600<<10)},
		{name: "at the end of a drain", fields: "X-A: b", drain: true},
	} {
		conn, _ := r.dial(t)
		raw := &recorder{Conn: conn}
		secure := tls.Client(raw, client)
		if _, err := io.WriteString(secure, "GET /livez HTTP/1.1\r\nHost: x\r\n"+test.fields+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if test.drain {
			r.stop()
		}
		if _, err := io.ReadAll(secure); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		const alert = 21
		last := byte(0)
		for records := raw.read.Bytes(); len(records) >= 5; records = records[5+binary.BigEndian.Uint16(records[3:]):] {
			last = records[0]
		}
		if last != alert {
			t.Errorf("%s: the last record is of type %d", test.name, last)
		}
	}
}

// A connection that is not used hears nothing, with its handshake or without.
func TestUnusedTLSConnectionHearsNothing(t *testing.T) {
	r, client := runTLS(t, func(c *Config) { c.RequestTimeout = 200 * time.Millisecond })
	silent, _ := r.dial(t)
	_, answers := r.dialTLS(t, client)
	for name, conn := range map[string]io.Reader{"with its handshake": answers, "without": silent} {
		if text, err := io.ReadAll(conn); err != nil || len(text) > 0 {
			t.Errorf("%s it hears %q, %v", name, text, err)
		}
	}
}

// A caller who has gone is not served, though the farewell of TLS, or a request that
// followed, lies unread before the end.
func TestCallerWhoWentIsSeenBehindUnreadData(t *testing.T) {
	for name, secure := range map[string]bool{"the farewell of TLS": true, "another request": false} {
		t.Run(name, func(t *testing.T) {
			var r *running
			var conn net.Conn
			if secure {
				var client *tls.Config
				r, client = runTLS(t, nil)
				conn, _ = r.dialTLS(t, client)
			} else {
				r = run(t, nil)
				conn, _ = r.dial(t)
			}
			var inferences atomic.Int64
			r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				inferences.Add(1)
				return tritontest.Zeros(r.config, q), nil
			})
			w := r.models.list[0].window
			w.open(false)
			if _, err := fmt.Fprintf(conn, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(goodTile), goodTile); err != nil {
				t.Fatal(err)
			}
			until(t, "it is parked", func() bool {
				w.open(false) // a probe that succeeds opens it
				return w.parked() > 0
			})
			if !secure {
				if _, err := io.WriteString(conn, "POST /invoc"); err != nil {
					t.Fatal(err)
				}
			}
			_ = conn.Close()
			time.Sleep(50 * time.Millisecond)
			w.open(true)
			until(t, "it is dropped", func() bool {
				return r.counted(t, "histogate_requests_total", "route", "/invocations", "model", "small", "status", "499", "code", string(CodeCallerGone)) == 1
			})
			if n := inferences.Load(); n != 0 {
				t.Errorf("%d inferences for nobody", n)
			}
		})
	}
}
