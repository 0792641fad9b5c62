package gateway

import (
	"crypto/tls"
	"sync/atomic"
	"time"
)

// certificate is what the API shows to clients that speak TLS.
type certificate struct {
	cert, key string // paths
	pair      atomic.Pointer[tls.Certificate]
}

// read reads the two files. Where that fails the certificate stays as it was.
func (c *certificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err == nil {
		c.pair.Store(&pair)
	}
	return err
}

// until is when the certificate's time is over.
func (c *certificate) until() time.Time { return c.pair.Load().Leaf.NotAfter }

// config is that of every connection; it shows the certificate that was read last.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
	}
}
