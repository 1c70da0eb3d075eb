package verbs

import (
	"slices"
	"sync"

	"ibverbx/internal/guard"
)

// Watchers sends the events of a device to its watchers. It is for providers, which keep one for
// each device to implement [Device.Watch]; programs do not need it. The zero value is ready. It is
// safe for concurrent use. Its lock is taken last and nothing waits under it, so a provider may
// publish while it holds its own locks.
type Watchers struct {
	_    guard.NoCopy
	mu   sync.Mutex
	list []*watcher
}

// watcher is one call of Watch. Several calls may have the same channel.
type watcher struct{ c chan<- Event }

// Watch is [Device.Watch].
func (w *Watchers) Watch(c chan<- Event) (stop func()) {
	one := &watcher{c}
	w.mu.Lock()
	w.list = append(w.list, one)
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.Index(w.list, one); i >= 0 {
			w.list = slices.Delete(w.list, i, i+1)
		}
	}
}

// Publish sends an event to every watcher that has room for it. The last place of a channel with
// room for two or more is reserved for EventDeviceFatal, so a NIC's death is delivered even if
// earlier events were not read. Publish never blocks and calls nothing, so it may be called with
// locks held. It holds the lock while it sends, so that nothing is sent after stop.
func (w *Watchers) Publish(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.list {
		if e.Type != EventDeviceFatal && cap(one.c) > 1 && len(one.c) >= cap(one.c)-1 {
			continue
		}
		select {
		case one.c <- e:
		default:
		}
	}
}
