package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/rendezvous"
)

// TestFollowSilentClient greets and then says nothing: what is to be measured has to come as soon
// as the greeting, and the goodbye does not wait for long.
func TestFollowSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() {
			if _, err := io.WriteString(there, hello); err != nil {
				t.Error(err)
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		conn, err := rendezvous.Start(t.Context(), here, rendezvous.Config{Protocol: Protocol,
			Timeout: 30 * time.Second, Greeting: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = Follow(context.Background(), &Half{Conn: conn}, observer{})
		if took := time.Since(start); took != 7*time.Second || !errors.Is(err, rendezvous.ErrTimeout) ||
			conn.Err() == nil {
			t.Errorf("after %v: %v; the conversation: %v", took, err, conn.Err())
		}
		there.Close()
	})
}
