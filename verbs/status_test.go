package verbs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestStatus(t *testing.T) {
	seen := map[string]Status{}
	for s := StatusSuccess; s <= StatusTMRndvIncomplete; s++ {
		name := s.Name()
		if other, dup := seen[name]; dup || name == "" || s.String() == "" {
			t.Errorf("status %d: name %q, words %q, name also of %d", s, name, s.String(), other)
		}
		seen[name] = s
		if got := s.Error(); got != name+": "+s.String() {
			t.Errorf("status %d: error %q", s, got)
		}
		if s != StatusSuccess && !strings.HasSuffix(name, "_ERR") && s != StatusTMRndvIncomplete {
			t.Errorf("status %d: name %q", s, name)
		}
	}
	if got := Status(24).Name() + ", " + Status(24).String(); got != "STATUS_24, unknown status 24" {
		t.Errorf("a status from the future: %q", got)
	}
	if StatusSuccess.Err() != nil {
		t.Error("success is an error")
	}
	err := fmt.Errorf("write: %w", StatusRetryExcErr.Err())
	if !errors.Is(err, StatusRetryExcErr) || errors.Is(err, StatusWRFlushErr) {
		t.Errorf("%v is not recognised", err)
	}
	var s Status
	if !errors.As(err, &s) || s != StatusRetryExcErr {
		t.Errorf("%v: status %v", err, s)
	}
}
