package sendside

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

func bugsOf(pkg string) hunt.Bugs {
	return hunt.Bugs{Package: pkg, File: "testdata/" + pkg + ".bugs"}
}

// TestTransportMutations plants bugs that worlds of endpoints must show.
func TestTransportMutations(t *testing.T) { flags.Hunt(t, &Transport, bugsOf("transport"), 20000) }

// TestTaggedMutations plants bugs that worlds of messages must show.
func TestTaggedMutations(t *testing.T) { flags.Hunt(t, &Tagged, bugsOf("tagged"), 8000) }

// TestShmemMutations plants bugs that worlds of PEs must show.
func TestShmemMutations(t *testing.T) { flags.Hunt(t, &Shmem, bugsOf("shmem"), 1000) }
