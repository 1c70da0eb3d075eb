package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// entry is rank 0's entry in a [Store]. An entry of an earlier run may still be there, and another
// program may listen at its address by now. Incarnation distinguishes them: it is part of the
// greeting, and only this rank 0 answers to it.
type entry struct {
	Process

	Address     string `json:"address"`
	Incarnation string `json:"incarnation"` // drawn at random
}

// maxPlain is the longest name of a job that a key contains as it is.
const maxPlain = 40

// entryKey returns the key of a job's entry.
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

// announce puts rank 0's entry into the store.
func announce(ctx context.Context, p *Place, store Store) error {
	value, err := json.Marshal(entry{self(p.Rank), p.Address, p.incarnation})
	if err != nil {
		return err
	}
	key := entryKey(p.Job)
	_, err = askStore(ctx, func() ([]byte, error) { return nil, store.Put(ctx, key, value) })
	if err != nil {
		var waited *waitedError
		if ctx.Err() != nil && errors.As(err, &waited) { // it waited for the store, not for the processes
			err = &said{fmt.Sprintf("the store has not taken it within %v%s", waited.d,
				strings.TrimPrefix(err.Error(), waited.Error())), err}
		}
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
		return nil, &storeError{fmt.Errorf("%w: the store has given no address of rank 0 as %q: does rank 0 "+
			"run, with the same store and the same Config.Job, and does the store answer?", err, key)}
	case err != nil:
		return nil, &storeError{fmt.Errorf("get rank 0's address from the store as %q: %w", key, err)}
	}
	e := &entry{}
	if err := json.Unmarshal(value, e); err != nil || e.Address == "" || e.Incarnation == "" || e.Rank != 0 {
		return nil, fmt.Errorf("%w: what the store has as %q is not of a rank 0: %.60q",
			rendezvous.ErrProtocol, key, value)
	}
	e.Host, e.Address = peertext.Line(e.Host, maxHost), peertext.Line(e.Address, maxAddress)
	return e, nil
}

// maxAddress is the most characters kept of an address: a host's name and a port.
const maxAddress = 260

// missed returns the error for a rank 0 that was not at the entry's address.
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

// passing reports whether an error of looking for rank 0 may be temporary: rank 0 is not there yet
// or has no room, or an entry of an earlier run has led to another program.
func passing(err error, stored bool, since time.Duration) bool {
	var unreachable net.Error
	var failed *storeError
	switch {
	case errors.As(err, &failed):
		return false
	case errors.As(err, &unreachable), errors.Is(err, rendezvous.ErrGone), errors.Is(err, rendezvous.ErrBusy):
		return true
	case errors.Is(err, rendezvous.ErrTLS):
		return stored && since < patienceOfLogs // later it is rather a wrong certificate
	}
	return stored && (errors.Is(err, rendezvous.ErrVersion) || errors.Is(err, rendezvous.ErrProtocol))
}

// watch notices, while this rank 0 waits for the others, that another process has taken its place
// in the store, or that the store has lost its address, so that the others cannot find it.
func (s *server) watch() {
	began, lost := time.Now(), false
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.meeting.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.meeting, patienceOfStores)
		e, err := findEntry(ctx, s.place, s.cfg.Store)
		if err != nil && ctx.Err() != nil && s.meeting.Err() == nil {
			// A store that answers returns at once the value that was put.
			err = announce(s.meeting, s.place, s.cfg.Store)
			if !lost && err == nil {
				s.cfg.Logger.Warn("ibverbx: job: the store had lost rank 0's address, which is put again",
					"key", entryKey(s.place.Job))
			}
			lost, e = true, nil
		}
		cancel()
		if err != nil || e == nil || e.Incarnation == s.place.incarnation || s.meeting.Err() != nil {
			continue
		}
		if time.Since(began) < patienceOfLogs { // a mistake, not a later run: the other one ends as well
			s.tell(e)
		}
		s.fail(fmt.Errorf("%w: %v has taken rank 0's place in the store (%q): do all have rank 0, or was "+
			"the job started again under this name?", ErrMismatch, e.Process, entryKey(s.place.Job)))
		return
	}
}

// unwatch ends watch: the store is no longer used.
func (s *server) unwatch() {
	s.met()
	if s.watched != nil {
		<-s.watched
	}
}

// patienceOfStores is the time that a store may take to find a value that it has.
const patienceOfStores = 3 * time.Second

// tell tells the rank 0 of another entry about this one.
func (s *server) tell(e *entry) {
	ctx, cancel := context.WithTimeout(s.meeting, lateness)
	defer cancel()
	other := *s.place
	other.Address, other.incarnation = e.Address, e.Incarnation
	_ = challenge(ctx, &other, &s.cfg) // if it is gone, it need not know
}
