package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Run plays the world of a seed. It returns the promise that was broken, or nil.
func Run(seed uint64) *Violation { return newPlan(seed).run(nil) }

// Report is what a person needs to understand a failure.
type Report struct {
	Broken *Violation
	Events int    // how many events the world had
	Kept   int    // how many are needed
	Trace  string // what happens in the shrunken world
}

// Shrink plays the world of a seed that fails, and leaves out events for as long as the same promise is broken.
func Shrink(seed uint64) (Report, bool) {
	p := newPlan(seed)
	v := p.run(nil)
	if v == nil {
		return Report{}, false
	}
	r := Report{Broken: v, Events: len(p.events)}
	p.events = p.events[:min(v.Event, len(p.events))]
	for size, before := max(len(p.events)/2, 1), len(p.events); ; size = max(size/2, 1) {
		for at := 0; at < len(p.events); {
			less := *p
			less.events = slices.Delete(slices.Clone(p.events), at, min(at+size, len(p.events)))
			if got := less.run(nil); got != nil && got.Rule == v.Rule {
				p = &less
			} else {
				at += size
			}
		}
		if size == 1 && len(p.events) == before {
			break
		}
		before = len(p.events)
	}
	r.Kept = len(p.events)
	var t trace
	r.Broken = p.run(t.add)
	r.Trace = t.String()
	return r, true
}

// trace gathers lines, equal ones behind each other as one.
type trace struct {
	text   strings.Builder
	last   string
	repeat int
}

func (t *trace) add(line string) {
	if line == t.last {
		t.repeat++
		return
	}
	t.flush()
	t.last, t.repeat = line, 1
}

func (t *trace) flush() {
	switch {
	case t.repeat > 1:
		fmt.Fprintf(&t.text, "%s (%d times)\n", t.last, t.repeat)
	case t.repeat == 1:
		t.text.WriteString(t.last + "\n")
	}
	t.repeat = 0
}

func (t *trace) String() string {
	t.flush()
	return t.text.String()
}

// String shows the whole.
func (r Report) String() string {
	return fmt.Sprintf("%v\n\n%d of %d events are enough:\n\n%s", r.Broken, r.Kept, r.Events, r.Trace)
}
