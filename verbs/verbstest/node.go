package verbstest

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// Node is a device with a protection domain, for one test. Objects made through it are closed when
// the test ends, the newest first; a Close that fails then fails the test. If a node cannot make an
// object, it ends the test.
type Node struct {
	_   guard.NoCopy
	T   testing.TB
	Env Env
	Dev verbs.Device
	PD  verbs.PD
}

// NewNode makes a node. The zero Env is enough for programs that only use the kit.
func NewNode(t testing.TB, env Env, dev verbs.Device) *Node {
	t.Helper()
	n := &Node{T: t, Env: env.withDefaults(), Dev: dev}
	n.PD = n.NewPD()
	return n
}

// NewPD allocates another protection domain.
func (n *Node) NewPD() verbs.PD {
	n.T.Helper()
	pd, err := n.Dev.AllocPD()
	if err != nil {
		n.T.Fatalf("allocate protection domain on %s: %v", n.Dev.Name(), err)
	}
	n.closeLater("protection domain", pd)
	return pd
}

// NewCQ creates a completion queue.
func (n *Node) NewCQ(cfg verbs.CQConfig) verbs.CQ {
	n.T.Helper()
	cq, err := n.Dev.CreateCQ(cfg)
	if err != nil {
		n.T.Fatalf("create completion queue on %s: %v", n.Dev.Name(), err)
	}
	n.closeLater("completion queue", cq)
	return cq
}

// NewQP creates a queue pair in the node's domain.
func (n *Node) NewQP(cfg verbs.QPConfig) verbs.QP {
	n.T.Helper()
	qp, err := n.PD.CreateQP(cfg)
	if err != nil {
		n.T.Fatalf("create queue pair on %s: %v", n.Dev.Name(), err)
	}
	n.closeLater("queue pair", qp)
	return qp
}

// Register makes a buffer of size bytes, all zero, and registers it in the node's domain.
func (n *Node) Register(size int, access verbs.AccessFlags) *Buffer {
	n.T.Helper()
	if !n.Env.Allocate {
		return n.registerIn(n.PD, make([]byte, size), access)
	}
	memory, err := n.PD.(verbs.MemoryAllocator).AllocMemory(size)
	if err != nil {
		n.T.Fatalf("allocate %d bytes on %s: %v", size, n.Dev.Name(), err)
	}
	n.closeLater("memory", memory)
	b := n.registerIn(n.PD, memory.Bytes(), access)
	b.memory = memory
	return b
}

// registerIn registers memory in a domain.
func (n *Node) registerIn(pd verbs.PD, buf []byte, access verbs.AccessFlags) *Buffer {
	n.T.Helper()
	mr, err := pd.RegisterMR(buf, access)
	if err != nil {
		n.T.Fatalf("register %d bytes for %v on %s: %v", len(buf), access, n.Dev.Name(), err)
	}
	n.closeLater("memory region", mr)
	return &Buffer{MR: mr, B: buf}
}

// closeLater closes x when the test ends, unless the test has done so itself.
func (n *Node) closeLater(what string, x interface{ Close() error }) {
	n.T.Cleanup(func() {
		if err := x.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			n.T.Errorf("close %s on %s: %v", what, n.Dev.Name(), err)
		}
	})
}

// Until calls done until it returns true, and reports whether that happened within the
// environment's timeout.
func (n *Node) Until(done func() bool) bool { return n.within(n.Env.Timeout, done) }

// within is Until with its own timeout.
func (n *Node) within(timeout time.Duration, done func() bool) bool {
	deadline := time.Now().Add(timeout)
	for i := 0; ; i++ {
		if done() {
			return true
		}
		switch {
		case n.Env.Idle != nil:
			n.Env.Idle()
		case i < 1000:
			runtime.Gosched()
		default:
			// The wait is long. On a single core the goroutines that it waits for need the
			// processor.
			time.Sleep(50 * time.Microsecond)
		}
		if i%64 == 63 && time.Now().After(deadline) {
			return done()
		}
	}
}

// Wait polls count completions and returns them. It ends the test if they do not arrive in time.
func (n *Node) Wait(cq verbs.CQ, count int) []verbs.WC {
	n.T.Helper()
	wcs := make([]verbs.WC, count)
	got := 0
	var err error
	n.Until(func() bool {
		var k int
		k, err = cq.Poll(wcs[got:])
		got += k
		return got == count || err != nil
	})
	if err != nil {
		n.T.Fatalf("poll on %s: %v", n.Dev.Name(), err)
	}
	if got != count {
		for _, wc := range wcs[:got] {
			n.T.Logf("completion of request %d: %v", wc.ID, wc.Status)
		}
		n.T.Fatalf("%d of %d completions within %v on %s", got, count, n.Env.Timeout, n.Dev.Name())
	}
	return wcs
}

// Buffer is registered memory.
type Buffer struct {
	verbs.MR
	B      []byte
	memory verbs.Memory // that B is; nil for other memory
}

// Close deregisters the memory, and gives it back if it was allocated.
func (b *Buffer) Close() error {
	err := b.MR.Close()
	if err == nil && b.memory != nil {
		err = b.memory.Close()
	}
	return err
}

// SGE names length bytes from offset. Neither is checked: a test may name bytes outside the buffer.
func (b *Buffer) SGE(offset, length int) verbs.SGE {
	return verbs.SGE{Addr: b.At(offset), Length: uint32(length), LKey: b.LKey()}
}

// SGL returns a scatter-gather list with the element that SGE returns; nil if length is 0.
func (b *Buffer) SGL(offset, length int) []verbs.SGE {
	if length == 0 {
		return nil
	}
	return []verbs.SGE{b.SGE(offset, length)}
}

// At returns the address of the byte at offset.
func (b *Buffer) At(offset int) uint64 { return b.Addr() + uint64(int64(offset)) }

// Fill fills b with a pattern that depends on seed and does not repeat at powers of two.
func Fill(b []byte, seed byte) {
	for i := 0; i < len(b); i += 256 {
		first := int(seed + byte(i>>8)*7 + byte(i>>16)*31)
		copy(b[i:], ramp[first:first+256])
	}
}

// ramp is where a row of Fill's pattern lies, whatever byte it begins with.
var ramp = func() (r [511]byte) {
	for i := range r {
		r[i] = byte(i)
	}
	return r
}()
