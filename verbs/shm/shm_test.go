//go:build linux

package shm

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(peerEnv); task != "" {
		runPeer(task)
	}
	goleak.VerifyTestMain(m)
}

// openNICs opens NICs that the test closes.
func openNICs(tb testing.TB, cfg Config) *Provider {
	tb.Helper()
	p, err := Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func setLink(_ *testing.T, d verbs.Device, up bool) { d.(*Device).SetLink(up) }

func TestConformance(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (a, b verbs.Device){
		"two NICs": func(t *testing.T) (a, b verbs.Device) {
			p := openNICs(t, Config{Devices: 2})
			return p.Device(0), p.Device(1)
		},
		"one NIC": func(t *testing.T) (a, b verbs.Device) {
			d := openNICs(t, Config{}).Device(0)
			return d, d
		},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, verbstest.Env{Strict: true, SetLink: setLink, Open: open})
		})
	}
}

// A receive that was posted before a message is there for it, although the receiver polls, and so
// may report late.
func TestReceiveIsThere(t *testing.T) {
	p := openNICs(t, Config{Devices: 2})
	env := verbstest.Env{Strict: true}
	pair := verbstest.NewPair(verbstest.NewNode(t, env, p.Device(0)), verbstest.NewNode(t, env, p.Device(1)),
		verbstest.PairConfig{Adjust: func(_ verbs.QP, a *verbs.QPAttr) { a.RNRRetry = 0 }})
	for i := range uint64(200) {
		pair.B.Drain() // polls: the NIC is awake
		pair.B.PostRecv(verbs.RecvWR{ID: i})
		pair.A.PostSend(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		if wc := pair.A.WaitSend(1)[0]; wc.Status != verbs.StatusSuccess {
			t.Fatal(i, wc)
		}
		pair.B.WaitRecv(1)
	}
}

// A queue pair that only has receives says in what is flushed that its peer has died. Once it is
// reset, that is forgotten.
func TestDeathIsFlushed(t *testing.T) {
	h, err := newHalf(openNICs(t, Config{}).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	c := spawn(t, "idle", h)
	h.do(t, h.request(int(verbs.OpRDMAWrite), 8, c.to))
	flushed := func(vendor uint32) {
		t.Helper()
		if wc := h.wait(t, 1)[0]; wc.Status != verbs.StatusWRFlushErr || wc.VendorErr != vendor {
			t.Errorf("%v, want vendor code %#x", wc, vendor)
		}
	}
	move := func(to verbs.QPState, mask verbs.QPAttrMask) {
		t.Helper()
		if err := h.qp.Modify(&verbs.QPAttr{State: to, Port: 1}, verbs.QPAttrState|mask); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.receive(1); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	flushed(vendorDied)
	move(verbs.StateReset, 0)
	move(verbs.StateInit, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	if err := h.receive(1); err != nil {
		t.Fatal(err)
	}
	move(verbs.StateErr, 0)
	flushed(nic.VendorFlushed)
	if err := h.close(); err != nil {
		t.Error(err)
	}
}
