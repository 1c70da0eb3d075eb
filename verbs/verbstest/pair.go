package verbstest

import (
	"ibverbx/verbs"
)

// PairConfig configures a [Pair]. The zero value works.
type PairConfig struct {
	Cap       verbs.QPCap
	SignalAll bool
	// Depth is the depth of each completion queue; 0 means 1024.
	Depth int
	// BufSize is the size of each side's buffer in bytes; 0 means 64 KiB.
	BufSize int
	// Channel is the completion channel of all completion queues; may be nil.
	Channel *verbs.CompChannel
	// Adjust may change the attributes of one side, as in [ConnectConfig].
	Adjust func(local verbs.QP, attr *verbs.QPAttr)
	// Unconnected leaves the queue pairs in RESET, for Pair.Connect.
	Unconnected bool
}

// Pair is two connected queue pairs with completion queues and buffers.
type Pair struct {
	A, B *End
	cfg  PairConfig
}

// End is one side of a [Pair].
type End struct {
	*Node
	QP     verbs.QP
	SendCQ verbs.CQ
	RecvCQ verbs.CQ
	Buf    *Buffer // readable and writable by the peer
}

// NewPair makes a pair between two nodes, which may be the same one.
func NewPair(a, b *Node, cfg PairConfig) *Pair {
	a.T.Helper()
	p := &Pair{A: newEnd(a, cfg), B: newEnd(b, cfg), cfg: cfg}
	if !cfg.Unconnected {
		p.Connect()
	}
	return p
}

func newEnd(n *Node, cfg PairConfig) *End {
	n.T.Helper()
	if cfg.Depth == 0 {
		cfg.Depth = 1024
	}
	if cfg.BufSize == 0 {
		cfg.BufSize = 64 << 10
	}
	e := &End{Node: n}
	e.Buf = n.Register(cfg.BufSize, verbs.AccessAll)
	e.SendCQ = n.NewCQ(verbs.CQConfig{Depth: cfg.Depth, Channel: cfg.Channel})
	e.RecvCQ = n.NewCQ(verbs.CQConfig{Depth: cfg.Depth, Channel: cfg.Channel})
	e.QP = n.NewQP(verbs.QPConfig{SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, Cap: cfg.Cap, SignalAll: cfg.SignalAll})
	return e
}

// Connect takes both queue pairs from RESET to RTS.
func (p *Pair) Connect() {
	p.A.T.Helper()
	if err := Connect(p.A.QP, p.B.QP, p.connectConfig()); err != nil {
		p.A.T.Fatal(err)
	}
}

func (p *Pair) connectConfig() ConnectConfig {
	env := &p.A.Env
	return ConnectConfig{Port: env.Port, GIDIndex: env.GIDIndex, GIDIndexOf: env.GIDIndexOf,
		Adjust: p.cfg.Adjust}
}

// PostSend posts and ends the test unless every request is accepted.
func (e *End) PostSend(wrs ...verbs.SendWR) {
	e.T.Helper()
	if n, err := e.QP.PostSend(wrs); n != len(wrs) || err != nil {
		e.T.Fatalf("post send on %s: %d of %d accepted: %v", e.Dev.Name(), n, len(wrs), err)
	}
}

// PostRecv posts and ends the test unless every receive is accepted.
func (e *End) PostRecv(wrs ...verbs.RecvWR) {
	e.T.Helper()
	if n, err := e.QP.PostRecv(wrs); n != len(wrs) || err != nil {
		e.T.Fatalf("post receive on %s: %d of %d accepted: %v", e.Dev.Name(), n, len(wrs), err)
	}
}

// WaitSend waits for the completions of count sends.
func (e *End) WaitSend(count int) []verbs.WC {
	e.T.Helper()
	return e.Wait(e.SendCQ, count)
}

// WaitRecv waits for the completions of count receives.
func (e *End) WaitRecv(count int) []verbs.WC {
	e.T.Helper()
	return e.Wait(e.RecvCQ, count)
}

// Modify moves the queue pair to a state that requires no attributes.
func (e *End) Modify(to verbs.QPState) {
	e.T.Helper()
	if err := step(e.QP, verbs.QPAttr{}, to); err != nil {
		e.T.Fatal(err)
	}
}

// Drain polls and drops what the completion queues hold now.
func (e *End) Drain() {
	e.T.Helper()
	var wcs [64]verbs.WC
	for _, cq := range []verbs.CQ{e.SendCQ, e.RecvCQ} {
		for {
			n, err := cq.Poll(wcs[:])
			if err != nil {
				e.T.Fatalf("poll on %s: %v", e.Dev.Name(), err)
			}
			if n == 0 {
				break
			}
		}
	}
}
