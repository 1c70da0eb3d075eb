package rendezvous

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// However many strangers come and stay, a listener holds no more than MaxGreetings of them, and
// throws them out one after another.
func TestGreetingsAreBounded(t *testing.T) {
	t.Parallel()
	var thrown atomic.Int64
	var who sync.Map // by address
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{MaxGreetings: 8, Timeout: time.Hour,
		Greeting: time.Hour, Refused: func(remote net.Addr, why error) {
			who.Store(remote.String(), true)
			if !errors.Is(why, ErrTimeout) || why.Error() != errEvicted.Error() {
				t.Errorf("refused: %v", why)
			}
			thrown.Add(1)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var first string
	for i := range 40 {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if i == 0 {
			first = nc.LocalAddr().String()
		}
	}
	most := 0
	for start := time.Now(); thrown.Load() < 16 && time.Since(start) < time.Minute; time.Sleep(
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
	if _, out := who.Load(first); !out {
		t.Error("the first one has stayed")
	}
}

// A listener goes on where too much is open for the moment, and ends where its socket does.
func TestPassingConditions(t *testing.T) {
	for err, passing := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.ENOBUFS: true, syscall.ENOMEM: true,
		syscall.ECONNABORTED: true, net.ErrClosed: false, syscall.EINVAL: false,
	} {
		if got := exhausted(&net.OpError{Op: "accept", Err: err}); got != passing {
			t.Errorf("%v: passing %v", err, got)
		}
	}
}

// scripted is a listener whose Accept returns errors, and then that it is closed.
type scripted struct {
	net.Listener
	errs []error
}

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.errs) == 0 {
		return s.Listener.Accept()
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return nil, err
}

// Accept says why no more conversations come, to everybody who asks.
func TestListenerFails(t *testing.T) {
	why := errors.New("the network card is on fire")
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Config{}.withDefaults(true)
	if err != nil {
		t.Fatal(err)
	}
	l := serve(&scripted{nl, []error{syscall.EMFILE, syscall.ECONNABORTED, why}}, cfg)
	for range 2 {
		if _, err := l.Accept(t.Context()); !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
}

// Of a conversation that nobody has accepted no message is read: what its peer sends stays in the
// kernel.
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
	var waiting *Conn
	for start := time.Now(); waiting == nil && time.Since(start) < time.Minute; waiting = l.take() {
		time.Sleep(time.Millisecond)
	}
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

// A conversation that Accept returns is nobody's who has to make room: who is thrown out at the
// moment at which its conversation begins is not handed out.
func TestEvictedIsNotAccepted(t *testing.T) {
	refused := make(chan error, 1)
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{Refused: func(_ net.Addr, why error) {
		refused <- why
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var a *arrival
	for start := time.Now(); a == nil && time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		if len(l.greeted) == 1 {
			a = l.greeted[0]
			break // and keep the lock
		}
		l.mu.Unlock()
	}
	if a == nil {
		t.Fatal("nobody has come")
	}
	if _, err := nc.Write(greeting(wireVersion, "")); err != nil {
		t.Error(err)
	}
	time.Sleep(100 * time.Millisecond) // the conversation has begun
	l.evict(a)
	l.mu.Unlock()
	if why := <-refused; !errors.Is(why, errEvicted) {
		t.Errorf("refused: %v", why)
	}
	if c := l.take(); c != nil {
		t.Error("a conversation waits whose connection is closed")
	}
}
