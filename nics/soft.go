package nics

import (
	"errors"
	"fmt"
	"os"

	"ibverbx/verbs"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

// openSoft opens software NICs, and chooses among them.
func openSoft(c Config) (verbs.Provider, error) {
	fabric, err := soft.New(c.Soft)
	if err != nil {
		return nil, err // not fabric: a nil pointer in an interface is not nil
	}
	return choose(fabric, c.Devices)
}

// openShm opens NICs of shared memory, and chooses among them.
func openShm(c Config) (verbs.Provider, error) {
	p, err := openMemory(c.Shm)
	if err != nil {
		return nil, err
	}
	return choose(p, c.Devices)
}

// openMemory opens NICs of shared memory. An error of their directory says where that is named.
func openMemory(cfg shm.Config) (*shm.Provider, error) {
	p, err := shm.Open(cfg)
	if errors.Is(err, verbs.ErrInvalid) && cfg.Dir != "" && cfg.Dir == os.Getenv(envShmDir) {
		err = fmt.Errorf("%s: %w", envShmDir, err)
	}
	return p, err
}

// choose offers those NICs of a provider that the filter names, or all without a filter. It closes
// the provider if it fails.
func choose(p verbs.Provider, filter string) (verbs.Provider, error) {
	if filter == "" {
		return p, nil
	}
	all, err := p.Devices()
	if err == nil {
		all, err = Choose(all, filter)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return chosen{p, all}, nil
}

// chosen is a provider of which only some NICs are offered.
type chosen struct {
	verbs.Provider
	devices []verbs.Device
}

// Devices returns the chosen NICs.
func (c chosen) Devices() ([]verbs.Device, error) {
	if _, err := c.Provider.Devices(); err != nil {
		return nil, err
	}
	return append([]verbs.Device(nil), c.devices...), nil
}

// Choose returns the devices that filter, a Config.Devices, names, in its order. Use it in the Open
// of a [Source] whose NICs have one port each. It refuses a filter that names a missing NIC, or a
// port other than 1.
func Choose(devices []verbs.Device, filter string) ([]verbs.Device, error) {
	f, err := verbs.ParseDeviceFilter(filter)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name())
	}
	selections, err := f.Select(names)
	if err != nil {
		return nil, err // as for real NICs: the filter is valid, and the NIC is missing
	}
	var chosen []verbs.Device
	for _, s := range selections {
		if s.Port > 1 {
			return nil, fmt.Errorf("%w: Devices: %s: %s has port 1 only", verbs.ErrInvalid, filter,
				names[s.Index])
		}
		chosen = append(chosen, devices[s.Index])
	}
	return chosen, nil
}
