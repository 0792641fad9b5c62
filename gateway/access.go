package gateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/gofiber/fiber/v2"
)

// headerKey is where a caller's key may stand, beside Authorization.
const headerKey = "X-API-Key"

const noKey = `there is no API key; send yours as "Authorization: Bearer KEY" or "X-API-Key: KEY"`

// readAccess reads the keys and the certificate that are configured; nil where there
// are none. Every mistake is reported.
func readAccess(cfg *Config) (k *keys, c *certificate, err error) {
	var mistakes []error
	if cfg.APIKeysFile != "" {
		k = &keys{path: cfg.APIKeysFile}
		if err := k.read(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("API_KEYS_FILE=%q: %w", cfg.APIKeysFile, err))
		}
	}
	if cfg.TLSCertFile != "" && cfg.TLSKeyFile != "" { // one alone is told of already
		c = &certificate{cert: cfg.TLSCertFile, key: cfg.TLSKeyFile}
		if err := c.read(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("TLS_CERT_FILE=%q TLS_KEY_FILE=%q: %w; name the PEM files of a certificate and of its own key", cfg.TLSCertFile, cfg.TLSKeyFile, err))
		}
	}
	return k, c, errors.Join(mistakes...)
}

// Reload reads the files of API keys and of the TLS certificate again, where there are
// any. What it reads holds for requests and connections from then on. What cannot be
// read is logged, and stays as it was.
func (g *Gateway) Reload() {
	if g.keys == nil && g.certificate == nil {
		g.log.Info("there is nothing to read again: neither API keys nor a certificate are configured")
	}
	if g.keys != nil {
		if err := g.keys.read(); err != nil {
			g.log.Error("the API keys could not be read again and stay as they were", "error", err)
		} else {
			g.log.Info("API keys are read again", "keys", len(*g.keys.known.Load()))
		}
	}
	if g.certificate != nil {
		if err := g.certificate.read(); err != nil {
			g.log.Error("the TLS certificate could not be read again and stays as it was", "error", err)
		} else {
			g.log.Info("the TLS certificate is read again", "until", g.certificate.until())
		}
	}
}

// shortestKey is how many characters an API key has at least. One of a random key of
// letters and digits is worth 5 bits and more.
const shortestKey = 16

// keys are the API keys that callers may have. Nothing keeps the keys themselves.
type keys struct {
	path  string
	known atomic.Pointer[[]digest]
}

type digest [sha256.Size]byte

// read reads the file of keys. Where that fails the keys stay as they were.
func (k *keys) read() error {
	known, err := readKeys(k.path)
	if err == nil {
		k.known.Store(&known)
	}
	return err
}

// readKeys reads a file of keys, one a line. Blank lines, and lines that begin with #,
// are nothing. An error names a line, never what is in it.
func readKeys(path string) (known []digest, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file that this process may read", err)
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if len(line) < shortestKey || bytes.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("line %d of the file is no key: write one of %d or more letters, digits and signs of ASCII, without spaces", number, shortestKey)
		}
		known = append(known, sha256.Sum256(line))
	}
	if known == nil {
		return nil, errors.New("the file holds no key: write one a line")
	}
	return known, nil
}

// hold tells whether a key is among the known ones. The time that it takes says
// nothing about them but their number.
func (k *keys) hold(key string) bool {
	given, found := sha256.Sum256([]byte(key)), 0
	for _, known := range *k.known.Load() {
		found |= subtle.ConstantTimeCompare(given[:], known[:])
	}
	return found == 1
}

// keyed is a handler for callers who have an API key, where any are configured.
func (g *Gateway) keyed(handler fiber.Handler) fiber.Handler {
	if g.keys == nil {
		return handler
	}
	return func(c *fiber.Ctx) error {
		key := c.Get(headerKey)
		if scheme, token, _ := strings.Cut(c.Get(fiber.HeaderAuthorization), " "); key == "" && strings.EqualFold(scheme, "Bearer") {
			key = strings.TrimSpace(token)
		}
		switch {
		case key == "":
			return refuse(CodeUnauthorized, noKey)
		case !g.keys.hold(key):
			return refuse(CodeUnauthorized, "the API key is not one of those that are taken; ask the operator of the service for one")
		}
		return handler(c)
	}
}
