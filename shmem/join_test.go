package shmem_test

import (
	"context"
	"strings"
	"testing"

	"ibverbx/shmem"
)

// PEs that are configured differently cannot join, and their errors say what differs.
func TestCardsThatDoNotFit(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	for _, card := range []struct{ says, text string }{
		{"version 9", `{"version":9}`},
		{"PE 0: Exchange", `{"version":1,"pe":0}`},
		{"counts 3 PEs", `{"version":1,"pe":1,"pes":3}`},
		{"HeapSize is 4096", `{"version":1,"pe":1,"pes":2,"heapSize":4096}`},
		{"heap has 0 bytes", `{"version":1,"pe":1,"pes":2,"heapSize":8192}`},
		{"card of PE 1", `garbage`},
	} {
		exchange := func(_ context.Context, mine []byte) ([][]byte, error) {
			return [][]byte{mine, []byte(card.text)}, nil
		}
		pe, err := shmem.Join(l.ctx, l.doms[0], shmem.Config{PEs: 2, HeapSize: 8192, Exchange: exchange})
		if pe != nil || err == nil || !strings.Contains(err.Error(), card.says) {
			t.Errorf("%s: %v", card.says, err)
		}
	}
}

// When one PE cannot join none does, and each error says which PEs do not fit.
func TestNobodyJoinsAlone(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{HeapSize: 1 << 12})
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
			return all, pe.Sync(ctx) // so that no PE is a round ahead
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

// Whatever a peer's card contains, joining ends with an error and not with a panic.
func FuzzCard(f *testing.F) {
	f.Add([]byte(`{"version":1,"pe":1,"pes":2,"heapSize":8192,` +
		`"heap":{"addr":"0","length":"8192","rkeys":{"0":1}},"endpoints":[null,null]}`))
	f.Fuzz(func(t *testing.T, card []byte) {
		l := newTestbed(t, shape{1, 1, 1}, shmem.Config{HeapSize: 1 << 12})
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
