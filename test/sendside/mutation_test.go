package sendside

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

func bugsOf(pkg string) hunt.Bugs {
	return hunt.Bugs{Package: pkg, File: "testdata/" + pkg + ".bugs"}
}

// TestTransportMutations checks that each bug of transport has its place. With -mutate it plants
// them one at a time and demands that the game of endpoints finds each. The others do likewise.
func TestTransportMutations(t *testing.T) { flags.Hunt(t, &Transport, bugsOf("transport"), 20000) }

func TestTaggedMutations(t *testing.T) { flags.Hunt(t, &Tagged, bugsOf("tagged"), 8000) }

func TestShmemMutations(t *testing.T) { flags.Hunt(t, &Shmem, bugsOf("shmem"), 1000) }
