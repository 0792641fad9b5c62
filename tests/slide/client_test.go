package slide

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// pauses are those between the attempts of a client, whatever Retry-After says.
var pauses = []time.Duration{500 * time.Millisecond, time.Second}

// client sends as the models' real clients do: connections are kept alive, a 429, a
// 5xx and a time-out are tried three times in all, and a connection that is closed or
// reset without an answer is a tile lost.
type client struct {
	*http.Client
	url     string
	retries atomic.Int64
}

func newClient(url string) *client {
	return &client{Client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: inFlight},
		Timeout:   30 * time.Second,
	}, url: url}
}

// reply is an answer as it came.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r *reply) String() string { return fmt.Sprintf("status %d, %.300s", r.status, r.body) }

// once sends a body, once.
func (c *client) once(body []byte) (*reply, error) {
	request, err := http.NewRequest(http.MethodPost, c.url+"/invocations", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.GetBody = nil // so that nothing is sent again behind the test's back
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	r := &reply{status: response.StatusCode, header: response.Header}
	r.body, err = io.ReadAll(response.Body)
	return r, err
}

// send sends a body, up to three times, and returns the answer, or why it is lost.
func (c *client) send(body []byte) (*reply, error) {
	var history []error
	for attempt := 0; ; attempt++ {
		began := time.Now()
		r, err := c.once(body)
		var timeout net.Error
		switch {
		case err == nil && r.status == http.StatusOK:
			return r, nil
		case err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()):
			return nil, fmt.Errorf("dropped: %w", err)
		case err == nil && r.status != http.StatusTooManyRequests && r.status < 500:
			return nil, fmt.Errorf("refused: %v", r)
		case err == nil:
			err = errors.New(r.String())
		}
		history = append(history, fmt.Errorf("attempt at %s, for %s: %w",
			began.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
		if attempt == len(pauses) {
			return nil, errors.Join(history...)
		}
		c.retries.Add(1)
		time.Sleep(pauses[attempt])
	}
}
