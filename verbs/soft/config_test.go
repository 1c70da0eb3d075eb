package soft

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx/verbs"
)

// Every field of the configuration takes its smallest and its largest value, and nothing beyond:
// the error names the field, its value and the bounds.
func TestBoundsOfTheConfiguration(t *testing.T) {
	device := func(set func(d *DeviceConfig)) Config {
		var c Config
		set(&c.Device)
		return c
	}
	for _, c := range []struct {
		cfg  Config
		says string // "" where it is taken
	}{
		{Config{}, ""},
		{Config{Devices: 1}, ""},
		{Config{Devices: verbs.MaxDevices}, ""},
		{Config{Devices: 65}, "65 devices, possible are 1 to 64"},
		{Config{Devices: -1}, "-1 devices, possible are 1 to 64"},
		{device(func(d *DeviceConfig) { d.Latency = 1 }), ""},
		{device(func(d *DeviceConfig) { d.Latency = -1 }), "latency -1ns: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxQPWR = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxQPWR = -1 }), "MaxQPWR -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxCQE = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxCQE = -1 }), "MaxCQE -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxSGE = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxSGE = -1 }), "MaxSGE -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxInline = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxInline = -1 }), "MaxInline -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = 255 }), ""},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = -1 }), "MaxRDAtomic -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = 256 }), "MaxRDAtomic 256: must be 255 at most"},
	} {
		want := "<nil>"
		if c.says != "" {
			want = (&verbs.OpError{Op: "new soft fabric", Detail: c.says, Err: verbs.ErrInvalid}).Error()
		}
		f, err := New(c.cfg)
		if fmt.Sprint(err) != want || c.says != "" && !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v, want %s", c.cfg, err, want)
		}
		if err != nil {
			continue
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
