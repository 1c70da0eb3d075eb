package transport_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// A header is refused with what is wrong with it, and taken at the bounds.
func TestRangesOfAHeader(t *testing.T) {
	long := string(make([]byte, 64))
	for _, c := range []struct {
		msg  []byte
		says string // "" where it is taken
	}{
		{message(1, 63, 64, 65535, long), ""}, {message(1, 0, 0, 0, ""), ""}, {message(2, 0, 0, 1, ""), ""},
		{message(3, 0, 0, 0, ""), ""},
		{message(1, 1, 0, 0, "")[:7], "message of 7 bytes: a header has 8"},
		{message(0, 1, 0, 0, ""), "unknown kind 0"}, {message(9, 1, 0, 0, ""), "unknown kind 9"},
		{message(2, 0, 0, 0, "x"), "message of kind 2 with a payload"},
		{message(3, 1, 0, 0, ""), "message of kind 3 with a payload"},
		{message(2, 0, 1, 0, ""), "message of kind 2 with a payload"},
		{message(1, 64, 0, 0, ""), "active message 64: ids end at 63"},
		{message(1, 5, 65, 0, long+"x"), "active message 5: a header of 65 bytes in a message of 73"},
		{message(1, 5, 2, 0, "x"), "active message 5: a header of 2 bytes in a message of 9"},
	} {
		kind, id, length, credits, err := transport.ParseHeader(c.msg)
		switch {
		case c.says != "":
			if err == nil || err.Error() != c.says && !strings.HasSuffix(err.Error(), c.says) {
				t.Errorf("% x: error %v, want %q", c.msg[:7], err, c.says)
			}
		case err != nil:
			t.Errorf("% x: %v", c.msg[:8], err)
		case fmt.Sprint(kind, id, length, credits) != fmt.Sprint(c.msg[0], c.msg[1], c.msg[2],
			uint16(c.msg[4])|uint16(c.msg[5])<<8):
			t.Errorf("% x: read as %d, %d, %d, %d", c.msg[:8], kind, id, length, credits)
		}
	}
	for _, at := range []int{3, 6, 7} {
		msg := message(1, 1, 0, 0, "")
		msg[at] = 1
		if _, _, _, _, err := transport.ParseHeader(msg); err == nil ||
			!strings.Contains(err.Error(), "reserved bytes are not zero") {
			t.Errorf("% x: %v", msg, err)
		}
	}
}

// A card is taken at the bounds of each field and refused beyond, and the endpoint can be connected
// afterwards.
func TestRangesOfACard(t *testing.T) {
	for _, c := range []struct {
		edit func(*transport.Card)
		want error
		says string // "" where it is taken
	}{
		{func(c *transport.Card) {}, nil, ""},
		{func(c *transport.Card) { c.Version++ }, verbs.ErrNotSupported, "version"},
		{func(c *transport.Card) { c.AMBuffers = 1 }, nil, ""},
		{func(c *transport.Card) { c.AMBuffers = 0 }, verbs.ErrInvalid, "am_buffers 0"},
		{func(c *transport.Card) { c.AMBuffers = transport.MaxAMBuffers }, nil, ""},
		{func(c *transport.Card) { c.AMBuffers = transport.MaxAMBuffers + 1 }, verbs.ErrInvalid,
			"am_buffers 4097"},
		{func(c *transport.Card) { c.BufferSize = 72 }, nil, ""},
		{func(c *transport.Card) { c.BufferSize = 71 }, verbs.ErrInvalid, "buffer_size 71"},
		{func(c *transport.Card) { c.BufferSize = 1 << 30 }, nil, ""},
		{func(c *transport.Card) { c.BufferSize = 1<<30 + 1 }, verbs.ErrInvalid, "buffer_size 1073741825"},
	} {
		l := newLink(t, shapes()[1])
		x := newEndpoint(t, l.a.w, transport.EndpointConfig{})
		y := newEndpoint(t, l.b.w, transport.EndpointConfig{})
		good := card(t, y)
		bad := good
		c.edit(&bad)
		err := x.Connect(bad)
		if c.says == "" {
			must(t, err)
			continue
		}
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error %v: want %v that says %q", err, c.want, c.says)
		}
		must(t, x.Connect(good))
	}
}
