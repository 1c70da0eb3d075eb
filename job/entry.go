package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// entry is what rank 0 leaves in a [Store]. One that an earlier run has left may be there still,
// and somebody else may listen at its address by now. Life tells them apart: it is part of the
// greeting, and nobody but this rank 0 answers to it.
type entry struct {
	Process

	Address string `json:"address"`
	Life    string `json:"life"` // drawn at random
}

// maxPlain is how long the name of a job may be in a key.
const maxPlain = 40

// entryKey is the key under which a job has its entry.
func entryKey(job string) string {
	plain := len(job) <= maxPlain
	for _, b := range []byte(job) {
		letter := 'a' <= b|0x20 && b|0x20 <= 'z'
		digit := '0' <= b && b <= '9'
		plain = plain && (letter || digit || b == '.' || b == '_' || b == '-')
	}
	if !plain {
		job = fmt.Sprintf("#%016x", hash(job))
	}
	return "/ibverbx/job/" + job
}

// announce leaves rank 0's entry in the store.
func announce(ctx context.Context, p *Place, store Store) error {
	value, err := json.Marshal(entry{self(p.Rank), p.Address, p.life})
	if err != nil {
		return err
	}
	key := entryKey(p.Job)
	if _, err = askStore(ctx, func() ([]byte, error) { return nil, store.Put(ctx, key, value) }); err != nil {
		return &storeError{fmt.Errorf("put rank 0's address into the store as %q: %w", key, err)}
	}
	return nil
}

// findEntry reads the entry of a job from the store.
func findEntry(ctx context.Context, p *Place, store Store) (*entry, error) {
	key := entryKey(p.Job)
	value, err := askStore(ctx, func() ([]byte, error) { return store.Get(ctx, key) })
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, &storeError{fmt.Errorf("%w: the store has no address of rank 0 as %q: does rank 0 run, "+
			"with the same store and the same Config.Job?", err, key)}
	case err != nil:
		return nil, &storeError{fmt.Errorf("get rank 0's address from the store as %q: %w", key, err)}
	}
	e := &entry{}
	if err := json.Unmarshal(value, e); err != nil || e.Address == "" || e.Life == "" || e.Rank != 0 {
		return nil, fmt.Errorf("%w: what the store has as %q is not of a rank 0: %.60q",
			rendezvous.ErrProtocol, key, value)
	}
	e.Host, e.Address = peertext.Line(e.Host, maxHost), peertext.Line(e.Address, maxAddress)
	return e, nil
}

// maxAddress is how many characters of an address are kept: a name of a host and a port.
const maxAddress = 260

// missed says that rank 0 was not where the entry has it.
func (e *entry) missed(err error) error {
	hint := "perhaps in an earlier run"
	addr, notIP := netip.ParseAddrPort(e.Address)
	if host, _ := os.Hostname(); notIP == nil && addr.Addr().IsLoopback() && host != e.Host {
		hint = "and leads to its own host alone: give rank 0 an address that reaches it, Config.Address or " +
			EnvAddress
	}
	return fmt.Errorf("the store has the address %s, which %v has left, %s: %w", e.Address, e.Process, hint,
		err)
}

// passing reports whether an error of who looks for rank 0 may be none a moment later: where it is
// not there yet, or, by an entry of an earlier run, somebody else is.
func passing(err error, stored bool, since time.Duration) bool {
	var unreachable net.Error
	var failed *storeError
	switch {
	case errors.As(err, &failed):
		return false
	case errors.As(err, &unreachable), errors.Is(err, rendezvous.ErrGone):
		return true
	case errors.Is(err, rendezvous.ErrTLS):
		return stored && since < patienceOfLogs // rather a certificate that does not fit
	}
	return stored && (errors.Is(err, rendezvous.ErrVersion) || errors.Is(err, rendezvous.ErrProtocol))
}

// watch notices that another process has taken rank 0's place in the store, while this one waits
// for the others: they do not come to it.
func (s *server) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for s.missing() != "" {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		e, err := findEntry(s.ctx, s.place, s.cfg.Store)
		if err == nil && e.Life != s.place.life {
			s.fail(fmt.Errorf("%w: %v has taken rank 0's place in the store (%q): do all have rank 0, or "+
				"was the job started again under this name?", ErrMismatch, e.Process, entryKey(s.place.Job)))
			return
		}
	}
}
