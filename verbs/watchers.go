package verbs

import (
	"slices"
	"sync"

	"ibverbx/internal/guard"
)

// Watchers hands out the events of a device to those who watch it. Providers keep one for each
// device, and their Watch is its Watch; programs have no use for it. The zero value is ready. It is
// safe for concurrent use. Its lock is the last one taken, and nothing waits under it, so a
// provider may publish with its own locks held.
type Watchers struct {
	_    guard.NoCopy
	mu   sync.Mutex
	list []*watcher
}

// watcher is one call of Watch: a channel may be given to several.
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
// room for two or more is kept for EventDeviceFatal: a NIC's death comes through whatever it has
// reported before, and however long nobody has looked. Publish never blocks and calls nothing,
// so that it may be called with locks held. The lock is kept while it sends: that is what makes
// stop final.
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
