package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Where the peer's card names no scheme and the schemes differ, the first notification fails, and
// the error says what to check. Once a notification has come through, later failures do not.
func TestAdviceWhereSchemesMayDiffer(t *testing.T) {
	const advice = "the peer's card names no scheme: check that it uses "
	unsaid := func(c *ibverbx.BusinessCard) { c.Scheme, c.Credits, c.RawImm = "", 0, false }
	cfg := ibverbx.Config{QPsPerDevice: 2, FragmentSize: 8, Linger: -1,
		Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}
	spray := cfg
	spray.Scheme = ibverbx.Spray

	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: cfg, PeerQP: &spray, EditCard: unsaid})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 40)) // plain writes need no scheme
	vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
	l.B.ExpectRecv(t, 9)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 16))
	if wc := l.B.Wait(t, 1)[0]; wc.Status == verbs.StatusSuccess {
		t.Fatalf("a numbered write is taken for a notification of spray: %+v", wc)
	}
	var failed *ibverbx.FailedError
	if err := l.B.Err(); !errors.As(err, &failed) || !errors.Is(err, ibverbx.ErrProtocol) ||
		failed.AssumedScheme != "spray" || !strings.Contains(err.Error(), advice+"spray too") {
		t.Errorf("the receiver says: %v", err)
	}
	l.A.Wait(t, 1)
	if err := l.A.Err(); err == nil || !strings.Contains(err.Error(), advice+"dqplb too") {
		t.Errorf("the sender says: %v", err)
	}

	for _, c := range []struct {
		cfg  ibverbx.Config
		edit func(*ibverbx.BusinessCard)
	}{{cfg, unsaid}, {spray, unsaid}, {cfg, nil}} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: c.cfg, EditCard: c.edit})
		if c.edit != nil {
			l.B.ExpectRecv(t, 9)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 16))
			vqptest.IDs(t, append(l.A.Wait(t, 1), l.B.Wait(t, 1)...), verbs.StatusSuccess)
		}
		l.B.NICs[0].SetLink(false)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 3, 0, 16))
		l.A.Wait(t, 1)
		if err := l.A.Err(); !errors.As(err, &failed) || failed.AssumedScheme != "" ||
			strings.Contains(err.Error(), "names no scheme") {
			t.Errorf("%v, behind a notification: %v", c.cfg.Scheme, err)
		}
		l.B.ExpectRecv(t, 10)
		for _, nic := range l.B.NICs {
			nic.Kill()
		}
		l.B.Wait(t, 1)
		if err := l.B.Err(); !errors.As(err, &failed) || failed.AssumedScheme != "" {
			t.Errorf("%v, behind a notification, the receiver: %v", c.cfg.Scheme, err)
		}
	}

	// Failures unrelated to schemes do not mention them.
	l = vqptest.NewLink(t, vqptest.LinkConfig{QP: cfg, EditCard: unsaid})
	bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16)
	bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1})
	l.A.Send(t, bad)
	l.A.Wait(t, 1)
	if err := l.A.Err(); !errors.Is(err, verbs.StatusRemAccessErr) ||
		strings.Contains(err.Error(), "scheme") {
		t.Errorf("a wrong key: %v", err)
	}
}
