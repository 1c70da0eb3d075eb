package job

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// Kinds of messages between the processes and rank 0, over a conversation of package rendezvous.
const (
	kindJoin   = "join"   // hello: this process has started
	kindMet    = "met"    // Process: who rank 0 is
	kindReady  = "ready"  // []Process: a part of the list of all, once all have joined
	kindAlive  = "alive"  // nothing: still here
	kindGather = "gather" // part of a contribution to a collective call
	kindRows   = "rows"   // part of all contributions
	kindQuit   = "quit"   // quit: the process gives up a collective call
	kindPut    = "put"    // request
	kindGet    = "get"    // request
	kindForget = "forget" // request: a get whose answer is no longer awaited
	kindAnswer = "answer" // to a request
	kindLeave  = "leave"  // this process closes the job
	kindBye    = "bye"    // the process may go; or rank 0 leaves
	kindEnd    = "end"    // verdict: the job has failed; from a process: it gives up, or rank 0 is silent
)

type hello struct {
	Process

	Size  int    `json:"size"`
	Proof string `json:"proof"` // that it knows the name of the job: a digest
}

type contribution struct {
	Seq  uint64 `json:"seq"`
	Op   string `json:"op"`
	Data []byte `json:"data"`
	More bool   `json:"more,omitempty"` // of Data: in the next contribution
}

type rows struct {
	Seq   uint64   `json:"seq"`
	First int      `json:"first"`
	Data  [][]byte `json:"data"`
	More  bool     `json:"more,omitempty"` // of the last one of Data: in the next rows
}

type quit struct {
	Seq  uint64 `json:"seq"`
	Op   string `json:"op"`
	Late bool   `json:"late"` // the deadline of its context has passed
	Text string `json:"text"` // why its context has ended
}

type request struct {
	ID   uint64 `json:"id"`
	Key  string `json:"key"`
	Data []byte `json:"data"`
	More bool   `json:"more,omitempty"` // of Data: in the next request with this ID
}

type answer struct {
	ID   uint64 `json:"id"`
	Data []byte `json:"data"`
	More bool   `json:"more,omitempty"` // of Data: in the next answer
	Full string `json:"full,omitempty"` // why a value was not taken
}

// lateness is how much longer the others wait than rank 0, which then names the missing ranks.
const lateness = 2 * time.Second

// waitedError means that Config.Wait is over.
type waitedError struct{ d time.Duration }

func (e *waitedError) Error() string { return fmt.Sprintf("%v: waited %v", ErrAbsent, e.d) }
func (e *waitedError) Unwrap() error { return ErrAbsent }

func errWaited(d time.Duration) error { return &waitedError{d} }

// route is the ends of a connection.
type route struct{ local, remote net.Addr }

// protocol returns the protocol of a job's conversations: the greeting separates processes of
// different jobs, and those that a store has sent to another rank 0. Everyone who connects reads
// the greeting, so it does not contain the name.
func protocol(p *Place) string { return "ibverbx job/3 " + p.digest("greeting") }

// digest returns a text for one purpose that can be made only with the job's name and the additions
// of a launcher or a store. It reveals nothing about other digests; a name that is easy to guess
// can be guessed from it.
func (p *Place) digest(purpose string) string {
	h := hmac.New(sha256.New, []byte(p.Job+"\x00"+p.secret+"\x00"+p.incarnation))
	_, _ = h.Write([]byte(purpose)) // never fails
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// newHello returns the message with which a process joins.
func newHello(p *Place) hello { return hello{self(p.Rank), p.Size, p.digest("join")} }

// conversation returns the configuration of a job's conversations.
func conversation(p *Place, cfg *Config) rendezvous.Config {
	return rendezvous.Config{Protocol: protocol(p), TLS: cfg.TLS, Timeout: cfg.Patience,
		Greeting:   min(cfg.Patience, 5*time.Second),
		MaxMessage: 2 * partLen} // base64, and a little more
}

// ended translates the end of a conversation to an error of this package.
func ended(err error) error {
	var peer *rendezvous.PeerError
	switch {
	case errors.Is(err, rendezvous.ErrBusy):
		return err
	case errors.As(err, &peer):
		return &said{peertext.Clean(peer.Text), ErrFailed}
	case errors.Is(err, rendezvous.ErrGone):
		return fmt.Errorf("%w: its connection has ended", ErrDied)
	case errors.Is(err, rendezvous.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrDied, err)
	}
	return err
}

// silent returns the error of a process that was silent for too long.
func silent(d time.Duration) error { return fmt.Errorf("%w: it has not answered for %v", ErrDied, d) }
