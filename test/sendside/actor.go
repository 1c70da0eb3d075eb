package sendside

import (
	"context"
	"iter"
	"runtime/debug"

	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
)

// actor is a program that waits: a coroutine, which stops wherever a worker idles and continues
// when it is resumed. One runs at a time. The seed decides which.
type actor struct {
	b         *testbed
	name      string
	home      *lab.Host
	next      func() (struct{}, bool)
	stop      func()
	yield     func(struct{}) bool
	over      bool // its program has ended
	abandoned bool // it was abandoned before its end
}

// start begins a program, which runs when it is resumed.
func (b *testbed) start(name string, home *lab.Host, body func()) *actor {
	p := &actor{b: b, name: name, home: home}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		defer func() {
			r := recover()
			switch v := r.(type) {
			case nil:
			case *hunt.Violation:
				panic(v)
			default:
				if !p.abandoned {
					// the stack is still the program's here
					panic(b.Violation(lab.Panic, sprintf("%v\n%s", v, debug.Stack())))
				}
			}
		}()
		body()
	})
	b.actors = append(b.actors, p)
	return p
}

// resume lets a program run until it waits again, or ends.
func (p *actor) resume() {
	if p.over {
		return
	}
	before := p.b.current
	p.b.current = p
	_, more := p.next()
	p.b.current = before
	p.over = !more
}

// abandon ends a program where it waits.
func (p *actor) abandon() {
	if !p.over {
		p.over, p.abandoned = true, true
		p.stop()
	}
}

// abandoned unwinds a program that is abandoned.
type abandoned struct{}

// idle is transport.Config.Idle, called where a call waits. Outside of programs it lets the fabric
// move.
func (b *testbed) idle() {
	p := b.current
	if p == nil {
		b.Steps(16)
		return
	}
	if !p.yield(struct{}{}) {
		panic(abandoned{})
	}
}

// waiting returns the programs that have not ended.
func (b *testbed) waiting() []*actor {
	list := b.actors[:0]
	for _, p := range b.actors {
		if !p.over {
			list = append(list, p)
		}
	}
	b.actors = list
	return list
}

// resumeOne runs one of the waiting programs.
func (b *testbed) resumeOne() {
	if list := b.waiting(); len(list) != 0 {
		b.turn(list[b.Rng.IntN(len(list))])
	}
}

// context returns a context that cancelOne may end.
func (b *testbed) context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancels = append(b.cancels, cancel)
	return ctx
}

// cancelOne ends the context of a program.
func (b *testbed) cancelOne() {
	if n := len(b.cancels); n != 0 {
		b.cancels[b.Rng.IntN(n)]()
	}
}
