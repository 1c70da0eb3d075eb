package tagged

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"ibverbx"
	"ibverbx/internal/peertext"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Join makes this process, or a part of it, one of Config.Size ranks: it makes a worker, and
// connects it to the others through Config.Exchange, at once or, with Config.OnDemand, as they are
// used. It returns when all ranks have joined; [Worker.Peer] returns the endpoints. If one rank
// cannot join, none does: the others return an error, too, if Exchange still works.
func Join(ctx context.Context, dom *ibverbx.Domain, cfg Config) (*Worker, error) {
	if ctx == nil {
		return nil, refuse("join", verbs.ErrInvalid, "no context")
	}
	if cfg.Size == 0 {
		cfg.Size = 1
	}
	if err := cfg.validateRanks(); err != nil {
		return nil, err
	}
	if cfg.Transport.MaxEndpoints == 0 && (!cfg.OnDemand || cfg.Size < 128) {
		cfg.Transport.MaxEndpoints = cfg.Size + 1 // one for each other rank, two for this one
	}
	w, err := newWorker(dom, cfg)
	if err != nil {
		cfg.cannotJoin(ctx, err)
		return nil, err
	}
	w.ranks = ranks{w: w, peers: make([]*Endpoint, cfg.Size)}
	if cfg.Size > 1 {
		err = w.ranks.connectRanks(ctx)
	}
	if err == nil && cfg.OnDemand && cfg.Transport.Idle == nil {
		err = w.Start()
	}
	if err != nil {
		return nil, errors.Join(refuse("join", within{err}, ""), w.Close())
	}
	w.teams.join()
	return w, nil
}

// validateRanks checks the part of a configuration that Join uses.
func (c *Config) validateRanks() error {
	switch {
	case c.Size < 0 || c.Size > maxRanks:
		return refuse("join", verbs.ErrInvalid, "Size %d: must be 1 to %d", c.Size, maxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return refuse("join", verbs.ErrInvalid, "Rank %d: of %d ranks the numbers are 0 to %d", c.Rank,
			c.Size, c.Size-1)
	case c.Exchange == nil && c.Size > 1:
		return refuse("join", verbs.ErrInvalid, "Exchange is nil: %d ranks need it to find each other",
			c.Size)
	}
	return nil
}

// cannotJoin takes part in both exchanges of a rank that has no worker: the others learn why and do
// not wait for it.
func (c *Config) cannotJoin(ctx context.Context, why error) {
	if c.Size == 1 {
		return
	}
	if _, err := c.Exchange(ctx, nil); err == nil {
		_, _ = c.Exchange(ctx, []byte(why.Error()))
	}
}

const noRanks = "the worker has no ranks: make it with Join"

const (
	maxRanks = 1 << 16 // the most ranks
	maxHost  = 100     // the most characters of a host's name
)

// ranks is the processes that a worker has joined. Worker.mu guards it.
//
// Invariant: peers[i] is the endpoint to rank i, or nil while there is none; it stays when the
// endpoint has ended.
type ranks struct {
	w        *Worker
	peers    []*Endpoint      // nil for a worker that has not joined
	hosts    []string         // their names, by rank; nil if all ranks are on one
	arriving map[int]*partial // routed messages of which some pieces have arrived, by sender
}

// name names a rank in errors: with its host, if there are several.
func (r *ranks) name(rank int) string {
	if r.hosts == nil || r.hosts[rank] == "" {
		return fmt.Sprintf("rank %d", rank)
	}
	return fmt.Sprintf("rank %d on %s", rank, r.hosts[rank])
}

// peer is Worker.Peer.
func (r *ranks) peer(rank int) (*Endpoint, error) {
	switch {
	case r.peers == nil:
		return nil, refuse("peer", verbs.ErrInvalid, noRanks)
	case rank < 0 || rank >= len(r.peers):
		return nil, refuse("peer", verbs.ErrInvalid, "rank %d: of %d ranks the numbers are 0 to %d", rank,
			len(r.peers), len(r.peers)-1)
	case r.peers[rank] != nil:
		return r.peers[rank], nil
	case rank == r.w.cfg.Rank:
		return r.newSelf()
	}
	e, err := r.newPeer(rank)
	if err != nil {
		return nil, err
	}
	e.dial = dialAsked
	if err = r.sendCard(e, routeCard); err == nil {
		err = e.err // the way that the card was to go has failed, and there was no other
	}
	if err != nil {
		return nil, r.undo(e, err)
	}
	return e, nil
}

// undo drops an endpoint that could not be connected, so that it can be asked for again.
func (r *ranks) undo(e *Endpoint, err error) error {
	err = errors.Join(err, e.end(err))
	e.stage = stageEnded
	e.forget(false)
	r.peers[e.rank] = nil
	return err
}

// newPeer makes the endpoint to another rank.
func (r *ranks) newPeer(rank int) (*Endpoint, error) {
	e, err := r.w.newEndpoint(EndpointConfig{Name: "rank " + strconv.Itoa(rank)})
	if err != nil {
		return nil, err
	}
	e.rank = rank
	e.stage = stageOpen             // sends are accepted, and wait for a place of the window
	e.limits.AMBcopy = leastAMBcopy // until the peer's card says how long an announcement may be
	r.peers[rank] = e
	return e, nil
}

// newSelf makes the endpoint to this process: it sends through one transport endpoint, and receives
// through another.
func (r *ranks) newSelf() (*Endpoint, error) {
	rank := r.w.cfg.Rank
	e, err := r.w.newEndpoint(EndpointConfig{Name: "rank " + strconv.Itoa(rank) + " itself"})
	if err != nil {
		return nil, err
	}
	e.rank = rank
	e.loop, err = r.w.tw.NewEndpoint(transport.EndpointConfig{Name: e.name, Value: e})
	if err == nil {
		if r.w.cfg.Size > 1 {
			r.w.endpoints.alive-- // a wait for any peer does not count on this process itself
		}
		err = transport.Connect(e.tep, e.loop)
	}
	if err != nil {
		return nil, r.undo(e, err)
	}
	e.ledger.Connect(r.w.cfg.MaxUnexpected)
	e.limits = e.tep.Limits()
	e.stage = stageOpen
	r.peers[rank] = e
	return e, nil
}

// rowHead is the first line of a row, the bytes that a rank passes to Config.Exchange. A line for
// each rank follows: the card of the endpoint to it as JSON, or nothing if there is none.
type rowHead struct {
	Version  int  `json:"version"`
	Rank     int  `json:"rank"`
	Size     int  `json:"size"`
	OnDemand bool `json:"on_demand"`
	// Host is the name of the rank's host, for errors; empty if it has none.
	Host string `json:"host,omitempty"`
}

// rowVersion is the version of rows, and of routed messages.
const rowVersion = 1

// connectRanks makes the first endpoints, exchanges their cards, and connects them. A rank that
// cannot go on takes part in both exchanges all the same, so that the others do not wait for it.
func (r *ranks) connectRanks(ctx context.Context) error {
	mine, failed := r.row()
	rows, err := r.w.cfg.Exchange(ctx, mine)
	if err != nil {
		return errors.Join(failed, fmt.Errorf("exchange: %w", err))
	}
	if failed == nil {
		failed = r.connectRows(rows)
	}
	var refusal []byte
	if failed != nil {
		refusal = []byte(failed.Error())
	}
	// No rank goes on before all are connected: a NIC retries only for so long what it sends to a
	// queue pair that is not.
	refusals, err := r.w.cfg.Exchange(ctx, refusal)
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("exchange: %w", err)
	}
	if err := r.checkEntries(refusals); err != nil {
		return err
	}
	for i, m := range refusals {
		if len(m) != 0 {
			return fmt.Errorf("rank %d cannot join: %s", i, peertext.Line(string(m), 300))
		}
	}
	return nil
}

// row makes the first endpoints, and returns what this rank passes to Exchange.
func (r *ranks) row() ([]byte, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	cfg := &r.w.cfg
	host, _ := os.Hostname()
	row, err := json.Marshal(rowHead{rowVersion, cfg.Rank, cfg.Size, cfg.OnDemand, host})
	if err != nil {
		return nil, err
	}
	for rank := range r.peers {
		row = append(row, '\n')
		if rank == cfg.Rank || cfg.OnDemand && !adjacent(rank, cfg.Rank) {
			continue
		}
		e, err := r.newPeer(rank)
		if err != nil {
			return nil, err
		}
		card, err := e.card()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(card)
		if err != nil {
			return nil, err
		}
		row = append(row, text...)
	}
	return row, nil
}

// checkEntries checks the number of entries that Config.Exchange has returned.
func (r *ranks) checkEntries(all [][]byte) error {
	if len(all) == r.w.cfg.Size {
		return nil
	}
	return fmt.Errorf("exchange: %w: it returned %d entries: there are %d ranks", verbs.ErrInvalid, len(all),
		r.w.cfg.Size)
}

// connectRows connects the endpoints that there are by the rows of the others. A rank that cannot
// join has an empty row; the second exchange says why.
func (r *ranks) connectRows(rows [][]byte) error {
	if err := r.checkEntries(rows); err != nil {
		return err
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	hosts := make([]string, len(rows))
	for rank, row := range rows {
		if len(row) == 0 {
			continue
		}
		card, err := r.parseRow(rank, row, &hosts[rank])
		if err != nil {
			return fmt.Errorf("row of rank %d: %w", rank, err)
		}
		if r.peers[rank] == nil {
			continue
		}
		e := r.peers[rank]
		if err := e.connect(card); err != nil {
			return err
		}
		e.connected()
	}
	for _, host := range hosts {
		if host != hosts[0] {
			r.hosts = hosts
		}
	}
	return nil
}

// parseRow checks the row of a rank, and returns the card in it for this one, if it needs one.
func (r *ranks) parseRow(rank int, row []byte, host *string) (card Card, err error) {
	text, rest, _ := bytes.Cut(row, []byte{'\n'})
	var head rowHead
	if err := json.Unmarshal(text, &head); err != nil {
		return card, fmt.Errorf("%w: %.200s", verbs.ErrInvalid, err.Error())
	}
	switch cfg := &r.w.cfg; {
	case head.Version != rowVersion:
		return card, fmt.Errorf("%w: it speaks version %d, this rank %d", verbs.ErrNotSupported, head.Version,
			rowVersion)
	case head.Rank != rank:
		return card, fmt.Errorf("%w: it is that of rank %d: Exchange must return the entries in the order "+
			"of the ranks, and each has a number of its own", verbs.ErrInvalid, head.Rank)
	case head.Size != cfg.Size:
		return card, fmt.Errorf("%w: it counts %d ranks, this one %d", verbs.ErrInvalid, head.Size, cfg.Size)
	case head.OnDemand != cfg.OnDemand:
		return card, fmt.Errorf("%w: its OnDemand is %t, that of this rank %t", verbs.ErrInvalid,
			head.OnDemand, cfg.OnDemand)
	}
	if *host = peertext.Line(head.Host, maxHost); r.peers[rank] == nil {
		return card, nil
	}
	for range r.w.cfg.Rank {
		_, rest, _ = bytes.Cut(rest, []byte{'\n'})
	}
	text, _, _ = bytes.Cut(rest, []byte{'\n'})
	if err := json.Unmarshal(text, &card); err != nil {
		return card, fmt.Errorf("%w: its card for this rank: %.200s", verbs.ErrInvalid, err.Error())
	}
	return card, nil
}
