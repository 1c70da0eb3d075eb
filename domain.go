package ibverbx

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// Domain is a protection domain on every one of a list of NICs: it registers memory on all of them
// in one call and creates virtual CQs and queue pairs over them. It is safe for concurrent use; the
// objects that it creates have their own rules.
type Domain struct {
	devices []verbs.Device
	pds     []verbs.PD

	mu      sync.Mutex
	users   int  // open regions, CQs and queue pairs
	closing bool // Close was called: the last user frees the protection domains

	// lacking counts, by device, the open regions that its NIC does not have, because it was gone
	// when they were registered. Its queue pairs must not return to service: neither end knows
	// which requests need those regions.
	lacking [verbs.MaxDevices]atomic.Int64
}

// NewDomain makes a domain over devices of one provider.
func NewDomain(devices ...verbs.Device) (*Domain, error) {
	if len(devices) == 0 {
		return nil, fmt.Errorf("ibverbx: new domain: %w: no devices", verbs.ErrInvalid)
	}
	d := &Domain{}
	var seen [verbs.MaxDevices]verbs.Device
	for i, dev := range devices {
		if dev == nil {
			_ = d.free()
			return nil, fmt.Errorf("ibverbx: new domain: %w: device %d of the list is nil", verbs.ErrInvalid,
				i)
		}
		if dev.ID() >= verbs.MaxDevices {
			_ = d.free()
			return nil, fmt.Errorf("ibverbx: new domain: %w: %s has index %d: must be below %d",
				verbs.ErrInvalid, dev.Name(), dev.ID(), verbs.MaxDevices)
		}
		if other := seen[dev.ID()]; other != nil {
			_ = d.free()
			return nil, fmt.Errorf("ibverbx: new domain: %w: %s and %s have the same index: give each "+
				"device once, all of one provider", verbs.ErrInvalid, other.Name(), dev.Name())
		}
		seen[dev.ID()] = dev
		pd, err := dev.AllocPD()
		if err != nil {
			_ = d.free()
			return nil, fmt.Errorf("ibverbx: new domain: %w", err)
		}
		d.devices, d.pds = append(d.devices, dev), append(d.pds, pd)
	}
	return d, nil
}

// Devices lists the NICs, in the order given.
func (d *Domain) Devices() []verbs.Device { return append([]verbs.Device(nil), d.devices...) }

// Close frees the protection domains as soon as the last memory region, virtual CQ and virtual
// queue pair of the domain is closed, which may be now or later. From then on you cannot create
// anything in it.
func (d *Domain) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return fmt.Errorf("ibverbx: close domain: %w", ErrClosed)
	}
	d.closing = true
	if d.users == 0 {
		return d.free()
	}
	return nil
}

func (d *Domain) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return ErrClosed
	}
	d.users++
	return nil
}

func (d *Domain) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users--
	if d.users == 0 && d.closing {
		_ = d.free() // there is no caller to return an error to
	}
}

func (d *Domain) free() error {
	var errs []error
	for _, pd := range d.pds {
		if err := pd.Close(); err != nil {
			errs = append(errs, fmt.Errorf("ibverbx: close domain: %w", err))
		}
	}
	d.pds = nil
	return errors.Join(errs...)
}
