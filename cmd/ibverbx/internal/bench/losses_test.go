package bench

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
)

// Losses are counted by NIC and cause, for each cell those of its time, and only so many causes.
func TestLosses(t *testing.T) {
	var c pair
	lose := func(end int, device, cause string) {
		c.noteLoss(end, ibverbx.RailEvent{Device: device, Down: true, Cause: errors.New(cause)})
	}
	lose(0, "nic0", "port down")
	lose(1, "nic2", "peer")
	before := c.lossesSoFar()
	lose(0, "nic0", "port down")
	lose(0, "nic0", "port down")
	lose(0, "nic1", "port down")
	c.noteLoss(0, ibverbx.RailEvent{Device: "nic0"}) // it is back
	got := c.lossesSince(before)
	want := []Loss{{"a", "nic0", "port down", 2}, {"a", "nic1", "port down", 1}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range 2 * maxLosses {
		lose(1, "nic2", fmt.Sprint(i))
	}
	if n := len(c.losses[1]); n != maxLosses {
		t.Errorf("%d causes are kept, want %d", n, maxLosses)
	}
}
