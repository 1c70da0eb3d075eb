package lab

import (
	"fmt"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Fabric is NICs and the network between them. Nothing in it happens by itself.
type Fabric interface {
	Device(i int) Device
	// Movable returns how many actions are possible now.
	Movable() int
	// Step performs one of them, and describes it. There must be one. The testbed's choices decide
	// which.
	Step(t *Testbed) string
	// Run performs up to limit actions in the fabric's own order. It returns how many, 0 when
	// further ones would change nothing.
	Run(limit int) int
	// Objects lists the open objects.
	Objects() string
	// Close fails while an object is open.
	Close() error
}

// Device is a NIC of a fabric.
type Device interface {
	verbs.Device
	verbs.PathChecker
	SetLink(up bool)
}

// softFabric is the stepped fabric of package soft.
type softFabric struct {
	*soft.Fabric
	actions []soft.Action
}

func (t *Testbed) newSoftFabric(nics int) *softFabric {
	p := t.Plan
	f, err := soft.New(soft.Config{Devices: nics, Stepped: true, Seed: p.Seed, Scramble: p.Scramble})
	t.Must("new fabric", err)
	return &softFabric{Fabric: f}
}

func (f *softFabric) Device(i int) Device { return f.Fabric.Device(i) }

func (f *softFabric) Objects() string { return f.Fabric.Objects().String() }

func (f *softFabric) Movable() int {
	f.actions = f.Actions(f.actions[:0])
	return len(f.actions)
}

func (f *softFabric) Step(t *Testbed) string {
	a := f.choose(t)
	f.Do(a)
	if t.Hooks.Moved != nil {
		t.Hooks.Moved(a)
	}
	if t.Log == nil {
		return ""
	}
	return a.String()
}

// choose draws the next action. Timers expire rarely while anything else can happen, and in worlds
// with a bias some queue pairs get far ahead of others.
func (f *softFabric) choose(t *Testbed) soft.Action {
	best := f.actions[t.Rng.IntN(len(f.actions))]
	for range 2 + t.Plan.Bias {
		a := f.actions[t.Rng.IntN(len(f.actions))]
		if best.Kind == soft.Timer && t.Rng.IntN(16) != 0 ||
			t.Plan.Bias != 0 && t.rank(a) > t.rank(best) && a.Kind != soft.Timer {
			best = a
		}
	}
	return best
}

// rank orders queue pairs and kinds of actions, differently in each world.
func (t *Testbed) rank(a soft.Action) uint64 {
	x := t.Plan.Seed ^ uint64(a.Device)<<32 ^ uint64(a.QPNum)<<8 ^ uint64(a.Kind)
	x *= 0x9e3779b97f4a7c15
	return x >> 40
}

// softDevice returns the NIC of package soft under a tap.
func (d *NIC) softDevice() *soft.Device {
	s, ok := d.Device.(*soft.Device)
	if !ok {
		panic(fmt.Sprintf("lab: %s is no NIC of package soft, which alone has this fault", d.Name()))
	}
	return s
}

// Mend puts the link up, and brings the NIC back if it is gone.
func (d *NIC) Mend() {
	d.SetLink(true)
	if s, ok := d.Device.(*soft.Device); ok {
		s.Restore()
	}
}
