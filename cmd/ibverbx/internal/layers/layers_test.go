package layers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"ibverbx"
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
		src := make([]byte, window+Shifts*ShiftStep)
		for k := range src {
			src[k] = byte(k>>8) ^ byte(k) + byte(i)
		}
		cfgs[i] = Config{
			Shape: s, Window: 8, QP: ibverbx.Config{QPsPerDevice: 2},
			Devices: []verbs.Device{fabric.Device(i)}, Src: src, Dst: make([]byte, window+8),
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

// both plays a round at both ends.
func both(t *testing.T, ends [2]*End, tasks [2]Task) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i, e := range ends {
		tasks[i].Ctx, tasks[i].Window = ctx, 8
		if err := e.Begin(tasks[i]); err != nil {
			return err
		}
	}
	return Run(ctx, Pace{Stall: 10 * time.Second}, nil, ends[:]...)
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
				r := Round{Number: number + 1, Size: 4096}
				if s.Op.Atomic() {
					r.Size = 8
				}
				tasks := [2]Task{{Round: r, Send: 16}, {Round: r}}
				if s.Seen {
					tasks[1].Take = 16
				}
				if err := both(t, ends, tasks); err != nil {
					t.Fatal(err)
				}
				if s.Op.Atomic() {
					for i := range 16 {
						if got, want := ends[0].Old(i), r.Counter(i); got != want {
							t.Fatalf("atomic %d brought %d, want %d", i, got, want)
						}
					}
					if got, want := ends[1].Counter(), r.Counter(16); got != want {
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
		r := Round{Number: 1, Size: 512}
		tasks := [2]Task{{Round: r, Send: 16}, {Round: r, Take: 16}}
		lie(&tasks)
		err := both(t, ends, tasks)
		// who expects nothing may be over before it comes: then the next round finds out
		for ends[1].progress() != 0 {
		}
		if !errors.Is(err, ErrMessages) && !errors.Is(ends[1].Begin(tasks[1]), ErrMessages) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFind(t *testing.T) {
	for _, s := range Shapes() {
		if found, err := Find(s.Layer, s.Op); err != nil || found.Name != s.Name {
			t.Errorf("%s/%s: %+v, %v", s.Layer, s.Op, found, err)
		}
	}
	for layer, want := range map[Layer]Op{QP: Write, Transport: AM, Tagged: Send, SHMEM: Put} {
		if s, err := Find(layer, ""); err != nil || s.Op != want {
			t.Errorf("%s: %s, %v", layer, s.Op, err)
		}
	}
	if _, err := Find("moon", AM); err == nil ||
		!strings.Contains(err.Error(), "have qp, transport, tagged, shmem") {
		t.Error(err)
	}
	if _, err := Find(Transport, Send); err == nil ||
		!strings.Contains(err.Error(), "has am, put, get, fetch-add") {
		t.Error(err)
	}
}

// TestForeignCard shows that the card of another layer is not taken.
func TestForeignCard(t *testing.T) {
	for _, layer := range []Layer{Transport, Tagged} {
		s, err := Find(layer, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := pair(t, s)[1].Connect(&Card{}); !errors.Is(err, ErrMessages) {
			t.Errorf("%s: %v", layer, err)
		}
	}
}

// TestStalled gives up a round in which nothing moves, and not before that has lasted for a while.
func TestStalled(t *testing.T) {
	for _, spin := range []time.Duration{-1, 0, time.Hour} {
		const stall = 50 * time.Millisecond
		ends := pair(t, Shapes()[1])
		round := Task{Ctx: t.Context(), Round: Round{Number: 1, Size: 64}, Take: 1,
			Window: 1}
		if err := ends[1].Begin(round); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err := Run(t.Context(), Pace{Spin: spin, Stall: stall}, nil, ends[1])
		if took := time.Since(start); !errors.Is(err, ErrStalled) || took < stall {
			t.Errorf("spin %v: error %v after %v", spin, err, took)
		}
	}
}

// TestSlowIsNotStalled plays a round that takes three times as long as nothing may move: as long as
// something does, there is no hurry.
func TestSlowIsNotStalled(t *testing.T) {
	t.Parallel()
	const size, messages, stall, speed = 4096, 16, time.Second, 4096 * 16 * 10 / 22 // bytes a second
	ends := pair(t, Shapes()[1])
	ends[0].QueuePair().VQP.Domain().Devices()[0].(*soft.Device).SetSpeed(speed, 0)
	for i, e := range ends {
		task := Task{Ctx: t.Context(), Round: Round{Number: 1, Size: size}, Window: 8}
		if i == 0 {
			task.Send = messages
		} else {
			task.Take = messages
		}
		if err := e.Begin(task); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	err := Run(t.Context(), Pace{Stall: stall}, nil, ends[:]...)
	if took := time.Since(start); err != nil || took < 2*stall {
		t.Errorf("%v after %v", err, took)
	}
}

// TestSource shows that what a slot gets lies in the source, and is another piece in each of the
// next thousand rounds.
func TestSource(t *testing.T) {
	const size, slots = 100, 20
	for slot := range slots {
		first := Round{Number: 5, Seed: 9, Size: size}
		for later := range uint64(Shifts) {
			r := Round{Number: 5 + later, Seed: 9, Size: size}
			at := r.Source(slot)
			if at < slot*size || at+size > slots*size+Shifts*ShiftStep {
				t.Fatalf("slot %d of round %d is read at %d", slot, r.Number, at)
			}
			if later > 0 && at == first.Source(slot) {
				t.Fatalf("slot %d gets the same in rounds 5 and %d", slot, r.Number)
			}
			if r.Target(slot) != slot*size {
				t.Fatalf("slot %d is at %d", slot, r.Target(slot))
			}
			r.Slots = slots
			if i := slot + 3*slots; r.Source(i) != at || r.Target(i) != slot*size {
				t.Fatalf("message %d goes from %d to %d: not as message %d", i, r.Source(i), r.Target(i),
					slot)
			}
		}
	}
}

// TestUnknownOperation shows that an operation is refused for which a layer has no case, and that
// no two operations of queue pairs are posted alike.
func TestUnknownOperation(t *testing.T) {
	for _, layer := range []Layer{Transport, SHMEM} {
		ends := pair(t, Shape{Layer: layer, Op: "teleport"})
		r := Round{Number: 1, Size: 64}
		err := both(t, ends, [2]Task{{Round: r, Send: 1}, {Round: r}})
		if err == nil || !strings.Contains(err.Error(), "posts no --op teleport") {
			t.Errorf("%s: %v", layer, err)
		}
	}
	seen := map[verbs.Opcode]Op{}
	for _, s := range Shapes() {
		if other, twice := seen[s.opcode]; s.Layer == QP && twice {
			t.Errorf("%s is posted like %s", s.Op, other)
		}
		if s.Layer == QP {
			seen[s.opcode] = s.Op
		}
	}
}

// TestSendsAfterAFailure shows which completions may follow which.
func TestSendsAfterAFailure(t *testing.T) {
	const ok, failed, flushed = verbs.StatusSuccess, verbs.StatusRetryExcErr, verbs.StatusWRFlushErr
	for _, tt := range []struct {
		in   []verbs.Status
		want bool
	}{
		{[]verbs.Status{ok, ok, failed, flushed, flushed}, true},
		{[]verbs.Status{ok, flushed, flushed, failed, flushed}, true},
		{[]verbs.Status{failed, ok}, false},
		{[]verbs.Status{flushed, ok}, false},
	} {
		q := &QueuePair{base: base{Config: &Config{}}, qpRound: qpRound{posted: len(tt.in)}}
		var err error
		for i, s := range tt.in {
			err = errors.Join(err, q.sent(&ibverbx.WC{ID: uint64(i), Status: s}))
		}
		if (err == nil) != tt.want {
			t.Errorf("%v: %v", tt.in, err)
		}
	}
}

// TestFlushedInOrder shows that receives that fail must come in the order of posting, too.
func TestFlushedInOrder(t *testing.T) {
	q := &QueuePair{base: base{Config: &Config{Shape: Shape{Op: WriteImm}, Name: "b"}},
		qpRound: qpRound{expected: 2}}
	flushed := func(i uint64) *ibverbx.WC {
		return &ibverbx.WC{ID: recvBit | i,
			Status: verbs.StatusWRFlushErr}
	}
	if err := q.came(flushed(1)); !errors.Is(err, ErrVerify) || q.received != 0 {
		t.Errorf("the second in place of the first: %v", err)
	}
	if err := q.came(flushed(0)); err != nil || !q.failed || q.received != 1 || q.notified != 0 {
		t.Errorf("the first: %v, failed %v", err, q.failed)
	}
}
