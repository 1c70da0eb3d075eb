package nics

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// openSoft opens software NICs, and chooses among them.
func openSoft(c Config) (verbs.Provider, error) {
	fabric, err := soft.New(c.Soft)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	if c.Devices == "" {
		return fabric, nil
	}
	all, err := fabric.Devices()
	if err == nil {
		all, err = Choose(all, c.Devices)
	}
	if err != nil {
		return nil, errors.Join(err, fabric.Close())
	}
	return softChosen{fabric, all}, nil
}

// softChosen is some NICs of a fabric.
type softChosen struct {
	*soft.Fabric
	chosen []verbs.Device
}

// Devices are those that were chosen.
func (s softChosen) Devices() ([]verbs.Device, error) {
	if _, err := s.Fabric.Devices(); err != nil {
		return nil, err
	}
	return append([]verbs.Device(nil), s.chosen...), nil
}

// Choose returns those of devices that filter, a Config.Devices, names, in its order. It is for the
// Open of a [Source] whose NICs have one port each. A filter that names a NIC that is not there, or
// a port other than 1, is refused.
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
		return nil, err // as of real NICs: the filter is sound, and the NIC is not there
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
