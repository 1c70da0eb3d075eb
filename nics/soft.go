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
		return nil, err // not p: a nil pointer in an interface is not nil
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

// softChosen is a fabric of which only some NICs are offered.
type softChosen struct {
	*soft.Fabric
	chosen []verbs.Device
}

// Devices returns the chosen NICs.
func (s softChosen) Devices() ([]verbs.Device, error) {
	if _, err := s.Fabric.Devices(); err != nil {
		return nil, err
	}
	return append([]verbs.Device(nil), s.chosen...), nil
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
