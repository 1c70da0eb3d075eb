package roce

import (
	"testing"
	"time"

	"ibverbx/verbs/roce/internal/wire"
)

// NICs that send alike divide a quarter of the buffer, and do so for a period after the last one in
// which they did. One that sends little beside a busy one does not count.
func TestDivision(t *testing.T) {
	d, now := &Device{crowd: crowd{own: 1 << 20}}, crowdPeriod
	var a, b, c share
	for i, step := range []struct {
		after int64
		from  *share
		bytes int
		want  int
	}{
		{0, &a, 100_000, 1 << 20},
		{0, &b, 1000, 1 << 20},
		{0, &b, 49_000, 1 << 18},
		{0, &c, 100_000, 1 << 17},
		{crowdPeriod, &a, 1000, 1 << 17},
		{0, &a, 99_000, 1 << 17},
		{crowdPeriod, &a, 1000, 1 << 20},
		{0, &b, 1000, 1 << 18},
		{2 * crowdPeriod, &a, 1, 1 << 20},
	} {
		now += step.after
		d.arrived(step.from, now, step.bytes)
		if got := wire.Credits(d.crowd.grant.Value()) << 10; got != step.want {
			t.Errorf("step %d: %d bytes for each, want %d", i, got, step.want)
		}
	}
}

// Processes that share a processor send in turns of milliseconds: all of them count.
func TestDivisionAmongTurns(t *testing.T) {
	d := &Device{crowd: crowd{own: 1 << 20}}
	var from [5]share
	for i := range 20 {
		d.arrived(&from[i%5], int64(i+1)*int64(2*time.Millisecond), 100_000)
	}
	if want := wire.AckCredits(1 << 20 / 10 >> 10); d.crowd.grant != want {
		t.Errorf("%d KiB for each, want %d", wire.Credits(d.crowd.grant.Value()), wire.Credits(want.Value()))
	}
}
