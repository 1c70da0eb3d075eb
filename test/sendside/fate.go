package sendside

import (
	"context"
	"errors"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// fate is an endpoint's progress towards its end, and why it may fail: because of its link, or of
// itself.
type fate struct {
	b       *testbed
	name    string
	home    *lab.Host // of its worker
	link    *link
	other   *fate           // of the peer
	blame   string          // why it may fail although its link is sound; "" if it may not
	errors  int             // how often OnError ran
	ctx     context.Context // of Close
	closing bool            // Close was called
	closed  bool            // Close has returned, or Abort was called
}

func (f *fate) String() string { return f.name }

// mayFail returns why the endpoint may fail; "" if it may not.
func (f *fate) mayFail() string {
	if f.link.Blame != "" {
		return f.link.Blame
	}
	return f.blame
}

// because records why the endpoint may fail although its link is sound. The first reason counts.
func (f *fate) because(reason string) {
	if f.blame == "" {
		f.blame = reason
	}
}

// ends reports whether the program has ended the endpoint, or is about to.
func (f *fate) ends() bool { return f.closing || f.closed }

// fails checks the error of OnError, of this endpoint or of another.
func (f *fate) fails(this bool, err error) {
	f.errors++
	switch {
	case f.b.inside != f.home:
		f.b.Broken(rulePlace, "%v: OnError outside of its worker's progress", f)
	case f.errors > 1 || !this:
		f.b.Broken(ruleNoticed, "%v: OnError for the %dth time, for it %v: %v", f, f.errors, this, err)
	case f.mayFail() == "" || errors.Is(err, transport.ErrProtocol): // peers keep the rules
		f.b.Broken(lab.Isolation, "%v: %v", f, err)
	case errors.Is(err, transport.ErrPeerClosed) && !f.other.closing:
		f.b.Broken(ruleNoticed, "%v: %v, and the peer has not closed", f, err)
	}
}

// closer is an endpoint of transport or tagged.
type closer interface {
	Close(context.Context) error
	Err() error
}

// close starts a program that waits in Close, unless most programs wait already. then receives the
// error, and whether the endpoint worked before.
func (f *fate) close(most int, ep closer, then func(err error, worked bool)) {
	b := f.b
	if f.ends() || len(b.waiting()) >= most {
		return
	}
	ctx := b.context()
	b.start(sprintf("%v waits in close", f), f.home, func() {
		if f.ends() {
			return
		}
		f.closing, f.ctx = true, ctx
		worked := ep.Err() == nil
		f.other.because("its peer closes")
		err := ep.Close(ctx)
		f.closed = true
		b.Logf("  %v: close: %v", f, err)
		if err != nil && f.mayFail() == "" && !errors.Is(err, context.Canceled) {
			b.Broken(lab.Isolation, "%v: close: %v", f, err)
		}
		then(err, worked)
		if err != nil {
			f.other.because("its peer was aborted")
		}
	})
}
