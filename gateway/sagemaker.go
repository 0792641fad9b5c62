package gateway

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// What SageMaker asks of a container beside /ping and /invocations, and, for
// callers without an AWS account, what its runtime makes of a container's answers.

const (
	megabyte = 1 << 20
	// Batch transform takes no product of MaxConcurrentTransforms and
	// MaxPayloadInMB above this.
	transformMegabytes = 100
)

// executionParameters tells batch transform how to send records, as far as whoever
// started the job has not: one a request, as large and as many at once as are
// taken here.
func (g *Gateway) executionParameters(c *fiber.Ctx) error {
	payload := min(max(g.cfg.MaxBodyBytes/megabyte, 1), transformMegabytes) // 0 would stand for no bound
	return c.JSON(struct {
		MaxConcurrentTransforms int
		BatchStrategy           string
		MaxPayloadInMB          int
	}{min(g.cfg.MaxInFlight, transformMegabytes/payload), "SINGLE_RECORD", payload})
}

// endpoint serves /invocations under the path that SageMaker's runtime has for its
// callers, whatever the endpoint's name is.
func (g *Gateway) endpoint(c *fiber.Ctx) error {
	traceOf(c).runtime = true
	c.Set("x-amzn-RequestId", traceOf(c).id)
	c.Set("x-Amzn-Invoked-Production-Variant", "AllTraffic")
	return g.invocations(c)
}

// modelError is a failure as SageMaker's runtime hands it on: as one of its own,
// with the container's status and body inside.
type modelError struct {
	ErrorCode          string
	LogStreamArn       string
	Message            string
	OriginalMessage    string
	OriginalStatusCode int
}

func newModelError(endpoint string, original failure, status int) modelError {
	text, _ := json.Marshal(original) // it holds nothing that cannot be written
	party, code := "client", "CLIENT_ERROR_FROM_MODEL"
	if status >= http.StatusInternalServerError {
		party, code = "server", "INTERNAL_FAILURE_FROM_MODEL"
	}
	return modelError{
		code,
		"arn:aws:logs:local:000000000000:log-group:/aws/sagemaker/Endpoints/" + endpoint,
		fmt.Sprintf("Received %s error (%d) from primary with message \"%s\"", party, status, text),
		string(text),
		status,
	}
}

// writeModelError answers so, without the container's headers.
func writeModelError(c *fiber.Ctx, original failure, status int) error {
	c.Response().Header.Del(fiber.HeaderRetryAfter)
	c.Response().Header.Del(fiber.HeaderXRequestID)
	c.Set("x-amzn-errortype", "ModelError")
	return c.Status(statusModelError).JSON(newModelError(c.Params("name"), original, status))
}

// portRange is the ports that may be taken; the zero value is any.
type portRange struct{ first, last int }

// childPorts is how many ports a Triton takes.
const childPorts = 3

// readPortRange reads "first-last"; nothing is any port.
func readPortRange(c *Config, value string) error {
	const least = childPorts + 1 // and that of the metrics
	c.SafePorts = portRange{}
	if value == "" {
		return nil
	}
	from, to, _ := strings.Cut(value, "-")
	first, err1 := strconv.Atoi(strings.TrimSpace(from))
	last, err2 := strconv.Atoi(strings.TrimSpace(to))
	if err1 != nil || err2 != nil || first < 1 || last > 65535 || last-first+1 < least {
		return fmt.Errorf("must be two port numbers, first-last, with %d ports or more", least)
	}
	c.SafePorts = portRange{first, last}
	return nil
}

// candidates are ports to try: those of the range, or n times any.
func (r portRange) candidates(n int) []int {
	if r == (portRange{}) {
		return make([]int, n)
	}
	// In no fixed order: others look for ports in the same range.
	ports := rand.Perm(r.last - r.first + 1)
	for i := range ports {
		ports[i] += r.first
	}
	return ports
}

// free finds n different TCP ports of the range that nothing listens on now.
func (r portRange) free(n int) (ports []int, err error) {
	for _, candidate := range r.candidates(n) {
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(candidate))); err != nil {
			continue // taken
		}
		defer l.Close() // at the end: held until all are known, so that they differ
		if ports = append(ports, portOf(l)); len(ports) == n {
			return ports, nil
		}
	}
	return nil, r.explain("Triton", err)
}

// listenMetrics listens on the port that is set; on any of the range where that is 0.
func (r portRange) listenMetrics(host string, port int) (l *net.TCPListener, err error) {
	const setting = "METRICS_PORT"
	if port != 0 {
		return listen(host, port, setting)
	}
	for _, candidate := range r.candidates(1) {
		if l, err = listen(host, candidate, setting); err == nil {
			return l, nil
		}
	}
	return nil, r.explain(setting, err)
}

// explain says what to change when no ports were found, the last of them because of err.
func (r portRange) explain(who string, err error) error {
	if r == (portRange{}) {
		return fmt.Errorf("no port is free for %s: %w", who, err)
	}
	return fmt.Errorf("no port of SAGEMAKER_SAFE_PORT_RANGE=%d-%d is free for %s; widen it: %w", r.first, r.last, who, err)
}
