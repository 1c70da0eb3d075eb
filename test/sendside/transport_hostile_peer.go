package sendside

import (
	"bytes"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// intruder is a peer that is no endpoint: it has a virtual queue pair and sends anything.
type intruder struct {
	w    *transportWorld
	site *site
	e    *end // the endpoint at the other end
	cq   *ibverbx.VirtualCQ
	vq   *ibverbx.VirtualQP
	mr   *ibverbx.MR
	mem  []byte

	sent []forged
	bad  bool // it has sent what is no message: nothing after that may be handled
	wcs  [16]ibverbx.WC
}

// forged is a message of an intruder, as the endpoint must handle it.
type forged struct {
	id   transport.AMID
	hdr  []byte
	data []byte
}

// The memory of an intruder: what a flush reads, then receive buffers, then what it sends.
const (
	recvAt      = 8 * ibverbx.MaxRails
	messageSize = 600
	recvSlots   = 16
	sendAt      = recvAt + recvSlots*messageSize
	sendSlots   = 64
)

// intrude makes the second end of a connection an intruder.
func (c *pair) intrude(w *transportWorld, s *site) {
	in := &intruder{w: w, site: s, e: c.ends[0], mem: make([]byte, sendAt+sendSlots*messageSize)}
	c.intruder = in
	c.Because("its peer breaks the rules")
	w.intruders = append(w.intruders, in)
	var err error
	in.mr, err = s.Dom.Register(in.mem, verbs.AccessAll)
	w.Must("register", err)
	in.cq, err = s.Dom.NewCQ(1024)
	w.Must("new cq", err)
	w.build = c.link
	cfg := s.cfg.QP
	cfg.MaxMsgCntPerQP, cfg.MaxSGE, cfg.MaxInline = 64, 2, 16
	in.vq, err = s.Dom.NewQP(in.cq, cfg)
	w.build = nil
	w.Must("new virtual qp", err)
	card, err := in.vq.Card()
	w.Must("card", err)
	theirs, err := in.e.ep.Card()
	w.Must("card", err)
	w.Must("connect", in.vq.Connect(theirs.QP))
	err = in.e.ep.Connect(transport.Card{
		Version: theirs.Version, QP: card, AMBuffers: w.Pick(1, 2, 8), BufferSize: 512,
		Handlers: 1<<amIDs - 1, Flush: in.mr.Remote(),
	})
	w.Must("connect", err)
	in.e.connected = true
	for i := range recvSlots {
		in.postRecv(uint64(i))
	}
}

func (in *intruder) postRecv(i uint64) {
	_, _ = in.vq.PostRecv(
		ibverbx.RecvWR{ID: 1<<32 | i, Local: in.mr.Slice(recvAt+i*messageSize, messageSize)})
}

// poll posts receives again that have taken a message.
func (in *intruder) poll() {
	n, _ := in.cq.Poll(in.wcs[:])
	for _, wc := range in.wcs[:n] {
		if wc.ID>>32 != 0 && wc.Status == verbs.StatusSuccess {
			in.postRecv(wc.ID & 0xffffffff)
		}
	}
}

// forge sends something: mostly a message, sometimes what is none.
func (in *intruder) forge() {
	w := in.w
	in.poll()
	if len(in.sent) >= sendSlots || in.bad && !w.OneIn(4) {
		return
	}
	at := sendAt + len(in.sent)*messageSize
	msg := in.mem[at : at+messageSize]
	hdr, n := w.Pick(0, 0, 3, 64), w.Rng.IntN(100)
	id := w.Rng.IntN(amIDs)
	clear(msg[:8])
	msg[0], msg[1], msg[2] = 1, byte(id), byte(hdr)
	size := 8 + hdr + n
	for i := 8; i < size; i++ {
		msg[i] = byte(w.Rng.Uint32())
	}
	good := true
	if w.OneIn(3) {
		good = false
		switch w.Rng.IntN(9) {
		case 0:
			msg[w.Pick(3, 6, 7)] = byte(1 + w.Rng.IntN(255))
		case 1:
			msg[0] = byte(w.Pick(0, 5, 255))
		case 2:
			msg[1] = byte(w.Pick(amIDs, 63, 64, 255))
		case 3:
			msg[2] = byte(w.Pick(65, 255))
		case 4:
			msg[2], size = 40, 8+w.Rng.IntN(40)
		case 5:
			size = w.Rng.IntN(8)
		case 6:
			msg[4], msg[5] = 255, byte(w.Pick(0, 255)) // more credits than there are buffers
		case 7:
			msg[0] = byte(w.Pick(2, 3, 4)) // with a payload
			msg[1], msg[2] = byte(id), byte(hdr)
			size = max(size, 9)
		case 8:
			size = in.e.site.cfg.BufferSize + 1
		}
	}
	if in.e.site.cfg.BufferSize < size && size <= messageSize {
		good = false // it does not fit the buffer
	}
	size = min(size, messageSize)
	in.bad = in.bad || !good
	wr := ibverbx.SendWR{ID: uint64(len(in.sent)), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		Relaxed: true, Local: in.mr.Slice(uint64(at), uint64(size))}
	_, err := in.vq.PostSend(wr)
	w.Logf("  the peer of %v says %x, %d bytes, good %v: %v", in.e, msg[:8], size, good, err)
	if err == nil {
		l := forged{id: 255}
		if good {
			l = forged{transport.AMID(msg[1]), msg[8 : 8+hdr], msg[8+hdr : size]}
		}
		in.sent = append(in.sent, l)
	} else if !in.bad {
		in.bad = true // the message is lost
	}
}

// handled checks a message that the endpoint has handled.
func (in *intruder) handled(m *transport.Message) {
	w, e := in.w, in.e
	if e.handled >= len(in.sent) {
		w.Broken(ruleHostile, "%v handles message %d of %d", e, e.handled, len(in.sent))
	}
	l := in.sent[e.handled]
	if m.ID() != l.id || !bytes.Equal(m.Header(), l.hdr) || !bytes.Equal(m.Data(), l.data) {
		w.Broken(ruleHostile, "%v handles message %d with id %d, %d and %d bytes: what was sent has id %d, "+
			"%d and %d", e, e.handled, m.ID(),
			len(m.Header()), len(m.Data()), l.id, len(l.hdr), len(l.data))
	}
	if in.unreleased() > e.site.cfg.AMBuffers {
		w.Broken(ruleHostile, "%v handles message %d, and the program has %d buffers of %d", e, e.handled,
			in.unreleased(), e.site.cfg.AMBuffers)
	}
}

func (in *intruder) unreleased() int { return in.e.handled + 1 - in.e.givenBack }

// close closes what the intruder has.
func (in *intruder) close() {
	in.w.Must("close an intruder's virtual qp", in.vq.Close())
	in.w.Must("close an intruder's cq", in.cq.Close())
	in.w.Must("close an intruder's memory", in.mr.Close())
}
