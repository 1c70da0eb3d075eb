package tagged_test

import (
	"errors"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// tap is a software NIC that records what is registered with it.
type tap struct {
	*soft.Device
	mu         sync.Mutex
	registered []verbs.AccessFlags
	before     func(access verbs.AccessFlags, n int) // may be nil; runs before each registration
	// refuse is with what registrations are refused, but for the next good ones, and deregister
	// with what memory is not given back; nil if it is.
	refuse, deregister error
	good               int
	left               []verbs.MR // that were not given back
}

// leaked gives back what was not.
func (d *tap) leaked() error {
	var errs []error
	for _, mr := range d.left {
		errs = append(errs, mr.Close())
	}
	d.left = nil
	return errors.Join(errs...)
}

// tappedMR is memory that may stay registered.
type tappedMR struct {
	verbs.MR
	tap *tap
}

func (m tappedMR) Close() error {
	if m.tap.deregister != nil {
		m.tap.left = append(m.tap.left, m.MR)
		return m.tap.deregister
	}
	return m.MR.Close()
}

func (d *tap) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return &tappedPD{PD: pd, tap: d}, err
}

// take returns what was registered since the last call.
func (d *tap) take() []verbs.AccessFlags {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.registered
	d.registered = nil
	return list
}

type tappedPD struct {
	verbs.PD
	tap *tap
}

func (p *tappedPD) Device() verbs.Device { return p.tap }

func (p *tappedPD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	p.tap.mu.Lock()
	p.tap.registered = append(p.tap.registered, access)
	before, refuse := p.tap.before, p.tap.refuse
	if p.tap.good > 0 {
		p.tap.good, refuse = p.tap.good-1, nil
	}
	p.tap.mu.Unlock()
	if before != nil {
		before(access, len(buf))
	}
	if refuse != nil {
		return nil, refuse
	}
	mr, err := p.PD.RegisterMR(buf, access)
	return tappedMR{mr, p.tap}, err
}

// tappedRig is a rig of workers whose NICs record what is registered.
func tappedRig(t testing.TB, workers int, cfg tagged.Config) (*rig, []*tap) {
	t.Helper()
	f, err := soft.New(soft.Config{Devices: workers})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fabric: f, nics: 1}
	var taps []*tap
	for i := range workers {
		d := &tap{Device: f.Device(i)}
		dom, err := ibverbx.NewDomain(d)
		if err != nil {
			t.Fatal(err)
		}
		w, err := tagged.NewWorker(dom, cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.workers, r.domains, taps = append(r.workers, w), append(r.domains, dom), append(taps, d)
	}
	t.Cleanup(r.close)
	return r, taps
}
