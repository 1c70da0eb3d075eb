package sendside

import (
	"bytes"
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// keptMessage is a message that the program has kept.
type keptMessage struct {
	m    *transport.Message
	e    *end
	text []byte // the original header and data
}

// handle is the handler of active messages.
func (s *site) handle(m *transport.Message) {
	w := s.w
	e, _ := m.Endpoint().Value().(*end)
	if e == nil || e.site != s {
		w.Broken(ruleMessages, "a message of no endpoint: id %d, % x", m.ID(), m.Data())
	}
	w.enter(s, sprintf("message %d for %v: id %d, %d and %d bytes", e.handled, e, m.ID(), len(m.Header()),
		len(m.Data())))
	w.delivered = true
	e.arrived(m)
	e.handled++
	if w.OneIn(4) && !w.finishing {
		m.Keep()
		w.kept = append(w.kept, &keptMessage{m, e, slices.Concat(m.Header(), m.Data())})
	} else {
		e.givenBack++
	}
	e.react()
	w.leave()
}

// arrived checks a message that an endpoint has sent.
func (e *end) arrived(m *transport.Message) {
	w, from := e.w, e.peer
	if e.closed {
		w.Broken(ruleMessages, "%v has ended, and gets a message", e)
	}
	if e.handled >= len(from.sent) {
		w.Broken(ruleMessages, "%v gets message %d, and %d were sent", e, e.handled, len(from.sent))
	}
	o := from.sent[e.handled]
	if m.ID() != o.id || !bytes.Equal(m.Header(), lab.Noise(o.hdrKey, o.hdr)) ||
		!bytes.Equal(m.Data(), lab.Noise(o.key, o.n)) {
		w.Broken(ruleMessages, "%v gets message %d with id %d, %d bytes of header and %d of data: not "+
			"those of %v, id %d with %d bytes of header",
			e, e.handled, m.ID(), len(m.Header()), len(m.Data()), o, o.id, o.hdr)
	}
	for _, before := range from.ops[min(from.ended, o.seq):o.seq] {
		if before.seq < o.fence && !before.ended && !before.landed() {
			w.Broken(ruleFence, "%v arrives, and %v, before the fence, has not landed", o, before)
		}
	}
}

// release gives a kept message back.
func (w *transportWorld) release() {
	if len(w.kept) == 0 {
		return
	}
	i := w.Rng.IntN(len(w.kept))
	k := w.kept[i]
	w.kept = slices.Delete(w.kept, i, i+1)
	if text := slices.Concat(k.m.Header(), k.m.Data()); !bytes.Equal(text, k.text) {
		w.Broken(lab.Ownership, "a message that %v keeps has changed", k.e)
	}
	w.Logf("  %v releases a message", k.e)
	k.e.givenBack++
	w.calling++
	k.m.Release()
	w.calling--
}
