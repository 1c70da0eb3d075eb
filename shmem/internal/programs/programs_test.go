package programs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/shmem/internal/programs"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The programs give the serial results on any number of PEs, over a single queue pair, several, and
// several NICs.
func TestPrograms(t *testing.T) {
	for _, c := range []struct{ pes, nics, qps int }{{1, 1, 1}, {2, 1, 2}, {3, 2, 2}, {8, 1, 1}, {8, 1, 4},
		{8, 2, 1}} {
		t.Run(fmt.Sprintf("pes=%d/nics=%d/qps=%d", c.pes, c.nics, c.qps), func(t *testing.T) {
			f, err := soft.New(soft.Config{Devices: c.pes * c.nics})
			if err != nil {
				t.Fatal(err)
			}
			var doms []*ibverbx.Domain
			for i := range c.pes {
				var devices []verbs.Device
				for j := range c.nics {
					devices = append(devices, f.Device(i*c.nics+j))
				}
				dom, err := ibverbx.NewDomain(devices...)
				if err != nil {
					t.Fatal(err)
				}
				doms = append(doms, dom)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			cfg := shmem.Config{HeapSize: 1 << 20}
			cfg.Transport.QP.QPsPerDevice = c.qps
			world, err := shmem.NewLocal(ctx, cfg, doms...)
			if err != nil {
				t.Fatal(err)
			}
			if err := world.Run(ctx, programs.Check); err != nil {
				t.Error(err)
			}
			if err := world.Close(ctx); err != nil {
				t.Error(err)
			}
			for _, dom := range doms {
				if err := dom.Close(); err != nil {
					t.Error(err)
				}
			}
			if left := f.Objects(); left != (soft.Objects{}) {
				t.Errorf("left open: %v", left)
			}
		})
	}
}
