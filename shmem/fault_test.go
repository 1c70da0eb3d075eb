package shmem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/errwrap/errwraptest"
	"ibverbx/shmem"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// quick is a configuration in which connections give up soon, and waiting PEs check each other
// often.
func quick() shmem.Config {
	cfg := shmem.Config{Transport: transport.Config{KeepAlive: 5 * time.Millisecond}}
	cfg.Transport.QP.Conn.Timeout = 8 // 1 ms
	cfg.Transport.QP.Conn.RetryCount = 2
	return cfg
}

// died returns an error unless err says that PE 3 has failed.
func died(err error) error {
	var gone *shmem.PEError
	if !errors.As(err, &gone) || gone.PE != 3 || !errors.Is(err, transport.ErrPeerFailed) ||
		!strings.Contains(err.Error(), "PE 3") {
		return wrong("%v, want that PE 3 failed", err)
	}
	return nil
}

// When a PE dies, every call in which others wait returns an error that says which PE it was.
func TestAPEDiesWhileOthersWait(t *testing.T) {
	waits := map[string]func(ctx context.Context, pe *shmem.PE, s shmem.Sym[uint64]) error{
		"barrier": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return pe.Barrier(ctx)
		},
		"sync": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error { return pe.Sync(ctx) },
		"wait until": func(ctx context.Context, pe *shmem.PE, s shmem.Sym[uint64]) error {
			return shmem.WaitUntil(ctx, pe, s, shmem.NE, 0)
		},
		"reduce": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return shmem.Reduce(ctx, pe, make([]int64, 9), make([]int64, 9), shmem.OpSum)
		},
		"broadcast": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return shmem.Broadcast(ctx, pe, make([]int64, 9), 3)
		},
		"all-gather": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return shmem.AllGather(ctx, pe, make([]int64, 40), make([]int64, 8))
		},
		"alloc": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			_, err := shmem.Alloc[byte](ctx, pe, 10)
			return err
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			l := newTestbed(t, shape{5, 1, 2}, quick())
			l.mayFail = true
			s := allocate[uint64](l, 1)
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				if pe.Rank() == 3 {
					l.fabric.Device(3).Kill()
					return nil
				}
				if err := died(wait(ctx, pe, s)); err != nil {
					return fmt.Errorf("PE %d: %w", pe.Rank(), err)
				}
				return nil
			})
		})
	}
}

// Quiet names the PE also right after the call in which its connection failed.
func TestQuietNamesAPEThatHasJustFailed(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, quick())
	l.mayFail = true
	s := allocate[uint64](l, 1)
	l.fabric.Device(0).Kill()
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		for what, err := range map[string]error{"put": shmem.P(ctx, pe, s, 1, 1), "quiet": pe.Quiet(ctx)} {
			var gone *shmem.PEError
			if !errors.As(err, &gone) || gone.PE != 1 {
				return wrong("%s: %v, want that PE 1 failed", what, err)
			}
		}
		return nil
	})
}

// When a PE closes before the others, calls that wait for it return an error. Nothing is left of a
// put whose context has ended.
func TestAPEClosesEarly(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 2}, quick())
	l.mayFail = true
	s := allocate[byte](l, 1<<19)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 2 {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: l.fabric.Device(2), Count: -1})
			if err := shmem.Put(ended, pe, s, make([]byte, 1<<19), 0); !errors.Is(err, context.Canceled) {
				return wrong("put: %v", err)
			}
			if err := pe.Close(ended); !errors.Is(err, context.Canceled) {
				return wrong("close: %v", err)
			}
			return nil
		}
		var gone *shmem.PEError
		if err := pe.Barrier(ctx); !errors.As(err, &gone) || gone.PE != 2 {
			return wrong("PE %d: %v, want that PE 2 has closed", pe.Rank(), err)
		}
		return nil
	})
}

// When ctx ends an operation goes on; its memory is free after Quiet, and nothing leaks. A single
// queue pair would let go of memory that it still uses.
func TestAContextEndsDuringAPut(t *testing.T) {
	for _, s := range shapes(2) {
		t.Run(s.String(), func(t *testing.T) {
			l := newTestbed(t, s, shmem.Config{})
			to, from := allocate[byte](l, 1<<20), allocate[byte](l, 1<<20)
			stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
			l.one(func(ctx context.Context, pe *shmem.PE) error {
				ended, cancel := context.WithCancel(ctx)
				cancel()
				put := shmem.Put(ended, pe, to, make([]byte, 1<<20), 1)
				get := shmem.Get(ended, pe, make([]byte, 1<<20), from, 1)
				if !errors.Is(put, context.Canceled) || !errors.Is(get, context.Canceled) {
					return wrong("%v, %v", put, get)
				}
				stall.Remove()
				return pe.Quiet(ctx)
			})
		})
	}
}

// PEs put, get, reduce and meet in barriers. The two NICs of one fail one after the other, ten
// times in turn, while data is on its way, and come back: no call fails, and what each reads is
// what was written. Package transport loses each NIC in every way.
func TestAProgramOutlivesNICs(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			cfg := quick()
			cfg.Transport.QP.Scheme, cfg.Transport.QP.Failover = scheme, true
			cfg.Transport.QP.FragmentSize = 8192
			cfg.Transport.QP.Failback = time.Millisecond
			cfg.RegisterFrom = 64 << 10
			l := newTestbed(t, shape{3, 2, 1}, cfg)
			block, signals := allocate[byte](l, outliveSize), allocate[uint64](l, 1)
			lost := make([]uint64, 3)
			whole := func() bool { // all PEs have noticed, and all is back
				all := true
				for i, pe := range l.world.PEs() {
					s := pe.Stats().Transport
					all = all && s.RailsLost > lost[i] && s.RailsBack == s.RailsLost
				}
				return all
			}
			for turn := range 10 {
				nic := l.fabric.Device(turn % 2)
				for i, pe := range l.world.PEs() {
					lost[i] = pe.Stats().Transport.RailsLost
				}
				l.run(func(ctx context.Context, pe *shmem.PE) error {
					for i := range 4 {
						kill := func() {}
						if i == 0 && pe.Rank() == 0 {
							kill = nic.Kill
						}
						if err := outlive(ctx, pe, block, signals, turn*4+i, kill); err != nil {
							return fmt.Errorf("turn %d, round %d: %w", turn, i, err)
						}
					}
					return nil
				})
				nic.Restore()
				for !whole() {
					l.run(func(ctx context.Context, pe *shmem.PE) error { return pe.Barrier(ctx) })
				}
			}
			for _, pe := range l.world.PEs() {
				if s := pe.Stats().Transport; s.Failures != 0 {
					t.Errorf("PE %d: %d endpoints have failed", pe.Rank(), s.Failures)
				}
			}
		})
	}
}

const outliveSize = 60_000

// outlive is a round of three PEs, each of which puts to the next one, with kill while that is on
// its way.
func outlive(ctx context.Context, pe *shmem.PE, block shmem.Sym[byte], signals shmem.Sym[uint64], round int,
	kill func()) error {
	n, next := outliveSize>>(round%4*3), (pe.Rank()+1)%3
	mine, got, want := make([]byte, n), make([]byte, n), make([]byte, n)
	fill(mine, round*3+pe.Rank())
	fill(want, round*3+(pe.Rank()+2)%3)
	put := shmem.PutSignal(ctx, pe, block, mine, signals, uint64(round+1), shmem.SignalSet, next)
	kill()
	wait := shmem.WaitUntil(ctx, pe, signals, shmem.EQ, uint64(round+1))
	get := shmem.Get(ctx, pe, got, block, next)
	sum := []int64{int64(round), int64(pe.Rank())}
	reduce := shmem.Reduce(ctx, pe, sum, sum, shmem.OpSum)
	if err := errors.Join(put, wait, get, reduce); err != nil {
		return err
	}
	if !bytes.Equal(block.Local(pe)[:n], want) || !bytes.Equal(got, mine) || sum[0] != int64(3*round) ||
		sum[1] != 3 {
		return wrong("PE %d has other data, or sums %v", pe.Rank(), sum)
	}
	return pe.Barrier(ctx)
}

// An atomic whose answer is lost with its queue pair fails alone; one that does not wait has Quiet
// say so. The PE is not lost.
func TestAnAtomicIsLost(t *testing.T) {
	cfg := quick()
	cfg.Transport.QP.Failover = true
	l := newTestbed(t, shape{2, 2, 4}, cfg)
	s := allocate[uint64](l, 2)
	lose := func() {
		l.fabric.Inject(soft.Fault{Kind: soft.FailAfterData,
			Match: func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpAtomicFetchAdd }})
	}
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		var gone *shmem.PEError
		lose()
		_, err := shmem.FetchAdd(ctx, pe, s, 1, 1)
		if !errors.Is(err, transport.ErrAtomicLost) || errors.As(err, &gone) {
			return wrong("fetch add: %w", err)
		}
		if err := pe.Quiet(ctx); err != nil {
			return wrong("quiet, of what the call has said: %w", err)
		}
		lose()
		if err := shmem.Add(ctx, pe, s, 1, 1); err != nil {
			return wrong("add: %w", err)
		}
		pe.Fence() // it must not take the error for itself
		if err := shmem.P(ctx, pe, s.At(1), 7, 1); err != nil {
			return err
		}
		if err := pe.Quiet(ctx); !errors.Is(err, transport.ErrAtomicLost) || errors.As(err, &gone) {
			return wrong("quiet after a lost add: %w", err)
		}
		if old, err := shmem.FetchAdd(ctx, pe, s, 1, 1); err != nil || old != 2 {
			return wrong("the number is %d, %w", old, err)
		}
		return pe.Quiet(ctx)
	})
}

// marshaled is an error with a form in JSON.
type marshaled struct{ error }

func (marshaled) MarshalJSON() ([]byte, error) { return []byte(`{"status":12}`), nil }

// TestPEErrorForMachines: JSON and slog get words and numbers.
func TestPEErrorForMachines(t *testing.T) {
	text := errors.New("peer failed: retry count exceeded")
	for _, c := range []struct {
		err       error
		json, log string
	}{
		{text, `{"pe":3,"error":"peer failed: retry count exceeded"}`,
			`{"err":{"pe":3,"err":"peer failed: retry count exceeded"}}`},
		{marshaled{text}, `{"pe":3,"error":"peer failed: retry count exceeded","err":{"status":12}}`,
			`{"err":{"pe":3,"err":{"status":12}}}`},
	} {
		err := &shmem.PEError{PE: 3, Err: c.err}
		if got, failed := json.Marshal(err); failed != nil || string(got) != c.json {
			t.Errorf("JSON: %s, %v: want %s", got, failed, c.json)
		}
		var b bytes.Buffer
		drop := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
				return slog.Attr{}
			}
			return a
		}
		slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{ReplaceAttr: drop})).Error("x", "err", err)
		if got := string(bytes.TrimSpace(b.Bytes())); got != c.log {
			t.Errorf("slog: %s: want %s", got, c.log)
		}
	}
	// A real failure.
	failed := &transport.EndpointError{Peer: "PE 3", Err: transport.ErrPeerFailed, Cause: text}
	got, err := json.Marshal(&shmem.PEError{PE: 3, Err: failed})
	if err != nil || !bytes.Contains(got, []byte(`"pe":3`)) || !bytes.Contains(got, []byte("retry count")) {
		t.Errorf("%s, %v", got, err)
	}
}

// TestErrorsForMachines: the error of a call after a NIC has died, and that of the program, are
// written in fields.
func TestErrorsForMachines(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, quick())
	l.mayFail = true
	l.fabric.Device(1).Kill()
	var called error
	ran := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 1 {
			return nil
		}
		called = pe.Barrier(ctx)
		return called
	})
	var gone *shmem.PEError
	if !errors.As(ran, &gone) || !errors.As(called, &gone) || gone.PE != 1 {
		t.Fatalf("%v, %v", called, ran)
	}
	for name, err := range map[string]error{"barrier": called, "run": ran} {
		errwraptest.Check(t, name, err, func(cause []byte) bool {
			return bytes.Contains(cause, []byte(`"pe":1,`)) && bytes.Contains(cause, []byte(`"peer":"PE 1"`))
		})
	}
}

// A team without the PE that has died goes on.
func TestATeamOutlivesAnotherPE(t *testing.T) {
	l := newTestbed(t, shape{4, 1, 1}, quick())
	l.mayFail = true // PE 3 has died
	teams := make([]*shmem.Team, 4)
	l.run(func(ctx context.Context, pe *shmem.PE) (err error) {
		teams[pe.Rank()], err = pe.Team().Split(ctx, pe.Rank()/3, 0)
		return err
	})
	l.fabric.Device(3).Kill()
	err := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 3 {
			return nil
		}
		if err := died(pe.Sync(context.WithoutCancel(ctx))); err != nil {
			return err
		}
		if err := teams[pe.Rank()].Sync(ctx); err != nil {
			return err
		}
		return vectors(ctx, teams[pe.Rank()], 1000)
	})
	if err != nil {
		t.Error(err)
	}
}

// PEs that are left after others have died in the middle of calls make a smaller team each time, in
// which no message of a failed call is taken for one of the new ones.
func TestShrink(t *testing.T) {
	for _, s := range []shape{{4, 1, 1}, {4, 1, 4}, {4, 2, 1}} {
		t.Run(s.String(), func(t *testing.T) {
			l := newTestbed(t, s, quick())
			l.mayFail = true // two PEs die
			kill := func(pe int) {
				for nic := range s.nics {
					l.fabric.Device(pe*s.nics + nic).Kill()
				}
			}
			err := l.world.Run(l.ctx, func(_ context.Context, pe *shmem.PE) error {
				ctx := l.ctx // a PE that has died does not end the contexts of the others
				team := pe.Team()
				for dead := 3; dead > 1; dead-- {
					for round := 0; ; round++ {
						if pe.Rank() == dead && round == 3 {
							kill(dead)
							return nil
						}
						v := make([]int64, 20000)
						r, err := shmem.StartReduce(team, v, v, shmem.OpSum)
						if err == nil {
							err = errors.Join(vectors(ctx, team, 30000), r.Wait(ctx))
						}
						if errors.As(err, new(*shmem.PEError)) {
							break
						}
						if err != nil {
							return err
						}
					}
					smaller, err := team.Shrink(ctx)
					if err != nil {
						return err
					}
					team = smaller
					if team.Size() != dead || team.Rank() != pe.Rank() {
						return wrong("rank %d of %v with %d PEs", team.Rank(), team, team.Size())
					}
					if err := vectors(ctx, team, 1000); err != nil {
						return err
					}
				}
				return pe.Close(ctx)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A team that has lost nobody can be shrunk, too. Who waits for a PE that does not call it says so.
func TestShrinkWaitsForAll(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	l.mayFail = true // the PEs get out of step
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		same, err := pe.Team().Shrink(ctx)
		if err != nil || same.Size() != 3 || same.String() != `team "world/shrunk"` {
			return wrong("%v: %w", same, err)
		}
		if err := vectors(ctx, same, 100); err != nil || pe.Rank() == 2 {
			return err
		}
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		want := `PE 2 of 3 has not called shrink of team "world/shrunk"`
		if _, err := same.Shrink(soon); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), want) {
			return wrong("%w, want %q", err, want)
		}
		return nil
	})
}
