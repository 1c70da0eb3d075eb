package rendezvous

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// However many strangers come and stay, a listener holds no more than MaxGreetings of them, and
// throws them out one after another.
func TestGreetingsAreBounded(t *testing.T) {
	var thrown atomic.Int64
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{MaxGreetings: 8, Timeout: time.Hour,
		Greeting: time.Hour, Refused: func(_ net.Addr, why error) {
			if !errors.Is(why, ErrTimeout) || why.Error() != errEvicted.Error() {
				t.Errorf("refused: %v", why)
			}
			thrown.Add(1)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 40 {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	most := 0
	for start := time.Now(); thrown.Load() < 16 && time.Since(start) < 20*time.Second; time.Sleep(
		time.Millisecond) {
		l.mu.Lock()
		most = max(most, len(l.greeted))
		l.mu.Unlock()
	}
	if err := l.Close(); err != nil { // before the strangers go by themselves
		t.Error(err)
	}
	if most != 8 || thrown.Load() < 16 {
		t.Errorf("%d at a time, %d thrown out", most, thrown.Load())
	}
}

// A conversation that nobody has accepted is not read: what its peer sends stays in the kernel.
func TestWaitingConversationsHoldNothing(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), l.Addr().String(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range inboxLen + 2 {
		if err := c.Send(t.Context(), "word", "x"); err != nil {
			t.Fatal(err)
		}
	}
	for start := time.Now(); len(l.ready) == 0 && time.Since(start) < 20*time.Second; {
		time.Sleep(time.Millisecond)
	}
	waiting := <-l.ready
	if n := len(waiting.inbox); n != 0 {
		t.Errorf("%d messages are held", n)
	}
	waiting.run()
	if err := waiting.Receive(t.Context(), "word", nil); err != nil {
		t.Error(err)
	}
	if err := waiting.Close(); err != nil {
		t.Error(err)
	}
}
