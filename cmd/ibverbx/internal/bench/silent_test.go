package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/cmd/ibverbx/internal/rendezvous"
)

// TestFollowSilentClient greets and then says nothing: what is to be measured has to come as soon
// as the greeting, and the goodbye does not wait for long.
func TestFollowSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() {
			hello := binary.BigEndian.AppendUint32([]byte("\x89ibverbx"), ProtocolVersion)
			if _, err := there.Write(hello); err != nil {
				t.Error(err)
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		conn, err := rendezvous.Start(t.Context(), here, rendezvous.Config{Version: ProtocolVersion,
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
