package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/rendezvous"
)

// TestLayersApart measures every operation of the layers that can be between two ends, each of
// which knows only its own.
func TestLayersApart(t *testing.T) {
	_, nics := fabric(t, 4)
	for _, s := range aboveQPs() {
		if s.Layer == layers.SHMEM {
			continue
		}
		for _, wait := range []Wait{Adaptive, Poll} {
			for _, word := range modes(s) {
				t.Run(fmt.Sprintf("%s/%s/%s/%s", s.Layer, s.Op, wait, word), func(t *testing.T) {
					p := layerParams(s.Layer, s.Op, Bandwidth, func(p *Params) {
						p.Wait, p.NICs, p.Schemes = wait, 0, []Scheme{Single, DQPLB}
						how(p, word)
					})
					a, b := apart(t, p, nics[:2], nics[2:])
					if a.err != nil || b.err != nil {
						t.Fatalf("end a: %v; end b: %v", a.err, b.err)
					}
					p = a.report.Params
					for end, o := range map[string]*outcome{"a": &a, "b": &b} {
						r := o.report
						if !r.OK || len(r.Results) != 2*len(p.Sizes) || r.Params.Op != s.Op ||
							r.Peer == nil {
							t.Fatalf("end %s: report %+v", end, r)
						}
						for i := range r.Results {
							checkResult(t, p, &r.Results[i], false)
						}
					}
				})
			}
		}
	}
}

// TestSHMEMApart shows that what is not measured between two processes is refused before they
// connect, and by the listening end.
func TestSHMEMApart(t *testing.T) {
	p := layerParams(layers.SHMEM, layers.Put, Bandwidth)
	err := p.ValidateApart()
	var unusable *UsageError
	if !errors.As(err, &unusable) ||
		!strings.Contains(err.Error(), "use --layer transport or --layer tagged") {
		t.Errorf("got %v", err)
	}
	p.Wait = Adaptive
	task := taskBody{Self: selfBody{Offer: offer("x")}, Params: p}
	if err := task.check(); !errors.As(err, &unusable) {
		t.Errorf("a listening end says %v", err)
	}
}

// FuzzLayerColumn reads what another process says of its end of a layer. What is taken has the
// memory that rounds will name.
func FuzzLayerColumn(f *testing.F) {
	p := layerParams(layers.Transport, layers.AM, Bandwidth)
	if err := p.Complete(); err != nil {
		f.Fatal(err)
	}
	f.Add(`{"scheme":"dqplb","src":{"addr":"0x1000","length":"999999"},` +
		`"dst":{"addr":"0x9000","length":"999999"}}`)
	f.Add(`{"scheme":"dqplb","dst":{"addr":"0x9001","length":"18446744073709551615"},` +
		`"transport":{"version":1}}`)
	f.Add(`{"scheme":"spray","tagged":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := rendezvous.Message{Kind: kindColumn, Body: json.RawMessage(text)}
		var column layers.Card
		if err := m.Decode(&column); err != nil {
			return
		}
		window := int(p.Memory)
		if err := checkCard(&column, p, window, 1); err != nil {
			if !errors.Is(err, rendezvous.ErrProtocol) || len(err.Error()) > 2000 {
				t.Fatal(err)
			}
			return
		}
		src, dst := p.bufferSizes(1, window)
		if column.Src.Len() < uint64(src) || column.Dst.Len() < uint64(dst) {
			t.Fatalf("took %s", text)
		}
	})
}
