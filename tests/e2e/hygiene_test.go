package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"histogate/tests/hygiene"
	"histogate/tests/stack"
)

// The table of HTTP that is broken, hostile or merely unusual, on the binary's sockets.
func TestHygiene(t *testing.T) {
	const limit, timeout = 9 << 20, 2 * time.Second
	s := start(t, stack.Options{Env: []string{
		"MODELS=h1", "REQUEST_TIMEOUT=" + timeout.String(), "MAX_BODY_BYTES=" + strconv.Itoa(limit), "MAX_IN_FLIGHT_BYTES=" + strconv.Itoa(limit),
	}})
	hygiene.Target{
		Address: strings.TrimPrefix(s.URL, "http://"), Model: "h1", BodyLimit: limit, Timeout: timeout,
	}.Run(t)
}
