package shmem_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// Bad arguments are refused at once, with an error that names them, and have no effect.
func TestBadArguments(t *testing.T) {
	l := newLab(t, shape{2, 1, 1}, shmem.Config{})
	s := allocate[uint64](l, 4)
	other := newLab(t, shape{1, 1, 1}, shmem.Config{HeapSize: 16 << 20})
	far := allocate[uint64](other, 2<<20-64).Slice(2<<20-1000, 2<<20-900)
	ctx, pe := l.ctx, l.world.PEs()[0]
	v := make([]uint64, 5)
	var none shmem.Sym[uint64]
	err2 := func(_ uint64, err error) error { return err }
	for _, c := range []struct {
		name, says string
		err        error
	}{
		{"put: PE", "PE 2:", shmem.Put(ctx, pe, s, v[:1], 2)},
		{"put: negative PE", "PE -1:", shmem.Put(ctx, pe, s, v[:1], -1)},
		{"put: length", "src has 5 elements, dst 4", shmem.Put(ctx, pe, s, v, 1)},
		{"put nbi: length", "src has 5 elements, dst 4", shmem.PutNBI(ctx, pe, s, v, 1)},
		{"get: length", "dst has 5 elements, src 4", shmem.Get(ctx, pe, v, s, 1)},
		{"get nbi: PE", "PE 7:", shmem.GetNBI(ctx, pe, v[:1], s, 7)},
		{"p: no memory", "dst has no element", shmem.P(ctx, pe, none, 1, 1)},
		{"g: no memory", "src has no element", err2(shmem.G(ctx, pe, none, 1))},
		{"put: of another heap", "heap", shmem.Put(ctx, pe, far, v[:1], 1)},
		{"add: no memory", "dst has no element", shmem.Add(ctx, pe, none, 1, 1)},
		{"fetch add: PE", "PE 9:", err2(shmem.FetchAdd(ctx, pe, s, 1, 9))},
		{"put signal: signal", "sig has no element", shmem.PutSignal(ctx, pe, s, v[:1], none, 1,
			shmem.SignalSet, 1)},
		{"put signal: op", "op 2", shmem.PutSignal(ctx, pe, s, v[:1], s, 1, 2, 1)},
		{"put signal: length", "src has 5", shmem.PutSignalNBI(ctx, pe, s, v, s, 1, shmem.SignalSet, 1)},
		{"wait: no memory", "s has no element", shmem.WaitUntil(ctx, pe, none, shmem.EQ, 0)},
		{"wait: cmp", "cmp 6", shmem.WaitUntil(ctx, pe, s, 6, 0)},
		{"wait: of another heap", "heap", shmem.WaitUntil(ctx, pe, far, shmem.EQ, 0)},
		{"broadcast: root", "root 2", shmem.Broadcast(ctx, pe, v, 2)},
		{"reduce: lengths", "dst has 5 elements, src 4", shmem.Reduce(ctx, pe, v, v[:4], shmem.OpSum)},
		{"reduce: op", "op unknown", shmem.Reduce(ctx, pe, v, v, 99)},
		{"reduce: floats", "op xor of these elements", shmem.Reduce(ctx, pe, []float64{1}, []float64{1},
			shmem.OpXor)},
		{"all-gather: lengths", "dst has 5 elements", shmem.AllGather(ctx, pe, v, v)},
		{"all-to-all: lengths", "dst has 5 elements", shmem.AllToAll(ctx, pe, v, v)},
	} {
		if !errors.Is(c.err, verbs.ErrInvalid) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, c.err, c.says)
		}
	}
	if st := pe.Stats().Transport; st.Atomics != 0 {
		t.Errorf("refused calls have sent %d atomics", st.Atomics)
	}
}

// A configuration that cannot be is refused before anything is made of it.
func TestBadConfigurations(t *testing.T) {
	l := newLab(t, shape{1, 1, 1}, shmem.Config{})
	exchange := func(_ context.Context, mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }
	for says, cfg := range map[string]shmem.Config{
		"PEs -1":           {PEs: -1},
		"PE 2":             {PE: 2, PEs: 2, Exchange: exchange},
		"PE -1":            {PE: -1},
		"HeapSize -5":      {HeapSize: -5},
		"Exchange is nil":  {PEs: 2},
		"returned 1 entry": {PEs: 2, Exchange: exchange},
	} {
		pe, err := shmem.Join(l.ctx, l.doms[0], cfg)
		if pe != nil || err == nil ||
			!strings.Contains(err.Error(), strings.ReplaceAll(says, "1 entry", "1 entries")) ||
			!errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := shmem.NewLocal(l.ctx, shmem.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no domains: %v", err)
	}
}

// PEs that are configured differently do not come together, and say in what they differ.
func TestCardsThatDoNotFit(t *testing.T) {
	l := newLab(t, shape{1, 1, 1}, shmem.Config{})
	for _, card := range []struct{ says, text string }{
		{"version 9", `{"version":9}`},
		{"PE 0: Exchange", `{"version":1,"pe":0}`},
		{"counts 3 PEs", `{"version":1,"pe":1,"pes":3}`},
		{"HeapSize is 4096", `{"version":1,"pe":1,"pes":2,"heapSize":4096}`},
		{"heap has 0 bytes", `{"version":1,"pe":1,"pes":2,"heapSize":8192}`},
		{"card of PE 1", `garbage`},
	} {
		exchange := func(_ context.Context, mine []byte) ([][]byte,
			error) {
			return [][]byte{mine, []byte(card.text)}, nil
		}
		pe, err := shmem.Join(l.ctx, l.doms[0], shmem.Config{PEs: 2, HeapSize: 8192, Exchange: exchange})
		if pe != nil || err == nil || !strings.Contains(err.Error(), card.says) {
			t.Errorf("%s: %v", card.says, err)
		}
	}
}

// When PEs are configured differently none joins, and each says which ones do not fit.
func TestNobodyJoinsAlone(t *testing.T) {
	l := newLab(t, shape{3, 1, 1}, shmem.Config{HeapSize: 1 << 12})
	mail := [3]chan []byte{make(chan []byte, 3), make(chan []byte, 3), make(chan []byte, 3)}
	errs := make([]error, 3)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		me := pe.ID()
		exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
			all := make([][]byte, 3)
			for i := range mail {
				mail[i] <- append([]byte{byte(me)}, mine...)
			}
			for range all {
				select {
				case b := <-mail[me]:
					all[b[0]] = b[1:]
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return all, pe.Sync(ctx) // nobody is a round ahead
		}
		cfg := shmem.Config{PE: me, PEs: 3, HeapSize: 4096 * (1 + me/2), Exchange: exchange}
		_, errs[me] = shmem.Join(ctx, l.doms[me], cfg)
		return nil
	})
	for i, says := range []string{"card of PE 2: invalid argument: its HeapSize is 8192", "card of PE 2",
		"card of PE 0"} {
		if errs[i] == nil || !strings.Contains(errs[i].Error(), says) {
			t.Errorf("PE %d: %v, want %q", i, errs[i], says)
		}
	}
}

// Whatever a peer's card says, joining ends with an error and not with a panic.
func FuzzCard(f *testing.F) {
	f.Add([]byte(`{"version":1,"pe":1,"pes":2,"heapSize":8192,"heap":{"addr":"0","length":"8192","rkeys":{"0":1}},"endpoints":[null,null]}`))
	f.Fuzz(func(t *testing.T, card []byte) {
		l := newLab(t, shape{1, 1, 1}, shmem.Config{HeapSize: 1 << 12})
		exchange := func(_ context.Context, mine []byte) ([][]byte, error) {
			return [][]byte{mine, card},
				nil
		}
		if pe, err := shmem.Join(l.ctx, l.doms[0],
			shmem.Config{PEs: 2, HeapSize: 8192, Exchange: exchange}); err == nil || pe != nil {
			t.Fatal("joined a card that no PE has made")
		}
	})
}
