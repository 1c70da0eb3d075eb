package processes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// All members connect to the first one at the same time, over the NICs that reach it, and write
// into its memory.
func TestRendezvous(t *testing.T) {
	eachShape(t, team{program: "rendezvous", members: 5})
}

// A member is killed between meeting the first one and connecting: that one learns of it at once,
// and the others are connected.
func TestRendezvousKilled(t *testing.T) {
	team{program: "rendezvous killed", members: 4, victim: true}.run(t)
}

// blockLen is how much each member writes, in bytes.
const blockLen = 300_000

func meeting(ctx context.Context, m *member) error {
	return m.meetAtFirst(ctx, func() error { return nil }, nil)
}

func meetingKilled(ctx context.Context, m *member) error {
	victim := func() error {
		if m.Rank != 1 {
			return nil
		}
		m.die()
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return m.meetAtFirst(ctx, victim, rendezvous.ErrGone)
}

// meetAtFirst has all members meet the first one. before is called by each of the others once it
// has; lost is how the conversation with one of them ends, if it does.
func (m *member) meetAtFirst(ctx context.Context, before func() error, lost error) (err error) {
	host, err := m.host()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	cfg := rendezvous.Config{Protocol: "meeting/1"}
	if m.Rank == 0 {
		return m.receiveAll(ctx, host, cfg, lost)
	}
	addrs, err := exchange(ctx, m, "")
	if err != nil {
		return err
	}
	c, err := rendezvous.Dial(ctx, addrs[0], cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	// One who is gone before the first member has accepted it was never there for that.
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if err := before(); err != nil {
		return err
	}
	return m.writeBlock(ctx, c, host)
}

// host opens NICs as programs do: those of roce at the address over which members meet. Software
// NICs are those of the team's fabric.
func (m *member) host() (*nics.Host, error) {
	cfg := nics.Config{Provider: m.Provider, Devices: m.Devices, Logger: slog.New(slog.DiscardHandler)}
	if m.Provider == "soft" {
		cfg.Sources = []nics.Source{{Name: "soft", Open: func(nics.Config) (verbs.Provider, error) {
			return ofDomain{m.dom}, nil
		}}}
	}
	return nics.Open(cfg)
}

// ofDomain is a provider of the NICs that a member has already.
type ofDomain struct{ dom *ibverbx.Domain }

func (ofDomain) Name() string                       { return "soft" }
func (p ofDomain) Devices() ([]verbs.Device, error) { return p.dom.Devices(), nil }
func (ofDomain) Close() error                       { return nil }

// receiveAll listens, and receives a block of each of the others.
func (m *member) receiveAll(ctx context.Context, host *nics.Host, cfg rendezvous.Config, lost error) error {
	l, err := rendezvous.Listen(ctx, "127.0.0.1:0", cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	if _, err := exchange(ctx, m, l.Addr().String()); err != nil {
		return err
	}
	ended := make(chan error)
	for range m.Of - 1 {
		go func() {
			ended <- m.acceptOne(ctx, l, host)
		}()
	}
	var errs []error
	gone := 0
	for range m.Of - 1 {
		switch err := <-ended; {
		case lost != nil && errors.Is(err, lost):
			gone++
		case err != nil:
			errs = append(errs, err)
		}
	}
	if lost != nil && gone != 1 {
		errs = append(errs, fmt.Errorf("%d conversations ended with %w", gone, lost))
	}
	return errors.Join(errs...)
}

// acceptOne receives a block of the next who comes.
func (m *member) acceptOne(ctx context.Context, l *rendezvous.Listener, host *nics.Host) error {
	c, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	return m.receiveBlock(ctx, c, host)
}

func (m *member) qpConfig() ibverbx.Config {
	return ibverbx.Config{QPsPerDevice: m.QPs, Conn: m.conn()}
}

// receiveBlock connects with a member and compares what that writes.
func (m *member) receiveBlock(ctx context.Context, c *rendezvous.Conn, host *nics.Host) error {
	qp, err := host.Connect(ctx, c, m.qpConfig())
	if err != nil {
		return err
	}
	defer qp.Close()
	mr, err := qp.Domain().Register(make([]byte, blockLen), verbs.AccessAll)
	if err != nil {
		return err
	}
	defer mr.Close()
	if _, err := qp.PostRecv(ibverbx.RecvWR{}); err != nil {
		return err
	}
	if _, err := rendezvous.Exchange(ctx, c, mr.Remote()); err != nil {
		return err
	}
	wc, err := completion(ctx, qp)
	if err != nil {
		return err
	}
	if !bytes.Equal(mr.Bytes(), filled(blockLen, uint64(wc.Imm))) {
		return fmt.Errorf("the block of member %d has other bytes", wc.Imm)
	}
	return c.Barrier(ctx)
}

// writeBlock connects with the first member and writes a block into its memory.
func (m *member) writeBlock(ctx context.Context, c *rendezvous.Conn, host *nics.Host) error {
	qp, err := host.Connect(ctx, c, m.qpConfig())
	if err != nil {
		return err
	}
	defer qp.Close()
	mr, err := qp.Domain().Register(filled(blockLen, uint64(m.Rank)), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	remote, err := rendezvous.Exchange(ctx, c, ibverbx.RemoteMR{})
	if err != nil {
		return err
	}
	if _, err := qp.PostSend(ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
		Local: mr.All(), Remote: remote.At(0), Imm: uint32(m.Rank)}); err != nil {
		return err
	}
	if _, err := completion(ctx, qp); err != nil {
		return err
	}
	return c.Barrier(ctx)
}

// completion waits for a completion, which must be one of success.
func completion(ctx context.Context, qp *ibverbx.VirtualQP) (wc ibverbx.WC, err error) {
	for {
		wc, ok, err := qp.CQ().PollOne()
		if err != nil || ok {
			return wc, errors.Join(err, wc.Err())
		}
		if err := qp.CQ().Wait(ctx); err != nil {
			return wc, err
		}
	}
}
