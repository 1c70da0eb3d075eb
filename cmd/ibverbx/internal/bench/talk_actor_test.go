package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// actor is the other end of a conversation: it says what a script says, and has a real virtual
// queue pair for what travels beside it.
type actor struct {
	net.Conn // what is not there is not called
	column   *pair
	end      *layers.End // of column
	name     string
	mine     layers.Card
	params   *Params
	lines    []string

	mu    sync.Mutex
	text  []byte // of the line that is being said
	heard []byte // of the frame that is being written
	turns int    // how many frames were
	said  int
	gone  bool
}

// newActor makes the peer that drives end a or b.
func newActor(t *testing.T, name string, p *Params, device verbs.Device, script string) *actor {
	t.Helper()
	a := &actor{name: name, params: p, lines: strings.Split(script, "\n")}
	i := int(name[0] - 'a')
	here := [2]bool{}
	here[i] = true
	mem := newMemory(p, here)
	var err error
	if a.column, err = newHalf(p, p.Schemes[0], mem, i, []verbs.Device{device}); err != nil {
		t.Fatal(err)
	}
	a.end = a.column.ends[i]
	if a.mine, err = a.end.Card(); err != nil {
		t.Fatal(err)
	}
	return a
}

// patient is how long an actor waits until it is its turn. It does not sleep: that takes longer.
const patient = 50 * time.Microsecond

// Read says the next line, once the other end has said its part or seems to wait.
func (a *actor) Read(b []byte) (int, error) {
	for start := time.Now(); ; runtime.Gosched() {
		a.mu.Lock()
		switch late := time.Since(start) > patient; {
		case a.gone:
			a.mu.Unlock()
			return 0, net.ErrClosed
		case len(a.text) > 0:
			n := copy(b, a.text)
			a.text = a.text[n:]
			a.mu.Unlock()
			return n, nil
		case len(a.lines) == 0 && late:
			a.mu.Unlock()
			return 0, io.EOF
		case len(a.lines) > 0 && (late || a.said < a.turns || a.said == 0):
			a.text = a.say(a.lines[0])
			a.lines = a.lines[1:]
			a.said++
			start = time.Now()
		}
		a.mu.Unlock()
	}
}

// say is a line as it is on the wire.
func (a *actor) say(line string) []byte {
	kind, lie, _ := strings.Cut(line, " ")
	if kind == "!" {
		raw := []byte(lie)
		if n, err := fmt.Sscanf(lie, "%x", &raw); n != 1 || err != nil {
			raw = []byte(lie)
		}
		return raw
	}
	body := a.honest(kind)
	if lie != "" {
		body = overwrite(body, json.RawMessage(lie))
	}
	m := rendezvous.Message{Kind: kind, Body: body}
	text, err := json.Marshal(m)
	if err != nil { // the lie is no JSON: as it is
		text = []byte(`{"kind":"` + kind + `","body":` + lie + `}`)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// honest is what a message holds that keeps to the rules; nil is nothing.
func (a *actor) honest(kind string) json.RawMessage {
	self := selfBody{Version: "v", Offer: offer("nic")}
	size, scheme := a.params.Sizes[0], a.params.Schemes[0]
	var body any
	switch kind {
	case kindOffer:
		body = self
	case kindTask:
		body = taskBody{Self: self, Params: a.params}
	case kindColumn:
		body = a.mine
	case kindCell:
		body = cellBody{}
	case kindRound:
		body = roundBody{Messages: 2}
	case kindVerdict:
		body = verdictBody{}
	case kindRow:
		body = rowBody{Results: []Result{{Size: size, Scheme: scheme}}}
	case "error":
		body = map[string]string{"text": "no reason"}
	default:
		return nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // of what is made here
	}
	return text
}

// overwrite puts the fields of one document into another one, at every depth; what is no object
// takes the other's place.
func overwrite(honest, lie json.RawMessage) json.RawMessage {
	var fields, lies map[string]json.RawMessage
	if json.Unmarshal(lie, &lies) != nil || lies == nil || json.Unmarshal(honest, &fields) != nil ||
		fields == nil {
		return lie
	}
	for key, value := range lies {
		fields[key] = overwrite(fields[key], value)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return lie
	}
	return text
}

// Write hears what the other end says. Its column is what the virtual queue pair here waits for.
func (a *actor) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return 0, net.ErrClosed
	}
	if a.turns == 0 && bytes.HasPrefix(b, []byte("\x89ibverbx")) {
		return len(b), nil
	}
	a.heard = append(a.heard, b...)
	for len(a.heard) >= 4 {
		n := 4 + int(binary.BigEndian.Uint32(a.heard))
		if len(a.heard) < n {
			break
		}
		a.turns++
		var m rendezvous.Message
		var column layers.Card
		if json.Unmarshal(a.heard[4:n], &m) == nil && m.Kind == kindColumn && m.Decode(&column) == nil {
			_ = a.end.Connect(&column) // it may be of another scheme
		}
		a.heard = a.heard[n:]
	}
	return len(b), nil
}

func (a *actor) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	return nil
}

func (a *actor) SetDeadline(time.Time) error { return nil }

func (a *actor) SetReadDeadline(time.Time) error { return nil }

func (a *actor) SetWriteDeadline(time.Time) error { return nil }

func (a *actor) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// hello is what an end begins a conversation with.
const hello = "\x89ibverbx\x00\x00\x00\x09" + string(rune(len(Protocol))) + Protocol

// greeted is an actor that says hello first.
type greeted struct {
	*actor
	hello *strings.Reader
}

func (g *greeted) Read(b []byte) (int, error) {
	if g.hello.Len() > 0 {
		return g.hello.Read(b)
	}
	return g.actor.Read(b)
}
