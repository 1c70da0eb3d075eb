package bench

import (
	"slices"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
)

// Limits and defaults of the layers above queue pairs.
const (
	maxEndpoints   = 256
	maxLayerWindow = 4096    // on each endpoint
	maxOutstanding = 1 << 18 // on all endpoints
	// above it active messages take larger buffers, of which each endpoint has some
	longAM           = 4 << 10
	maxLongEndpoints = 64
	defaultLayerRate = "8,64,512,4K"
	defaultAM        = "64..4K/4"
	defaultAMLatency = "8,64,512,4K"
	leastLayerWindow = 4 // a flush needs its own place beside the message
	// shmemMemory is how much memory one direction writes to at most in a symmetric heap, of which
	// there are two a column.
	shmemMemory = 16 << 20
)

// Layered reports whether what is measured lies above virtual queue pairs.
func (p *Params) Layered() bool { return p.Layer != QP && p.Layer != "" }

// Shape is the operation measured. It is the zero value where there is no such operation.
func (p *Params) Shape() layers.Shape {
	layer := p.Layer
	if layer == "" {
		layer = QP
	}
	s, _ := layers.Find(layer, p.Op)
	return s
}

// Rated reports whether the rate of messages is the figure.
func (p *Params) Rated() bool { return p.Mode == Rate || p.Mode == Bandwidth && p.Op.Atomic() }

// fillLayer fills in what follows from the layer.
func (p *Params) fillLayer() {
	if p.Layer == "" {
		p.Layer = QP
	}
	switch {
	case p.Layered() && p.Op == "":
		p.Op = layers.DefaultOp(p.Layer)
	case p.Op == "":
		p.Op = Write
	}
	if !p.Layered() {
		return
	}
	if p.Kind == "" {
		p.Kind = layers.Auto
	}
	if p.Endpoints == 0 {
		p.Endpoints = 1
	}
	if p.Layer == layers.SHMEM {
		p.Memory = min(p.Memory, shmemMemory)
	}
}

// layerSizes are the sizes measured where none are given.
func (p *Params) layerSizes() string {
	am := p.Op == layers.AM
	switch {
	case p.Mode == Rate:
		return defaultLayerRate
	case p.Mode == Latency && am:
		return defaultAMLatency
	case p.Mode == Latency:
		return defaultLatency
	case am:
		return defaultAM
	}
	return defaultSizes
}

// checkLayer says which parameters do not fit the layer.
func (p *Params) checkLayer() error {
	switch {
	case p.Layer == QP && p.Kind != "":
		return usage("--kind is how the layers above queue pairs move bytes: use --layer transport or " +
			"--layer tagged, or drop --kind")
	case p.Layer == QP && p.Endpoints != 0:
		return usage("--endpoints are of the layers above queue pairs: use --layer transport or --layer " +
			"tagged, or drop --endpoints")
	case p.Layer == layers.SHMEM && p.Endpoints > 1:
		return usage("--endpoints %d: PEs of --layer shmem have one connection to each other; use --layer "+
			"transport or --layer tagged", p.Endpoints)
	case p.Layered() && (p.Endpoints < 1 || p.Endpoints > maxEndpoints):
		return usage("--endpoints %d: must be 1 to %d", p.Endpoints, maxEndpoints)
	case p.Layered() && p.TxDepth > maxLayerWindow:
		return usage("--tx-depth %d: through a layer at most %d on each endpoint", p.TxDepth, maxLayerWindow)
	case p.Layered() && p.TxDepth*p.Endpoints > maxOutstanding:
		return usage("--tx-depth %d on each of --endpoints %d: at most %d in all", p.TxDepth, p.Endpoints,
			maxOutstanding)
	case p.Endpoints > maxLongEndpoints && p.Op == layers.AM && slices.Max(p.Sizes) > longAM:
		return usage("--endpoints %d with active messages above %v: their buffers take too much memory; at "+
			"most %d endpoints",
			p.Endpoints, units.Size(longAM), maxLongEndpoints)
	}
	return nil
}

// tooLong says whether a message is longer than the operation, or the kind, takes.
func (p *Params) tooLong(z units.Size) bool {
	s := p.Shape()
	longest := s.LongestOf(p.Kind)
	return longest > 0 && int(z) > longest
}

func (p *Params) refuseSize(z units.Size) error {
	s := p.Shape()
	if longest := s.LongestOf(p.Kind); longest != s.Longest {
		return usage("--size %v: --kind %s takes at most %v; use --kind auto, or smaller sizes", z, p.Kind,
			units.Size(longest))
	}
	return usage("--size %v: --op %s takes at most %v; use --layer tagged, or --op put", z, p.Op,
		units.Size(s.Longest))
}

// checkShape says what is wrong with an operation of a layer.
func (p *Params) checkShape() error {
	s, err := layers.Find(p.Layer, p.Op)
	if err != nil {
		return &UsageError{err.Error()}
	}
	if err := s.CheckKind(p.Kind); err != nil {
		return &UsageError{err.Error()}
	}
	if s.LatencyOnly && p.Mode != Latency {
		return usage("--op %s is one message at a time: use --mode lat, or --op put", p.Op)
	}
	return p.checkMode([]Mode{Rate})
}

// beneath are the parameters of the same messages without the layer, through one queue pair.
func (p *Params) beneath() *Params {
	q := *p
	q.Layer, q.Kind, q.Endpoints = QP, "", 0
	q.Op = Op(p.Shape().Beneath)
	q.Schemes = []Scheme{Single}
	if q.Mode == Rate {
		q.Mode = Bandwidth
	}
	return &q
}

// compared says whether one queue pair is what the layer is compared with. Bandwidth has copy() for
// that, several endpoints have a single one, and between two processes nothing is compared.
func (p *Params) compared() bool {
	return p.Layered() && p.Endpoints == 1 && (p.Rated() || p.Mode == Latency)
}
