package shmem_test

import (
	"bytes"
	"context"
	"testing"

	"ibverbx/shmem"
)

// Get returns with the data; GetNBI only initiates, and the data is there after Quiet.
func TestGetAndGetNBI(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 1<<20)
		mine := allocate[byte](l, 1<<20)
		theirs := s.Local(l.world.PEs()[1])
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			for _, dst := range [][]byte{mine.Local(pe), make([]byte, 1<<20)} {
				for i, n := range sizes() {
					fill(theirs[:n], i)
					clear(dst)
					if err := shmem.Get(ctx, pe, dst[:n], s, 1); err != nil {
						return err
					}
					if !bytes.Equal(dst[:n], theirs[:n]) {
						return wrong("get of %d bytes: wrong data", n)
					}
					clear(dst)
					if err := shmem.GetNBI(ctx, pe, dst[:n], s, 1); err != nil {
						return err
					}
					if err := pe.Quiet(ctx); err != nil {
						return err
					}
					if !bytes.Equal(dst[:n], theirs[:n]) {
						return wrong("get nbi of %d bytes: wrong data", n)
					}
				}
			}
			return nil
		})
	})
}
