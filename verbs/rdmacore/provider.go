//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// sysClass is the directory in which the kernel shows its RDMA devices.
const sysClass = "/sys/class/infiniband"

// Provider lists the host's NICs that libibverbs knows. It is a [verbs.Provider].
type Provider struct {
	_       guard.NoCopy
	lib     *library
	devices []*device
	// unopened is why devices are missing that the filter selects without naming them.
	unopened error

	mu     sync.Mutex
	arenas []*Arena
	closed bool
}

// Open loads libibverbs and opens the devices that cfg selects. Its error says what is missing and
// how to get it: it is [ErrNoLibrary], [ErrNoDevice], or the kernel's error from opening a device.
// If a device cannot be opened, Open fails if cfg names it or there is no other; otherwise it opens
// the others, and [Provider.Unopened] says why that one is missing.
func Open(cfg Config) (*Provider, error) {
	filter, err := verbs.ParseDeviceFilter(cfg.Devices)
	if err != nil {
		return nil, err
	}
	lib, err := openLibrary(cfg.Library)
	if err != nil {
		return nil, err
	}
	list, err := listDevices(lib)
	if err != nil {
		return nil, err
	}
	defer list.free()
	chosen, err := filter.Select(list.names)
	if err != nil {
		return nil, &verbs.OpError{Op: "open devices", Err: fmt.Errorf("%w: %w", ErrNoDevice, err)}
	}
	if chosen, err = list.connectable(chosen, named(cfg.Devices)); err != nil {
		return nil, err
	}
	switch {
	case len(chosen) == 0:
		return nil, &verbs.OpError{Op: "open devices", Err: ErrNoDevice,
			Detail: fmt.Sprintf("the filter %q leaves none of %s that has queue pairs of InfiniBand or RoCE",
				cfg.Devices, strings.Join(list.names, ", "))}
	case len(chosen) > verbs.MaxDevices:
		return nil, &verbs.OpError{Op: "open devices", Err: verbs.ErrInvalid,
			Detail: fmt.Sprintf("%d devices, at most %d: choose with Config.Devices", len(chosen),
				verbs.MaxDevices)}
	}
	p := &Provider{lib: lib}
	var unopened []error
	for _, s := range chosen {
		id := verbs.DeviceID(len(p.devices))
		d, err := openDevice(p, list.devices[s.Index], list.names[s.Index], id, s.Port)
		switch {
		case err == nil:
			p.devices = append(p.devices, d)
		case named(cfg.Devices):
			_ = p.Close()
			return nil, err
		default:
			unopened = append(unopened, err)
		}
	}
	p.unopened = errors.Join(unopened...)
	if len(p.devices) == 0 {
		_ = p.Close()
		return nil, p.unopened
	}
	return p, nil
}

// Unopened returns which of the selected devices could not be opened, and why; nil if all were.
func (p *Provider) Unopened() error { return p.unopened }

// Name returns "rdmacore".
func (p *Provider) Name() string { return "rdmacore" }

// Devices lists the NICs that Open selected.
func (p *Provider) Devices() ([]verbs.Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, &verbs.OpError{Op: "list devices", Err: verbs.ErrClosed}
	}
	list := make([]verbs.Device, len(p.devices))
	for i, d := range p.devices {
		list[i] = d
	}
	return list, nil
}

// Close closes the devices. It returns [verbs.ErrBusy], with no effect, while protection domains,
// completion queues or arenas are open. The library stays loaded.
func (p *Provider) Close() error {
	const op = "close provider"
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &verbs.OpError{Op: op, Err: verbs.ErrClosed}
	}
	if n := len(p.arenas); n > 0 {
		return &verbs.OpError{Op: op, Err: verbs.ErrBusy, Detail: fmt.Sprintf("%d arenas are open", n)}
	}
	for i, d := range p.devices {
		if err := d.retire(op); err != nil {
			for _, d := range p.devices[:i] {
				d.revive()
			}
			return err
		}
	}
	p.closed = true
	var failed error
	for _, d := range p.devices {
		if err := d.close(); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// named reports whether a filter lists devices by name, rather than all or all but some.
func named(filter string) bool {
	return filter != "" && !strings.HasPrefix(filter, "^") && !strings.Contains(filter, "*")
}

// connectable leaves out devices that are not NICs of InfiniBand or RoCE: iWARP connects only
// through librdmacm, and others (efa, usnic) have no reliable connections. It refuses such a device
// if it was selected by name.
func (l *deviceList) connectable(chosen []verbs.Selection, named bool) (list []verbs.Selection, err error) {
	for _, s := range chosen {
		switch transport := object[ibvDevice](l.devices[s.Index]).transportType; {
		case transport == transportIB:
			list = append(list, s)
		case named && transport == transportIWARP:
			return nil, &verbs.OpError{Op: "open device", Device: l.names[s.Index],
				Err: verbs.ErrNotSupported,
				Detail: "it speaks iWARP, whose connections need librdmacm (an Intel NIC may speak RoCE as " +
					"well: devlink dev param, enable_roce)"}
		case named:
			return nil, &verbs.OpError{Op: "open device", Device: l.names[s.Index],
				Err:    verbs.ErrNotSupported,
				Detail: fmt.Sprintf("it speaks neither InfiniBand nor RoCE (transport type %d)", transport)}
		}
	}
	return list, nil
}

// Values of enum ibv_transport_type.
const (
	transportIB    = 0
	transportIWARP = 1
)

// deviceList is libibverbs' list of devices. Its devices are valid until it is freed, the names for
// ever.
type deviceList struct {
	lib     *library
	addr    uintptr
	devices []uintptr
	names   []string
}

// listDevices returns the list. If it is empty, the error says why.
func listDevices(lib *library) (*deviceList, error) {
	const op = "list devices"
	addr, errno := lib.pointer(lib.getDeviceList, 0)
	if errno != 0 {
		return nil, &verbs.OpError{Op: op, Detail: whyNoDevice(os.DirFS(sysClass)),
			Err: fmt.Errorf("%w: %w", ErrNoDevice, &callError{call: "ibv_get_device_list", errno: errno})}
	}
	l := &deviceList{lib: lib, addr: addr}
	for slot := addr; ; slot += pointerSize {
		dev := *object[uintptr](slot)
		if dev == 0 {
			break
		}
		l.devices = append(l.devices, dev)
		l.names = append(l.names, goString(call(lib.getDeviceName, dev)))
	}
	if len(l.devices) == 0 {
		l.free()
		return nil, &verbs.OpError{Op: op, Err: ErrNoDevice, Detail: whyNoDevice(os.DirFS(sysClass))}
	}
	return l, nil
}

func (l *deviceList) free() { call(l.lib.freeDeviceList, l.addr) }
