package layers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/pattern"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two connected ends of a shape, whose sources and targets have room for 16 messages
// of 4 KiB.
func pair(t *testing.T, s Shape) [2]*End {
	t.Helper()
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	const window = 16 * 4096
	var cfgs [2]Config
	for i := range cfgs {
		src := make([]byte, window+pattern.Shifts*pattern.Step)
		for k := range src {
			src[k] = byte(k>>8) ^ byte(k) + byte(i)
		}
		cfgs[i] = Config{
			Shape: s, Kind: Auto, Endpoints: 1, Window: 8, Largest: 4096, QP: ibverbx.Config{QPsPerDevice: 2},
			Devices: []verbs.Device{fabric.Device(i)}, Src: src, Dst: make([]byte, window+TailSize),
			Tail: window,
		}
	}
	ends, err := NewPair(&cfgs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, e := range ends {
			if err := e.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := fabric.Close(); err != nil {
			t.Errorf("something was left open: %v", err)
		}
	})
	return ends
}

// both plays a round at both ends and returns what each says.
func both(t *testing.T, ends [2]*End, tasks [2]Task) (errs [2]error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i, e := range ends {
		if err := e.Begin(tasks[i], func() {}); err != nil {
			t.Fatal(err)
		}
	}
	over := make(chan error, 1)
	go func() {
		err := ends[1].Run(ctx, ends[0].Over)
		if err != nil {
			cancel()
		}
		over <- err
	}()
	if errs[0] = ends[0].Run(ctx, ends[1].Over); errs[0] != nil {
		cancel()
	}
	errs[1] = <-over
	return errs
}

// TestRounds plays streams of every shape, one after the other:
// each message is in its slot, or is counted.
func TestRounds(t *testing.T) {
	for _, s := range Shapes() {
		if s.LatencyOnly {
			continue
		}
		t.Run(string(s.Layer)+"/"+string(s.Op), func(t *testing.T) {
			ends := pair(t, s)
			for number := range uint64(3) {
				r := pattern.Round{Number: number + 1, Size: 4096}
				if s.Atomic {
					r.Size = 8
				}
				tasks := [2]Task{{Round: r, Endpoints: 1, Send: 16}, {Round: r, Endpoints: 1}}
				if s.Seen {
					tasks[1].Take = 16
				}
				if errs := both(t, ends, tasks); errs[0] != nil || errs[1] != nil {
					t.Fatal(errs)
				}
				if s.Atomic {
					if got, want := ends[1].Counter(), 16*(number+1); got != want ||
						len(ends[0].Results()) != 16 {
						t.Fatalf("the counter holds %d, want %d", got, want)
					}
					continue
				}
				at, salt := ends[1].Target(), byte(0)
				if s.Reads {
					at, salt = ends[0].Target(), 1
				}
				for i := range 16 {
					for k := range 4096 {
						from := r.Source(i) + k
						if got, want := at[r.Target(i)+k], byte(from>>8)^byte(from)+salt; got != want {
							t.Fatalf("round %d: byte %d of message %d is %#x, want %#x", number, k, i, got,
								want)
						}
					}
				}
			}
		})
	}
}

// TestTooManyMessages checks that a peer that sends more than the round has is detected, and writes
// nothing beyond it.
func TestTooManyMessages(t *testing.T) {
	s, err := Find(Transport, AM)
	if err != nil {
		t.Fatal(err)
	}
	for name, lie := range map[string]func(*[2]Task){
		"one more":   func(tasks *[2]Task) { tasks[1].Take-- },
		"longer":     func(tasks *[2]Task) { tasks[1].Round.Size /= 2 },
		"shorter":    func(tasks *[2]Task) { tasks[1].Round.Size *= 2 },
		"unexpected": func(tasks *[2]Task) { tasks[1].Take = 0 },
	} {
		ends := pair(t, s)
		r := pattern.Round{Number: 1, Size: 512}
		tasks := [2]Task{{Round: r, Endpoints: 1, Send: 16}, {Round: r, Endpoints: 1, Take: 16}}
		lie(&tasks)
		errs := both(t, ends, tasks)
		// who expects nothing may be over before it comes: then the next round finds out
		for ends[1].engine.Progress() != 0 {
		}
		if !errors.Is(errs[1], ErrMessages) && !errors.Is(ends[1].Begin(tasks[1], func() {}), ErrMessages) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestFind(t *testing.T) {
	for _, s := range Shapes() {
		found, err := Find(s.Layer, s.Op)
		if err != nil || found.Name != s.Name || found.Beneath == "" || found.CheckKind(Auto) != nil {
			t.Errorf("%s/%s: %+v, %v", s.Layer, s.Op, found, err)
		}
		for _, k := range s.Kinds {
			if err := found.CheckKind(k); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := Find("moon", AM); err == nil ||
		!strings.Contains(err.Error(), "have qp, transport, tagged, shmem") {
		t.Error(err)
	}
	if _, err := Find(Transport, Send); err == nil ||
		!strings.Contains(err.Error(), "has am, put, put-poll, get, fetch-add") {
		t.Error(err)
	}
	if DefaultOp(Transport) != AM || DefaultOp(Tagged) != Send || DefaultOp(SHMEM) != Put ||
		DefaultOp("moon") != "" {
		t.Error("other defaults")
	}
}

// TestRegions shows that memory that is too small for what a round names is not taken.
func TestRegions(t *testing.T) {
	ends := pair(t, Shapes()[0])
	card, err := ends[0].Card()
	if err != nil {
		t.Fatal(err)
	}
	src, dst := int(card.Regions.Src.Len()), int(card.Regions.Dst.Len())
	if err := card.Regions.Check(src, dst); err != nil {
		t.Error(err)
	}
	if err := card.Regions.Check(src+1, dst); err == nil || !strings.Contains(err.Error(), "source") {
		t.Error(err)
	}
	if err := card.Regions.Check(src, dst+1); err == nil || !strings.Contains(err.Error(), "target") {
		t.Error(err)
	}
	if err := ends[1].Connect(&Card{}); err == nil || !strings.Contains(err.Error(), "0 endpoints") {
		t.Error(err)
	}
}
