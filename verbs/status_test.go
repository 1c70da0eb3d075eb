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

// Advice is there for every status that a reliable connection can end with, and reads on behind an
// error's words.
func TestStatusAdvice(t *testing.T) {
	without := map[Status]bool{
		StatusSuccess: true, StatusLocEECOpErr: true, StatusLocRDDViolErr: true, StatusRemInvRDReqErr: true,
		StatusInvEECNErr: true, StatusInvEECStateErr: true, StatusTMErr: true, StatusTMRndvIncomplete: true,
		Status(24): true, Status(1 << 31): true,
	}
	seen := map[string]Status{}
	for s := StatusSuccess; s <= StatusTMRndvIncomplete+1; s++ {
		advice := s.Advice()
		if (advice == "") != without[s] {
			t.Errorf("%s: advice %q", s.Name(), advice)
		}
		if advice == "" {
			continue
		}
		if other, dup := seen[advice]; dup {
			t.Errorf("%s and %s have the same advice", s.Name(), other.Name())
		}
		seen[advice] = s
		if strings.ToLower(advice[:1]) != advice[:1] || strings.HasSuffix(advice, ".") ||
			strings.Contains(advice, "\n") {
			t.Errorf("%s: advice %q does not read on in a line", s.Name(), advice)
		}
	}
	if Status(1<<31).Advice() != "" {
		t.Error("advice for a status from the future")
	}
}
