package soft_test

import (
	"flag"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// devices makes a fabric of two NICs that has to be empty when the test ends.
func devices(t *testing.T, cfg soft.Config) *soft.Fabric {
	cfg.Devices = 2
	fabric, err := soft.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	})
	return fabric
}

func setLink(_ *testing.T, d verbs.Device, up bool) { d.(*soft.Device).SetLink(up) }

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	m.Run()
}

func TestConformance(t *testing.T) {
	t.Run("two NICs", func(t *testing.T) {
		verbstest.Run(t, verbstest.Env{
			Strict:  true,
			SetLink: setLink,
			Open: func(t *testing.T) (a, b verbs.Device) {
				f := devices(t, soft.Config{})
				return f.Device(0), f.Device(1)
			},
		})
	})
	t.Run("one NIC", func(t *testing.T) {
		verbstest.Run(t, verbstest.Env{
			Strict:   true,
			SetLink:  setLink,
			GIDIndex: 1,
			Open: func(t *testing.T) (a, b verbs.Device) {
				f := devices(t, soft.Config{})
				return f.Device(0), f.Device(0)
			},
		})
	})
	t.Run("slow NICs", func(t *testing.T) {
		verbstest.Run(t, verbstest.Env{
			Strict:  true,
			SetLink: setLink,
			Open: func(t *testing.T) (a, b verbs.Device) {
				f := devices(t, soft.Config{Device: soft.DeviceConfig{Bandwidth: 10 << 30, Latency: 20_000}})
				return f.Device(0), f.Device(1)
			},
		})
	})
	t.Run("stepped", func(t *testing.T) {
		var fabric *soft.Fabric
		verbstest.Run(t, verbstest.Env{
			Strict:  true,
			SetLink: setLink,
			Idle:    func() { fabric.Run(1000) },
			Open: func(t *testing.T) (a, b verbs.Device) {
				fabric = devices(t, soft.Config{Stepped: true, Seed: 1})
				return fabric.Device(0), fabric.Device(1)
			},
		})
	})
}
