package tagged_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func TestConfigRefusals(t *testing.T) {
	f, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(f.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []tagged.Config{
		{EagerLimit: 1<<30 + 1}, {Chunk: -1}, {Window: -1}, {MaxUnexpected: -1}, {MaxUnexpected: 1 << 16},
		{MaxRequests: -1},
		{Transport: transport.Config{BufferSize: 300}}, {Transport: transport.Config{AMBuffers: -1}},
	} {
		if _, err := tagged.NewWorker(dom, cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if err := errors.Join(dom.Close(), f.Close()); err != nil {
		t.Error(err) // a refused worker left something open
	}
}
