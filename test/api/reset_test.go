package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The queue pairs of a NIC that is gone cannot be reset: everything completes, the error names the
// rail, and Close works.
func TestResetWithANICGone(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 2,
		FragmentSize: 1000},
		Fabric: soft.Config{Stepped: true}})
	const total = 8
	for id := range uint64(total) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 3000))
	}
	l.Fabric.Run(20)
	l.A.NICs[1].Kill()
	err := l.A.Reset()
	if !errors.Is(err, verbs.ErrDeviceGone) || !strings.Contains(err.Error(), "soft1") {
		t.Fatalf("reset: %v", err)
	}
	if wcs := l.A.Poll(t); len(wcs) != total {
		t.Fatalf("%d of %d sends completed", len(wcs), total)
	}
	var failed *ibverbx.FailedError
	if err := l.A.Err(); !errors.As(err, &failed) || failed.Rail != 1 ||
		!errors.Is(err, verbs.ErrDeviceGone) {
		t.Errorf("%v: want the first rail that could not be reset, 1", err)
	}
	if _, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)); !errors.Is(err, ibverbx.ErrFailed) {
		t.Errorf("post: %v", err)
	}
	if err := l.A.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}
