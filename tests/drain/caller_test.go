package drain

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"histogate/tests/stack"
)

// patience is longer than a gateway may take to end.
const patience = 40 * time.Second

// caller is a connection to the API, over which requests are sent as bytes: no
// client in between opens another or sends anything twice.
type caller struct {
	net.Conn
	answers *bufio.Reader
	sent    *tile // the request that was sent last
	patch   int
}

func dial(s *stack.Stack) (*caller, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		return nil, err
	}
	c := &caller{Conn: conn, answers: bufio.NewReader(conn)}
	return c, conn.SetDeadline(time.Now().Add(patience))
}

// tile is an image and what it is answered alone.
type tile struct {
	image  []byte
	output []byte // the numbers, as they are written
}

// request is a sound request for the tile, as it goes over a connection.
func (t *tile) request(patch int) []byte {
	body := stack.Tile{
		ImageData: t.image, SlideName: "slide", X: 224 * patch, Width: 224, Height: 224, Ratio: 0.5,
		PatchIdx: patch, ModelName: model, Mode: "embedding",
	}.Body()
	return fmt.Appendf(nil, "POST /invocations HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// answer is the body of the answer to that request.
func (t *tile) answer(patch int) []byte {
	return fmt.Appendf(nil, `{"output":[%s],"slide_name":"slide","x":%d,"y":0,"width":224,"height":224,"tissue_ratio":0.5,"patch_idx":%d,"resolution":null,"embedding":null}`,
		t.output, 224*patch, patch)
}

// reply is an answer over a connection.
type reply struct {
	status int
	closes bool // whether it announces that the connection will be closed
	body   []byte
}

func (r *reply) String() string { return fmt.Sprintf("status %d, %.300s", r.status, r.body) }

func (c *caller) read() (*reply, error) {
	response, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("half an answer: %w", err)
	}
	return &reply{response.StatusCode, response.Close, body}, nil
}

// send writes the whole request for a tile.
func (c *caller) send(t *tile, patch int) error {
	c.sent, c.patch = t, patch
	_, err := c.Write(t.request(patch))
	return err
}

// sendHalf writes the first half of the request for a tile.
func (c *caller) sendHalf(t *tile, patch int) error {
	text := t.request(patch)
	_, err := c.Write(text[:len(text)/2])
	return err
}

// served reads the answer to what was sent and tells what is wrong with it, if it
// is not to the bit the one that the tile gets alone. last says that the connection
// must end with it.
func (c *caller) served(last bool) error {
	r, err := c.read()
	switch {
	case err != nil:
		return err
	case r.status != http.StatusOK || !bytes.Equal(r.body, c.sent.answer(c.patch)):
		return fmt.Errorf("the answer is not the tile's own: %v", r)
	case last && !r.closes:
		return fmt.Errorf("the answer does not announce that the connection is closed")
	case last:
		return c.ended()
	default:
		return nil
	}
}

// refused reads the answer to what was sent and tells what is wrong with it, if it
// is not a failure of the status and the code.
func (c *caller) refused(status int, code string) error {
	r, err := c.read()
	if err != nil {
		return err
	}
	if r.status != status || !bytes.Contains(r.body, fmt.Appendf(nil, `"code":%q`, code)) {
		return fmt.Errorf("not %d of code %s: %v", status, code, r)
	}
	return c.ended()
}

// ended waits for the end of the connection, which must be orderly.
func (c *caller) ended() error {
	if _, err := c.answers.ReadByte(); err != io.EOF {
		return fmt.Errorf("the connection ends with %w", err)
	}
	return nil
}
