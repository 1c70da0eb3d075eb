package tagged_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"ibverbx/tagged"
)

// TestManyGoroutines: many goroutines send and receive on the same endpoints, with calls that wait.
func TestManyGoroutines(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 16})
	ctx := background(r)
	rounds := 200
	if testing.Short() {
		rounds = 30
	}
	var wg sync.WaitGroup
	fail := make(chan error, 64)
	for g := range 8 {
		for _, ends := range [][2]*tagged.Endpoint{{a, b}, {b, a}} {
			tag := uint64(g)
			wg.Go(func() {
				for i := range rounds {
					if err := ends[0].SendWait(ctx, tag, pattern(i*g*37, i)); err != nil {
						fail <- err
						return
					}
				}
			})
			wg.Go(func() {
				buf := make([]byte, rounds*g*37)
				for i := range rounds {
					info, err := ends[1].Worker().RecvWait(ctx, tag, tagged.Exact, buf)
					if err != nil || !bytes.Equal(buf[:info.Length], pattern(i*g*37, i)) {
						fail <- fmt.Errorf("tag %d, message %d: %+v, %w", tag, i, info, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	close(fail)
	for err := range fail {
		t.Error(err)
	}
}
