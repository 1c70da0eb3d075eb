package bench

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/tcptest"
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

// TestWaiting lets a listening end tell its client that it waits, and then send impossible numbers.
func TestWaiting(t *testing.T) {
	_, nics := fabric(t, 2)
	ncA, ncB := tcptest.Pair(t)
	var heard []int
	done := make(chan error, 1)
	go func() {
		conn, err := rendezvous.Start(t.Context(), ncA, rendezvous.Config{Protocol: Protocol,
			Timeout: apartTimeout})
		if err == nil {
			_, err = Lead(t.Context(), params(), &Half{Conn: conn, Provider: "here", Devices: nics,
				Waiting: func(ahead int) { heard = append(heard, ahead) }}, observer{})
		}
		done <- err
	}()
	conn := start(t, ncB, apartTimeout)
	if err := conn.Send(t.Context(), kindOffer, selfBody{Offer: offer("x", "y")}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Receive(t.Context(), kindTask, nil); err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []int{3, 3, 2, 1, 1, 0} {
		if err := SayWait(t.Context(), conn, ahead); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; !errors.Is(err, rendezvous.ErrProtocol) {
		t.Errorf("nobody ahead, and yet to wait: error %v", err)
	}
	if !slices.Equal(heard, []int{3, 2, 1}) {
		t.Errorf("heard %v, want each number once", heard)
	}
}
