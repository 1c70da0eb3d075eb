package bench

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/rendezvous"
)

// TestBrokeOff says which ends of a run are the client's, after which the next one is served.
func TestBrokeOff(t *testing.T) {
	said := &rendezvous.PeerError{Text: "enough"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{fmt.Errorf("dqplb, 64 B: %w", rendezvous.ErrGone), true},
		{errors.Join(ibverbx.ErrFailed, rendezvous.ErrGone), true}, // requests failed since it went
		{rendezvous.ErrTimeout, true},
		{rendezvous.ErrProtocol, true},
		{said, true},
		{&taskError{"asks for too much"}, true},
		{errPeerInterrupted, true},
		{fmt.Errorf("%w within 1s", ErrStalled), true},
		{ibverbx.ErrFailed, false},
		{errors.New("mlx5_0: no memory"), false},
		{fmt.Errorf("message 5: %w", ErrVerify), false},
		{errors.Join(ErrVerify, said), false}, // wrong data is no matter of who says so first
	} {
		if got := BrokeOff(tt.err); got != tt.want {
			t.Errorf("BrokeOff(%v) = %v", tt.err, got)
		}
	}
}
