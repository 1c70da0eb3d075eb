package nic

import "testing"

// A word is accessed as one where it has the length of a word and its alignment: processors need
// not be able to do so elsewhere.
func TestOnlyAlignedWordsAreWords(t *testing.T) {
	b := make([]byte, 4096)
	if addrOf(b)%8 != 0 {
		t.Fatal("the memory begins at no multiple of 8")
	}
	for at := range 9 {
		for n := range 17 {
			if got, want := Word64(b[at:at+n]) != nil, n == 8 && at%8 == 0; got != want {
				t.Errorf("%d bytes at %d are a word of 8: %v", n, at, got)
			}
			if got, want := Word32(b[at:at+n]) != nil, n == 4 && at%4 == 0; got != want {
				t.Errorf("%d bytes at %d are a word of 4: %v", n, at, got)
			}
		}
	}
}
